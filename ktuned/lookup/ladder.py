"""What a lookup is answered: the ladder ``fresh``, ``stale``, ``near``, ``default``, ``unknown``. Decides; no IO.

The nearest problem is the one with the same strings and bools and the least log distance over its numbers: the sum of
abs(ln(a / b)) over all numeric keys, so that 1024 is as far from 512 as from 2048.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ktuned.model import Config, Context, KernelInfo, Problem, Scalar, Status, Winner, canonical

Admits = Callable[[Config], bool | None]
"""Whether the kernel's space admits a config for the problem at hand; ``None`` when that is not known yet."""

NEAR_CANDIDATES = 4
"""How many of the nearest winners are considered: the validity of each may have to be asked of a worker."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is served, and what it should set off: a tuning, and questions about configs to a worker."""

    status: Status
    winner: Winner | None = None
    config: Config | None = None
    undecided: tuple[Config, ...] = ()

    @property
    def wants_tuning(self) -> bool:
        """Whether a better answer is to be had by tuning."""
        return self.status in (Status.STALE, Status.NEAR, Status.DEFAULT)


def answer(
    kernel: KernelInfo,
    problem: Problem,
    device: str | None,
    ground: Context | None,
    winners: Iterable[Winner],
    admits: Admits,
) -> Answer:
    """Climb down the ladder for one problem on one device model.

    ``ground`` is what a measurement made now would stand on, ``None`` when the device is not here.
    """
    wanted = canonical(kernel.specialized(problem))
    on_device = [winner for winner in winners if winner.context.device == device]
    for winner in on_device:
        if winner.context.problem == wanted:
            status = Status.FRESH if winner.context == ground else Status.STALE
            return Answer(status, winner, winner.config)
    undecided: list[Config] = []
    for winner in _nearest(kernel.specialized(problem), on_device):
        verdict = admits(winner.config)
        if verdict:
            return Answer(Status.NEAR, winner, winner.config, tuple(undecided))
        if verdict is None:
            undecided.append(winner.config)
    return Answer(Status.DEFAULT, None, kernel.default, tuple(undecided))


def _nearest(problem: Mapping[str, Scalar], winners: Iterable[Winner]) -> Iterator[Winner]:
    measured = ((distance(problem, winner.problem), winner) for winner in winners)
    reachable = sorted(
        ((far, winner) for far, winner in measured if far is not None),
        key=lambda pair: (pair[0], pair[1].context.problem),
    )
    return (winner for _, winner in reachable[:NEAR_CANDIDATES])


def distance(left: Problem, right: Problem) -> float | None:
    """Return how far two problems are apart, or ``None`` when no distance makes sense of them."""
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


def admits_plainly(kernel: KernelInfo, config: Config) -> bool | None:
    """Tell whether a space admits a config, as far as that is known without running its code."""
    space: Mapping[str, Any] = kernel.space
    if space["constrained"]:
        return None
    if space.get("axes") is not None:
        axes = space["axes"]
        return set(config) == set(axes) and all(config[knob] in axes[knob] for knob in axes)
    if space.get("configs") is not None:
        return dict(config) in space["configs"]
    return None
