"""The ladder of answers to a lookup: ``fresh``, ``stale``, ``near``, ``default``, ``unknown``. Decides; no IO.

An answer gives way only to one that is known to be no worse: a job makes nothing the winner before it knows how the
configs do that lookups were answered with until then (:mod:`ktuned.tuning.opening`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import msgspec

from ktuned.catalog import complete_config
from ktuned.model import (
    LATENCY,
    Config,
    Context,
    KernelInfo,
    Objective,
    Problem,
    Status,
    Winner,
    canonical,
    find_stand_ins,
    is_exact,
)
from ktuned.portfolio import Portfolio

HasFailed = Callable[[Config], bool]
"""Returns whether a config is known not to work in the context of a measurement made now."""

Admits = Callable[[Config], bool | None]
"""Returns whether the kernel's space admits a config for this problem; ``None`` when that is not known yet."""


class Decision(msgspec.Struct, frozen=True):
    """An answer, and the work it should start: a tuning, and questions about configs to a worker.

    ``is_unobserved`` if it is stale for nothing but that not all that decides it is known. ``expected_loss`` is that of
    a portfolio's config.
    """

    status: Status
    winner: Winner | None = None
    config: Config | None = None
    undecided: tuple[Config, ...] = ()
    is_certain: bool = True
    is_unobserved: bool = False
    expected_loss: float | None = None

    @property
    def is_current(self) -> bool:
        """True if the winner was measured as all that is known of is now, so that its artifact can be launched."""
        return self.status is Status.FRESH or self.is_unobserved

    @property
    def is_final(self) -> bool:
        """True if the winner holds here, and a final round has decided it."""
        return self.is_current and self.winner is not None and self.winner.is_final

    @property
    def wants_tuning(self) -> bool:
        """True if tuning would give a better answer, for all that is known."""
        if self.is_unobserved:
            return False
        return self.is_certain and self.status in (Status.STALE, Status.NEAR, Status.DEFAULT)


def decide_answer(
    kernel: KernelInfo,
    problem: Problem,
    device: str | None,
    context: Context | None,
    winners: Iterable[Winner],
    admits: Admits,
    *,
    is_certain: bool = True,
    objective: Objective = LATENCY,
    has_failed: HasFailed = lambda config: False,
    portfolio: Portfolio | None = None,
) -> Decision:
    """Return the best answer for one problem on one device model, by an objective.

    ``context`` is that of a measurement made now, ``None`` when the device is not here. Where it is not certain that it
    is that one, nothing is fresh, and nothing is to be tuned. Nothing of a kernel that is not fully observed is fresh,
    and what was measured in this context is not tuned again. A ``portfolio`` takes the place of near problems. Where
    numerics are exact, nothing is served but configs whose bits were compared here, and the default.
    """
    key = kernel.make_winner_key(problem, device or "", objective)
    undecided: dict[str, Config] = {}

    def may_serve(config: Config) -> bool:
        verdict = admits(config)
        if verdict is None:
            undecided[canonical(config)] = config
        return verdict is True

    known = list(winners)
    for winner in known:
        if winner.key != key:
            continue
        if is_exact(objective) and context is not None and winner.context != context:
            # Its bits were compared with those of another state of the kernel: now the anchor is served.
            continue
        config = complete_config(kernel, winner.config)
        if may_serve(config):
            # With a knob that the space has gained it is another config than the one that was measured.
            is_current = is_certain and winner.context == context and config == winner.config
            is_unobserved = is_current and bool(kernel.unobserved)
            status = Status.FRESH if is_current and not is_unobserved else Status.STALE
            return Decision(status, winner, config, is_certain=is_certain, is_unobserved=is_unobserved)
    if is_exact(objective):
        portfolio = None
    leaf = None if portfolio is None else portfolio.find_leaf(kernel.select_key_values(problem))
    if portfolio is not None and leaf is not None:
        for text in (leaf.config, *portfolio.configs):
            config = complete_config(kernel, json.loads(text))
            if may_serve(config) and not has_failed(config):
                loss = leaf.expected_loss if text == leaf.config else leaf.worst_loss
                return Decision(Status.NEAR, None, config, tuple(undecided.values()), is_certain, expected_loss=loss)
    for winner in () if portfolio is not None else find_stand_ins(key, kernel.select_key_values(problem), known):
        config = complete_config(kernel, winner.config)
        if may_serve(config) and not has_failed(config):
            return Decision(Status.NEAR, winner, config, tuple(undecided.values()), is_certain)
    default = kernel.default
    # The file itself declares it as the fallback: until a worker has refused it for this problem, it is served.
    if default is not None and not may_serve(default) and canonical(default) not in undecided:
        default = None
    return Decision(Status.DEFAULT, None, default, tuple(undecided.values()), is_certain)


def explain_unobserved(kernel: KernelInfo) -> str:
    """Return the message of an answer that is stale because its kernel is not fully observed."""
    return f"not fully observed: {kernel.unobserved}; name the files that decide with depends=[…] in @kernel"
