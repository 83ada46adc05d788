"""The ladder of answers to a lookup: ``fresh``, ``stale``, ``near``, ``default``, ``unknown``. Decides; no IO.

An answer gives way only to one that is known to be no worse: a job makes nothing the winner before it knows how the
configs do that lookups were answered with until then (:mod:`ktuned.tuning.opening`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ktuned.catalog import completed
from ktuned.model import Config, Context, KernelInfo, Problem, Status, Winner, canonical, nearest_winners

Admits = Callable[[Config], bool | None]
"""Returns whether the kernel's space admits a config for this problem; ``None`` when that is not known yet."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer, and the work it should start: a tuning, and questions about configs to a worker."""

    status: Status
    winner: Winner | None = None
    config: Config | None = None
    undecided: tuple[Config, ...] = ()
    is_certain: bool = True

    @property
    def is_final(self) -> bool:
        """True if the winner holds here, and a final round has decided it."""
        return self.status is Status.FRESH and self.winner is not None and self.winner.is_final

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
    for winner in nearest_winners(kernel.specialized(problem), others):
        config = completed(kernel, winner.config)
        if may_serve(config):
            return Decision(Status.NEAR, winner, config, tuple(undecided.values()), is_certain)
    default = kernel.default
    # The file itself declares it as the fallback: until a worker has refused it for this problem, it is served.
    if default is not None and not may_serve(default) and canonical(default) not in undecided:
        default = None
    return Decision(Status.DEFAULT, None, default, tuple(undecided.values()), is_certain)
