"""The ladder of answers to a lookup: ``fresh``, ``stale``, ``near``, ``default``, ``unknown``. Decides; no IO.

The nearest problem is the one with the same strings and bools and the least log distance over its numbers: the sum of
abs(ln(a / b)) over all numeric keys, so that 1024 is as far from 512 as from 2048.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ktuned.catalog import completed
from ktuned.model import Config, Context, KernelInfo, Problem, Scalar, Status, Winner, canonical

Admits = Callable[[Config], bool | None]
"""Returns whether the kernel's space admits a config for this problem; ``None`` when that is not known yet."""

NEAR_CANDIDATES = 4
"""Number of nearest winners that are considered: the validity of each may have to be asked of a worker."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer, and the work it should start: a tuning, and questions about configs to a worker."""

    status: Status
    winner: Winner | None = None
    config: Config | None = None
    undecided: tuple[Config, ...] = ()
    is_certain: bool = True

    @property
    def wants_tuning(self) -> bool:
        """True if tuning would give a better answer, for all that is known."""
        return self.is_certain and self.status in (Status.STALE, Status.NEAR, Status.DEFAULT)


def decide(
    kernel: KernelInfo,
    problem: Problem,
    device: str | None,
    context: Context | None,
    winners: Iterable[Winner],
    admits: Admits,
    *,
    is_certain: bool = True,
) -> Decision:
    """Return the best answer for one problem on one device model.

    ``context`` is that of a measurement made now, ``None`` when the device is not here. Where it is not certain that it
    is that one, nothing is fresh, and nothing is to be tuned.
    """
    wanted = canonical(kernel.specialized(problem))
    undecided: dict[str, Config] = {}

    def may_serve(config: Config) -> bool:
        verdict = admits(config)
        if verdict is None:
            undecided[canonical(config)] = config
        return verdict is True

    on_device = [winner for winner in winners if winner.context.device == device]
    for winner in on_device:
        if winner.context.problem != wanted:
            continue
        config = completed(kernel, winner.config)
        if may_serve(config):
            # With a knob that the space has gained it is another config than the one that was measured.
            is_fresh = is_certain and winner.context == context and config == winner.config
            return Decision(Status.FRESH if is_fresh else Status.STALE, winner, config, is_certain=is_certain)
    others = (winner for winner in on_device if winner.context.problem != wanted)
    for winner in _nearest(kernel.specialized(problem), others):
        config = completed(kernel, winner.config)
        if may_serve(config):
            return Decision(Status.NEAR, winner, config, tuple(undecided.values()), is_certain)
    default = kernel.default
    # The file itself declares it as the fallback: until a worker has refused it for this problem, it is served.
    if default is not None and not may_serve(default) and canonical(default) not in undecided:
        default = None
    return Decision(Status.DEFAULT, None, default, tuple(undecided.values()), is_certain)


def _nearest(problem: Mapping[str, Scalar], winners: Iterable[Winner]) -> Iterator[Winner]:
    measured = ((distance(problem, winner.problem), winner) for winner in winners)
    reachable = sorted(
        ((far, winner) for far, winner in measured if far is not None),
        key=lambda pair: (pair[0], pair[1].context.problem),
    )
    return (winner for _, winner in reachable[:NEAR_CANDIDATES])


def distance(left: Problem, right: Problem) -> float | None:
    """Return the distance of two problems, or ``None`` when they cannot be compared."""
    if set(left) != set(right):
        return None
    total = 0.0
    for key, value in left.items():
        other = right[key]
        if value == other and isinstance(value, bool) == isinstance(other, bool):
            continue
        if isinstance(value, str | bool) or isinstance(other, str | bool) or value <= 0 or other <= 0:
            return None
        total += abs(math.log(value) - math.log(other))
    return total
