"""Every config, in a mixed order.

In a space's own order neighbours follow each other, and the best ones often come late: until then each config is close
to the fastest so far, and is sampled in full. In a mixed order a good one comes early, and the others lose against it:
on an H100 a GEMM's 114 configs took 0.30 s of sampling, and 0.43 s in the space's order.

One module for each strategy, this short one too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

from ktuned.model import Scalar
from ktuned.search.domain import walk_configs_in_order
from ktuned.search.random import permute_indices
from ktuned.search.strategy import Walk

FEW = 32
"""Configs up to which a space keeps its order: so few cost nothing, and their author may have sorted them."""

MIXED = 256
"""Configs that are mixed with each other: a larger space is walked piece by piece."""

MIXED_S = 0.2
"""Time for finding them: a slow constraint is not to keep the lanes waiting."""


class Exhaustive(Walk):
    """Tries every config; the seed changes nothing."""

    def walk_candidates(self) -> Iterator[dict[str, Scalar] | None]:
        """Walk the space."""
        return mix_configs(walk_configs_in_order(self.space))


def mix_configs(
    configs: Iterator[dict[str, Scalar] | None], clock: Callable[[], float] = monotonic
) -> Iterator[dict[str, Scalar] | None]:
    """Yield configs in another order, window by window, with ``None`` as pauses."""
    window: list[dict[str, Scalar]] = []
    began, is_first = clock(), True
    for config in configs:
        yield None
        if config is not None:
            window.append(config)
        if window and (len(window) == MIXED or clock() - began > MIXED_S):
            yield from _shuffle_window(window)
            window.clear()
            began, is_first = clock(), False
    yield from window if is_first and len(window) <= FEW else _shuffle_window(window)


def _shuffle_window(window: list[dict[str, Scalar]]) -> Iterator[dict[str, Scalar]]:
    return (window[place] for place in permute_indices(len(window), 0))
