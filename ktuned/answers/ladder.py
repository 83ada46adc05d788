"""The answer to a lookup, computed from a kernel's state: ``fresh``, ``stale``, ``near``, ``default``. No IO.

The answer is the first of these that the space admits and that is not known to fail:

1. the problem's own winner: ``fresh`` if it was measured in the present context and nothing is in doubt, else
   ``stale``. With exact numerics, a winner of another context is passed over: its bits were compared with other ones;
2. winners of the nearest problems: ``near``;
3. the default, which needs no verdict, because the kernel file declares it as its fallback.

A new answer replaces the old one only if it is known to be no worse: a job declares no winner before it has measured
the configs that lookups have returned so far (:mod:`ktuned.tuning.judgements`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import time

from ktuned.answers.kernel_state import KernelState, Place
from ktuned.catalog import complete_config
from ktuned.devices import explain_unmeasurable
from ktuned.model import (
    Config,
    FrozenStruct,
    KernelInfo,
    Objective,
    Problem,
    WinnerKey,
    canonical,
    is_exact,
    needs_metric,
)
from ktuned.protocol import Answer, Status, describe_noise, is_noisy
from ktuned.store import Context, Winner, describe_price, find_stand_ins

Admits = Callable[[Config], bool | None]
"""Returns whether the kernel's space admits a config for this problem; ``None`` if that is not known yet."""


class WantedTuning(FrozenStruct):
    """The tuning of a problem in a context, which would improve an answer."""

    kernel: KernelInfo
    problem: Problem
    context: Context
    objective: Objective

    @property
    def key(self) -> WinnerKey:
        """The key whose winner is wanted."""
        return self.context.key_for(self.objective)

    @property
    def kernel_state(self) -> tuple[Context, str]:
        """The state of the kernel that would be tuned."""
        return self.context, self.kernel.plan_digest


class Lookup(FrozenStruct):
    """A lookup's answer, with facts that are not sent. The facts say which work would improve the answer.

    Attributes:
        answer: the answer that is sent.
        is_certain: if not, there may be a better answer in a moment.
        undecided: configs that may be served instead once a worker has found that the space has them.
        failure: why no tuning is wanted, if it would fail again; the answer's ``message`` may give another reason.
        tuning: the tuning that would improve the answer.
    """

    answer: Answer
    is_certain: bool = True
    undecided: tuple[Config, ...] = ()
    failure: str = ""
    tuning: WantedTuning | None = None


class Question(FrozenStruct):
    """A question about a kernel's state.

    Attributes:
        problem: the problem.
        device: the name or the model of a device; None for the first one.
        objective: the objective.
        doubt: why the kernel's files may differ from the state; empty if they do not.
        admits: replaces the check against the kernel's space.
    """

    problem: Problem
    device: str | None
    objective: Objective
    doubt: str = ""
    admits: Admits | None = None


class Decision(FrozenStruct):
    """An answer, and the facts that decide which work it should start.

    Attributes:
        status: The answer's place on the ladder.
        winner: The winner that is served, if the answer is one.
        config: The config that is served, if any.
        undecided: Configs that a worker has to check, because it is not known whether the space has them.
        is_unobserved: Whether the answer is stale only because the kernel is not fully observed.
    """

    status: Status
    winner: Winner | None = None
    config: Config | None = None
    undecided: tuple[Config, ...] = ()
    is_unobserved: bool = False

    @property
    def is_current(self) -> bool:
        """True if the winner was measured in the present context, as far as known, so its artifact can be launched."""
        return self.status is Status.FRESH or self.is_unobserved

    @property
    def wants_tuning(self) -> bool:
        """True if tuning would give a better answer, as far as known."""
        return self.status is not Status.FRESH and not self.is_unobserved


def find_answer(state: KernelState, question: Question, *, tune: bool = False) -> Lookup:
    """Return the best answer to a question; its ``generation`` is left to the caller.

    ``tune`` is whether the caller starts the tunings that would improve the answer; then the message says so.
    """
    place = state.find_place(question.device)
    context = None if place is None or state.fault else state.make_context(place, question.problem)
    # Without a device there is nothing to be certain of, and the answer is stale at best anyway.
    doubt = "" if place is None or state.fault else state.find_doubt(place, question.doubt)
    found = decide_answer(state, question, place, context, doubt)
    failure = _find_failure(state, question, place, context)
    tuning = None
    if found.wants_tuning and not doubt and context is not None and not failure:
        problem = state.kernel.choose_representative(question.problem)
        tuning = WantedTuning(_choose_kernel(state, question, place), problem, context, question.objective)
    if found.status is Status.DEFAULT and found.config is None and state.kernel.default is not None:
        message = failure or "the default is not valid for this problem"
    else:
        message = _explain_answer(state, question, found, doubt or failure)
    if found.status is Status.DEFAULT and not message:
        is_queued = tuning is not None and tune
        message = _explain_default(is_queued, question.device, is_here=context is not None)
    answer = _make_answer(state, question, place, found, message)
    return Lookup(answer, not doubt, found.undecided, failure, tuning)


def decide_answer(
    state: KernelState, question: Question, place: Place | None, context: Context | None, doubt: str
) -> Decision:
    """Return the first rung of the ladder that holds, for a measurement's ``context`` (None if the device is gone).

    With a ``doubt`` no answer is fresh. If the kernel is not fully observed, none is either, but a winner measured in
    this context is not tuned again.
    """
    kernel, problem, objective = _choose_kernel(state, question, place), question.problem, question.objective
    key = kernel.make_winner_key(problem, _name_model(question, place) or "", objective)
    values = kernel.select_key_values(problem)
    undecided: dict[str, Config] = {}

    def may_serve(config: Config) -> bool:
        admits = question.admits
        verdict = state.find_verdict(problem, config) if admits is None else admits(config)
        if verdict is None:
            undecided[canonical(config)] = config
        return verdict is True

    def may_stand_in(config: Config) -> bool:
        return may_serve(config) and (context is None or (context, canonical(config)) not in state.failed)

    # 1. The problem's own winner.
    winner = state.winners.get(key)
    if winner is not None and not (is_exact(objective) and context is not None and winner.context != context):
        config = complete_config(kernel, winner.config)
        if may_serve(config):
            # If the space has gained a knob, the completed config is not the one that was measured.
            is_current = not doubt and winner.context == context and config == winner.config
            is_unobserved = is_current and bool(kernel.unobserved)
            status = Status.FRESH if is_current and not is_unobserved else Status.STALE
            return Decision(status, winner, config, is_unobserved=is_unobserved)
    # 2. Winners of near problems.
    for winner in find_stand_ins(key, values, state.winners.values()):
        config = complete_config(kernel, winner.config)
        if may_stand_in(config):
            return Decision(Status.NEAR, winner, config, tuple(undecided.values()))
    # 3. The default, unless a worker refused it for this problem.
    default = kernel.default
    if default is not None and not may_serve(default) and canonical(default) not in undecided:
        default = None
    return Decision(Status.DEFAULT, None, default, tuple(undecided.values()))


def explain_unobserved(kernel: KernelInfo) -> str:
    """Return the message of an answer that is stale because its kernel is not fully observed."""
    return f"not fully observed: {kernel.unobserved}; name the files that it reads with depends=[…] in @kernel"


def _name_model(question: Question, place: Place | None) -> str | None:
    """Return the device's model. If it is not here, winners of the model that the question names still count."""
    return question.device if place is None else place.device.model


def _choose_kernel(state: KernelState, question: Question, place: Place | None) -> KernelInfo:
    """Return the kernel; with exact numerics, with the anchor that was chosen as its default."""
    if not is_exact(question.objective) or place is None:
        return state.kernel
    key = state.kernel.make_winner_key(question.problem, place.device.model, question.objective)
    return state.kernel.with_anchor(state.anchors.get((key.problem, key.device)), question.objective)


def _find_failure(state: KernelState, question: Question, place: Place | None, context: Context | None) -> str:
    """Return why a tuning would fail in the present state, as the last one has; empty if it may succeed."""
    if context is not None:
        # A tuning that failed for these very files would fail again.
        failed = state.failed_jobs.get((context, question.objective))
        if failed:
            return f"its tuning failed: {failed}"
    if state.fault or place is None:
        return state.fault
    return explain_unmeasurable(question.objective, place.device)


def _explain_answer(state: KernelState, question: Question, found: Decision, reason: str) -> str:
    """Return why an answer is not better, by the most specific reason that applies; empty if none does.

    ``reason`` is the doubt about the present state, or the failure of a tuning.
    """
    winner, objective = found.winner, question.objective
    if found.is_unobserved:
        return explain_unobserved(state.kernel)
    if winner is None:
        return reason
    message = winner.note or state.notice if found.status is Status.FRESH else reason
    if message or needs_metric(objective):
        return message
    if is_noisy(winner.latency_us, winner.spread_us):
        return describe_noise(winner.latency_us, winner.spread_us or 0.0)
    if is_exact(objective) and found.is_current and winner.trial in state.best_us:
        return describe_price(winner.latency_us, state.best_us[winner.trial])
    return ""


def _explain_default(is_queued: bool, device: str | None, *, is_here: bool) -> str:
    """Return why an answer is only the default."""
    if is_queued:
        return "not tuned yet for this problem; its tuning is queued"
    if not is_here:
        return f"not tuned for this problem, and {device or 'its device'} is not here to measure on"
    return "not tuned yet for this problem"


def _make_answer(state: KernelState, question: Question, place: Place | None, found: Decision, message: str) -> Answer:
    """Return the answer that says what was decided."""
    kernel, problem, winner = state.kernel, question.problem, found.winner
    measured = None if winner is None else state.measured.get(winner.trial, winner.problem)
    if measured is not None:
        measured = None if canonical(measured) == canonical(problem) else kernel.order_problem(measured)
    is_final = winner is not None and found.is_current and winner.is_final
    if winner is not None and not needs_metric(question.objective):
        is_final = is_final and not is_noisy(winner.latency_us, winner.spread_us)
    return Answer(
        kernel=kernel.name,
        problem=problem,
        device=_name_model(question, place),
        status=found.status,
        config=None if found.config is None else kernel.order_config(found.config),
        latency_us=None if winner is None else winner.latency_us,
        # Only an artifact of this very problem and source can be launched without compiling again.
        artifact=state.artifacts.get(winner.artifact or "") if winner is not None and found.is_current else None,
        age_s=None if winner is None else round(max(0.0, time() - winner.decided), 3),
        decided=None if winner is None else winner.decided,
        file=kernel.file,
        message=message,
        generation=0,
        is_final=is_final,
        metrics={} if winner is None else winner.metrics,
        measured=measured,
        objective=question.objective,
    )
