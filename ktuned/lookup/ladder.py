"""The ladder of answers to a lookup: ``fresh``, ``stale``, ``near``, ``default``, ``unknown``. Decides; no IO.

An answer is replaced only by one that is known to be no worse: a job declares no winner before it has measured the
configs that lookups were answered with so far (:mod:`ktuned.tuning.served_configs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from ktuned.catalog import complete_config
from ktuned.model import LATENCY, Config, KernelInfo, Objective, Problem, canonical, is_exact
from ktuned.portfolio import WANTED_LOSS, count_octaves
from ktuned.protocol import Status
from ktuned.store import Context, Winner, find_stand_ins
from ktuned_client.portfolio_tree import find_leaf, list_configs

CLOSE_OCTAVES = 1.0
"""A portfolio's expected loss only holds near the problems that it was fitted to: up to this distance from one."""

HasFailed = Callable[[Config], bool]
"""Returns whether a config is known not to work in the context of a measurement made now."""

Admits = Callable[[Config], bool | None]
"""Returns whether the kernel's space admits a config for this problem; ``None`` if that is not known yet."""


class Decision(msgspec.Struct, frozen=True):
    """An answer, and the facts that decide which work it should start.

    Attributes:
        status: The answer's place on the ladder.
        winner: The winner that is served, if the answer is one.
        config: The config that is served, if any.
        undecided: Configs that a worker has to check, because it is not known whether the space has them.
        is_certain: Whether the present context is certain.
        is_unobserved: Whether the answer is stale only because the kernel is not fully observed.
        expected_loss: The expected loss of a portfolio's choice.
        is_enough: Whether a portfolio's choice is too good to be worth a tuning.
    """

    status: Status
    winner: Winner | None = None
    config: Config | None = None
    undecided: tuple[Config, ...] = ()
    is_certain: bool = True
    is_unobserved: bool = False
    expected_loss: float | None = None
    is_enough: bool = False

    @property
    def is_current(self) -> bool:
        """True if the winner was measured in the present context, as far as known, so its artifact can be launched."""
        return self.status is Status.FRESH or self.is_unobserved

    @property
    def is_final(self) -> bool:
        """True if the winner is current, and was decided by a final round."""
        return self.is_current and self.winner is not None and self.winner.is_final

    @property
    def wants_tuning(self) -> bool:
        """True if tuning would give a better answer, as far as known."""
        if self.is_unobserved or self.is_enough:
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
    tree: Mapping[str, Any] | None = None,
) -> Decision:
    """Return the best answer for one problem on one device model, by an objective.

    If the kernel is not fully observed, no answer is fresh, and a winner measured in this context is not tuned again.
    With exact numerics, only configs whose bits were compared in this context and the default are served.

    Args:
        kernel: The kernel.
        problem: The problem that the winner's key is made of.
        device: The device model.
        context: The context of a measurement made now; ``None`` if the device is not here.
        winners: The kernel's winners.
        admits: Returns whether the space admits a config.
        is_certain: Whether the context is certain. If not, no answer is fresh, and none starts a tuning.
        objective: The objective.
        has_failed: Returns whether a config is known to fail in the context.
        tree: The portfolio's tree, whose choice comes before the winners of near problems.
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
            # Its bits were compared with the anchor's in another state of the kernel, so the anchor is served instead.
            continue
        config = complete_config(kernel, winner.config)
        if may_serve(config):
            # If the space has gained a knob, the completed config is not the one that was measured.
            is_current = is_certain and winner.context == context and config == winner.config
            is_unobserved = is_current and bool(kernel.unobserved)
            status = Status.FRESH if is_current and not is_unobserved else Status.STALE
            return Decision(status, winner, config, is_certain=is_certain, is_unobserved=is_unobserved)
    if tree is not None:
        values = kernel.select_key_values(problem)
        tuned = [one.problem for one in known if (one.key.device, one.objective) == (device, objective)]
        is_close = any(count_octaves(values, other) <= CLOSE_OCTAVES for other in tuned)
        leaf = find_leaf(tree, values)
        for chosen in (leaf["config"], *list_configs(tree)):
            config = complete_config(kernel, chosen)
            if may_serve(config) and not has_failed(config):
                loss = leaf["expected_loss"] if chosen == leaf["config"] else None
                return Decision(
                    Status.NEAR,
                    None,
                    config,
                    tuple(undecided.values()),
                    is_certain,
                    expected_loss=loss,
                    is_enough=is_close and loss is not None and loss <= WANTED_LOSS,
                )
    for winner in find_stand_ins(key, kernel.select_key_values(problem), known):
        config = complete_config(kernel, winner.config)
        if may_serve(config) and not has_failed(config):
            return Decision(Status.NEAR, winner, config, tuple(undecided.values()), is_certain)
    default = kernel.default
    # The kernel file declares the default as its fallback, so it is served unless a worker refused it for this problem.
    if default is not None and not may_serve(default) and canonical(default) not in undecided:
        default = None
    return Decision(Status.DEFAULT, None, default, tuple(undecided.values()), is_certain)


def explain_unobserved(kernel: KernelInfo) -> str:
    """Return the message of an answer that is stale because its kernel is not fully observed."""
    return f"not fully observed: {kernel.unobserved}; name the files that decide with depends=[…] in @kernel"
