"""The best answers that can be given from what is known now.

1. Find the problem that represents the requested one (its bucket).
2. Form the context of a measurement made now. A *doubt* is a reason why that context is not certain: a file that waits
   for its inspection, or a toolchain that was not checked yet. An answer under doubt is ``stale`` at best.
3. Let the ladder (:mod:`ktuned.lookup.ladder`) choose among the winners, without IO.
4. Name the work that would improve the answer, as a part of the result (:class:`~ktuned.lookup.answer.Lookup`). The
   caller decides whether to start it.
5. Say in one line why the answer is not better.
"""

from __future__ import annotations

from ktuned.catalog import Admission
from ktuned.devices import explain_unmeasurable
from ktuned.lookup.answer import Lookup, WantedTuning, compute_age
from ktuned.lookup.certainty import Certainty, PresentState
from ktuned.lookup.ladder import Admits, Decision, decide_answer, explain_unobserved
from ktuned.lookup.served_winners import ServedWinners
from ktuned.model import KernelInfo, Objective, Problem, canonical, is_exact, needs_metric, strip_numerics
from ktuned.protocol import Answer, Status, describe_noise, is_noisy
from ktuned.scheduling import KnownFailures, Portfolios
from ktuned.store import Artifacts, Store, Winner, describe_price


class BestAnswers:
    """Finds the best answers."""

    def __init__(
        self,
        *,
        admission: Admission,
        artifacts: Artifacts,
        certainty: Certainty,
        failures: KnownFailures,
        portfolios: Portfolios,
        served: ServedWinners,
        store: Store,
    ) -> None:
        self._admission = admission
        self._artifacts = artifacts
        self._certainty = certainty
        self._failures = failures
        self._portfolios = portfolios
        self._served = served
        self._store = store

    def find_best_answer(
        self,
        kernel: KernelInfo,
        problem: Problem,
        device: str | None,
        objective: Objective,
        *,
        tune: bool = False,
        admits: Admits | None = None,
        is_needed: bool = True,
    ) -> Lookup:
        """Return the best answer for one problem of a kernel; its ``generation`` is left to the caller.

        Args:
            kernel: The kernel.
            problem: The problem.
            device: The name or the model of a device; None for the first one.
            objective: The objective.
            tune: Whether the caller starts the tunings that would improve the answer; then the message says so.
            admits: Replaces the check against the kernel's space.
            is_needed: Whether somebody needs the answer now. Otherwise no files are read, and its artifact does not
                count as served.
        """
        # The problem that represents this one, if the kernel file groups problems.
        key_problem = kernel.choose_representative(problem)
        # The state in which it would be measured now.
        now = self._certainty.find_present_state(kernel, key_problem, device, compares=is_needed)
        context, model = now.context, now.model
        # The ladder decides.
        if is_exact(objective) and model is not None:
            anchor = self._store.anchors.find_anchor(kernel.make_winner_key(key_problem, model, objective))
            kernel = kernel.with_anchor(anchor, objective)
        portfolio = None if model is None else self._portfolios.find_portfolio(kernel, model, objective)
        winners = self._served.list_winners(kernel, now.environment)
        found = decide_answer(
            kernel,
            key_problem,
            model,
            context,
            winners,
            admits or (lambda config: self._admission.find_known_verdict(kernel, problem, config)),
            is_certain=not now.doubt,
            objective=objective,
            has_failed=lambda config: context is not None and self._store.has_failed(context, config),
            tree=None if portfolio is None else portfolio.tree,
        )
        # The tuning that would improve the answer, unless it would fail again.
        failure = self._find_failure(kernel, now, objective)
        tuning = None
        if found.wants_tuning and context is not None and not failure:
            tuning = WantedTuning(kernel, key_problem, context, objective)
        # Why it is not better.
        message = self._explain_answer(kernel, now, objective, found, now.doubt or failure)
        if found.status is Status.DEFAULT and found.config is None and kernel.default is not None:
            message = failure or "the space does not admit the default for this problem"
        elif found.status is Status.DEFAULT and not message:
            message = _explain_default(found.wants_tuning and tune, device, is_here=context is not None)
        answer = self._make_answer(kernel, problem, model, objective, found, message, is_needed=is_needed)
        return Lookup(
            answer,
            found.is_certain,
            found.undecided,
            failure,
            tuning,
        )

    def _make_answer(
        self,
        kernel: KernelInfo,
        problem: Problem,
        model: str | None,
        objective: Objective,
        found: Decision,
        message: str,
        *,
        is_needed: bool,
    ) -> Answer:
        """Return the answer that says what was decided."""
        incumbent = found.winner
        is_noisy_winner = (
            incumbent is not None
            and not needs_metric(objective)
            and is_noisy(incumbent.latency_us, incumbent.spread_us)
        )
        decided = None if incumbent is None else incumbent.decided
        return Answer(
            kernel=kernel.name,
            problem=problem,
            device=model,
            status=found.status,
            config=None if found.config is None else kernel.order_config(found.config),
            latency_us=None if incumbent is None else incumbent.latency_us,
            # Only an artifact of this very problem and source can be launched without compiling again.
            artifact=self._locate_artifact(incumbent, is_needed) if incumbent and found.is_current else None,
            age_s=compute_age(decided),
            decided=decided,
            file=kernel.file,
            message=message,
            generation=0,
            is_final=found.is_final and not is_noisy_winner,
            metrics={} if incumbent is None else incumbent.metrics,
            measured=None if incumbent is None else self._find_measured_problem(kernel, problem, incumbent),
            objective=objective,
            expected_loss=found.expected_loss,
        )

    def _find_failure(self, kernel: KernelInfo, now: PresentState, objective: Objective) -> str:
        """Return why a tuning would fail in the present state, as the last one has; empty if it may succeed."""
        if now.context is not None:
            # A tuning that failed for these very files would fail again.
            failed = self._failures.find_message(now.context, kernel.plan_digest, objective)
            if failed:
                return f"its tuning failed: {failed}"
        if now.fault:
            return now.fault
        if now.device is not None and (unmeasurable := explain_unmeasurable(objective, now.device)):
            return unmeasurable
        return ""

    def _explain_answer(
        self,
        kernel: KernelInfo,
        now: PresentState,
        objective: Objective,
        found: Decision,
        reason: str,
    ) -> str:
        """Return why an answer is not better, by the most specific reason that applies; empty if none does.

        ``reason`` is the doubt about the present state, or the failure of a tuning.
        """
        if found.is_unobserved:
            return explain_unobserved(kernel)
        incumbent, message = found.winner, reason
        if found.status is Status.FRESH:
            message = "" if incumbent is None else incumbent.note
        if incumbent is not None and not message and not needs_metric(objective):
            if is_noisy(incumbent.latency_us, incumbent.spread_us):
                message = describe_noise(incumbent.latency_us, incumbent.spread_us or 0.0)
            elif is_exact(objective) and found.is_current and now.context is not None:
                fastest = self._store.list_best_trials(now.context, 1, objective=strip_numerics(objective))
                message = describe_price(incumbent.latency_us, fastest[0].latency_us) if fastest else ""
        return message

    def _find_measured_problem(self, kernel: KernelInfo, problem: Problem, incumbent: Winner) -> Problem | None:
        """Return the problem that a winner was measured for; None if it is the requested one."""
        if kernel.specialize is None:
            measured = incumbent.problem
        else:
            # A winner has only the values that are part of its key; its job has the whole problem.
            trial = self._store.get_trial(incumbent.trial)
            job = None if trial is None else self._store.get_job(trial.job)
            measured = incumbent.problem if job is None else job.problem
        return None if canonical(measured) == canonical(problem) else kernel.order_problem(measured)

    def _locate_artifact(self, incumbent: Winner, is_served: bool) -> str | None:
        path = None if incumbent.artifact is None else self._artifacts.find_artifact(incumbent.artifact)
        if path is None or incumbent.artifact is None:
            return None
        if is_served:
            self._artifacts.mark_served(incumbent.artifact)
        return str(path)


def _explain_default(is_queued: bool, device: str | None, *, is_here: bool) -> str:
    """Return why an answer is only the default."""
    if is_queued:
        return "not tuned yet for this problem; its tuning is queued"
    if not is_here:
        return f"not tuned for this problem, and {device or 'its device'} is not here to measure on"
    return "not tuned yet for this problem"
