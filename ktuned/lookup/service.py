"""Lookups: the best config known now, from memory, within microseconds.

A lookup runs on the event loop and never waits. It takes these steps:

1. Find the kernel, and the problem that represents the requested one (its bucket).
2. Form the context of a measurement made now. A *doubt* is a reason why that context is not certain: a file that waits
   for its inspection, or a toolchain that was not checked yet. An answer under doubt is ``stale`` at best.
3. Let the ladder (:mod:`ktuned.lookup.ladder`) choose among the winners, without IO.
4. Queue the work that would improve the answer: a tuning, a worker's verdict on a config, a worker's choice of a
   bucket.
5. Say in one line why the answer is not better.

Three cases differ. The first lookup under a pin waits for the disk, because its answer is kept forever. A request for a
settled answer waits for a worker's verdict (:meth:`Lookups.settle_answer`). And a client that finds the answer in the
table of winners does not send a request at all.

Answers are reused by the bytes of the question (:mod:`ktuned.lookup.shortcuts`) until something changes that may affect
them; :mod:`ktuned.lookup.answer_caches` is the only place where they are invalidated. The tuning that follows a
lookup is requested at most once for each state of the kernel. If it has just failed for these very files, it is not
requested, and the answer's message is the failure.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic

import anyio
from msgspec.structs import replace

from ktuned.catalog import Admission, Buckets, Catalog, check_problem
from ktuned.devices import Machine
from ktuned.fleet import Environment, QuietGate
from ktuned.lookup.answer import Lookup, compute_age
from ktuned.lookup.answer_caches import AnswerCaches
from ktuned.lookup.certainty import Certainty
from ktuned.lookup.follow_ups import MAX_FOLLOW_UPS, FollowUps
from ktuned.lookup.ladder import Admits, decide_answer, explain_unobserved
from ktuned.lookup.pins import Pins
from ktuned.lookup.publication import Publication
from ktuned.lookup.served_winners import ServedWinners
from ktuned.model import (
    Device,
    KernelInfo,
    KtunedError,
    NotFound,
    Objective,
    Problem,
    Status,
    Verdict,
    Winner,
    canonical,
    describe_noise,
    describe_price,
    explain_unmeasurable,
    is_exact,
    is_noisy,
    needs_metric,
    strip_numerics,
)
from ktuned.protocol import Answer, CacheSizes, ChannelInfo
from ktuned.scheduling import Jobs, Portfolios
from ktuned.store import Artifacts, Store

NO_BUCKET = "its bucket is not known yet: a worker asks the kernel file's function"
"""Message of an answer if the kernel file's ``bucket`` function was not yet called with the problem in the kernel's
present state."""

SETTLE_S = 5.0
"""Longest time that a lookup waits for a worker to start and to run a kernel file's constraints."""

MAX_SETTLED = 4
"""How often one lookup asks a worker. Once is enough unless the file changes, because all configs are asked together.
"""

LATELY_S = 60.0
"""For this long after a lookup, its kernel's files are checked more often than others."""

Pinning = Callable[[], Awaitable[Lookup]]
"""Writes the first answer under a pin to the disk, and returns the answer that is pinned."""


class Lookups:
    """Answers lookups; :meth:`run_until_cancelled` carries out their follow-ups.

    Attributes:
        caches: The caches of answers.
        shortcuts: Answers, by the bytes of their questions.
        table: The table of winners, for clients.
        pins: Answers under pins.
        buckets: Knows which problem represents another.
        served: The winners that lookups serve.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        admission: Admission,
        buckets: Buckets,
        machine: Machine,
        store: Store,
        artifacts: Artifacts,
        jobs: Jobs,
        portfolios: Portfolios,
        caches: AnswerCaches,
        served: ServedWinners,
        certainty: Certainty,
        gate: QuietGate,
    ) -> None:
        self.caches = caches
        self.shortcuts = caches.shortcuts
        self.table = caches.table
        self.pins = Pins(store, caches.forget_all_answers)
        self._catalog = catalog
        self._certainty = certainty
        self._admission = admission
        self.buckets = buckets
        self._machine = machine
        self._store = store
        self._artifacts = artifacts
        self._jobs = jobs
        self._portfolios = portfolios
        self._winners = caches.winners
        self.served = served
        self._answered = 0
        self._looked_up: dict[str, float] = {}
        self._follow_ups = FollowUps(admission, buckets, jobs, caches, gate)
        self._publication = Publication(
            caches.table,
            catalog,
            machine,
            certainty,
            in_use=self.list_looked_up,
            winners=served.list_winners,
            answer=partial(self._find_best_answer, tune=False, admits=None),
        )
        caches.when_changed = self._publication.request_publication

    @property
    def answered(self) -> int:
        """The number of lookups answered since the start."""
        return self._answered + self.shortcuts.lookups

    def list_looked_up(self, within_s: float = LATELY_S) -> list[str]:
        """Return the kernels looked up within the last ``within_s`` seconds, here or in the table; forget others."""
        since = monotonic() - within_s
        self._looked_up = {name: at for name, at in self._looked_up.items() if at >= since}
        in_table = self.table.used_since((kernel.name for kernel in self._catalog.kernels), since)
        return list(dict.fromkeys([*self._looked_up, *in_table]))

    def describe_follow_ups(self) -> ChannelInfo:
        """Return how full the queue of follow-ups is."""
        return ChannelInfo(self._follow_ups.waiting, MAX_FOLLOW_UPS)

    def measure_caches(self) -> CacheSizes:
        """Return how many entries the caches have."""
        return CacheSizes(
            answers=self.shortcuts.held,
            shortcuts=len(self.shortcuts),
            winners=sum(map(len, self._winners.values())),
            admitted=len(self._admission),
        )

    def look_up(
        self,
        name: str,
        problem: Problem,
        device: str | None,
        *,
        tune: bool,
        directory: str | None = None,
        objective: str | None = None,
        admits: Admits | None = None,
    ) -> Lookup:
        """Return the answer for one problem.

        Args:
            name: The kernel's full or short name.
            problem: The problem.
            device: The name or the model of a device; None for the first one.
            tune: Whether to queue a tuning that would improve the answer.
            directory: Decides which project a short name means.
            objective: The objective; None for the kernel's own.
            admits: Replaces the check against the kernel's space, if only the caller knows which configs it may launch.

        Raises:
            AmbiguousName: several kernels have this short name.
            UsageError: the kernel has no such problem, or no such objective.
        """
        self._answered += 1
        try:
            kernel = self._catalog.resolve_kernel(name, directory)
        except NotFound as error:
            return Lookup(
                Answer(
                    kernel=name,
                    problem=problem,
                    device=device,
                    status=Status.UNKNOWN,
                    config=None,
                    latency_us=None,
                    artifact=None,
                    age_s=None,
                    decided=None,
                    file=None,
                    message=f"{error.message}; {error.hint}",
                    generation=self.table.generation(name),
                )
            )
        self._looked_up[kernel.name] = monotonic()
        check_problem(kernel, problem)
        by = kernel.objective(objective)
        found = self._find_best_answer(kernel, problem, device, by, tune=tune, admits=admits)
        self._publication.publish_answered(kernel, name, directory, problem, found, tune=tune)
        return found

    def lookup_pinned(
        self,
        pin: str,
        name: str,
        problem: Problem,
        device: str | None,
        *,
        tune: bool,
        directory: str | None = None,
        objective: str | None = None,
        admits: Admits | None = None,
        settle_until: float = 0.0,
    ) -> Lookup | Pinning:
        """As :meth:`look_up`, but return the answer that the pin holds, or a function that pins the first one.

        An uncertain answer is not pinned, because the next one may be better. The first answer may be settled until
        ``settle_until`` (:meth:`settle_answer`), because it is kept forever.

        Raises:
            UsageError: the kernel has no such problem, or the pin's name is not valid.
        """
        # A pin stores full names, so that a short name cannot mean another project's kernel.
        asked, name = name, self._catalog.full_name_of(name, directory)
        held = self.pins.find_answer(pin, name, problem, device, objective)
        if held is None:
            look_up = partial(self.look_up, name, problem, device, tune=tune, objective=objective, admits=admits)
            first = look_up()
            named = first.answer
            held = self.pins.find_answer(pin, named.kernel, problem, named.device, named.objective)
            if held is None and not first.is_certain:
                return first
            if held is None:

                async def pin_answer() -> Lookup:
                    found = await self.settle_answer(first, look_up, settle_until)
                    if not found.is_certain:
                        return found
                    return Lookup(await self.pins.freeze_answer(pin, name, problem, device, objective, found.answer))

                return pin_answer
        self._answered += 1
        self._publication.publish_pinned(pin, asked, directory, problem, held)
        return Lookup(replace(held, generation=self.table.generation(held.kernel)))

    def caught_up(self) -> None:
        """End the doubts of a start, because the watcher has now looked at every file."""
        self._certainty.caught_up()
        self.caches.forget_all_answers()

    def find_doubt(self, kernel: KernelInfo) -> str:
        """Return why answers for a kernel cannot be relied on now; empty if they can."""
        return self._certainty.find_doubt(kernel, self._catalog.kernel_environment(kernel))

    def forget_results(self, kernel: str) -> None:
        """Let lookups tune a kernel again, because its results were forgotten or its inputs were replaced."""
        self._follow_ups.forget_tunings(kernel)
        self.caches.forget_answers(kernel)

    def _find_best_answer(
        self,
        kernel: KernelInfo,
        problem: Problem,
        device: str | None,
        by: Objective,
        *,
        tune: bool,
        admits: Admits | None,
    ) -> Lookup:
        environment = self._catalog.kernel_environment(kernel)
        # The device that would be measured on. If it is not here, the winners of its model still count.
        measured_on: Device | None
        try:
            measured_on = self._machine.find_device(environment, kernel.backend, device)
        except KtunedError:
            measured_on = None
        model = measured_on.model if measured_on is not None else device
        # The problem that represents this one, if the kernel file groups problems.
        bucket = self.buckets.known_representative(kernel, problem)
        if bucket is None or not bucket.is_current:
            self._follow_ups.queue_bucket(kernel, problem)
        key_problem = dict(problem) if bucket is None else bucket.problem
        # The context of a measurement made now; there is none if the kernel file cannot be read.
        fault = self._catalog.file_fault(kernel)
        context = (
            None
            if measured_on is None or fault
            else self._machine.build_context(kernel, environment, key_problem, measured_on)
        )
        doubt = "" if context is None else self._certainty.find_doubt(kernel, environment, measured_on)
        if context is not None and (bucket is None or not bucket.is_current):
            doubt = doubt or NO_BUCKET
        # The ladder decides.
        if is_exact(by) and model is not None:
            kernel = kernel.with_anchor(
                self._store.anchors.find_anchor(kernel.make_winner_key(key_problem, model, by)), by
            )
        kept = self._portfolios.kept.find_portfolio(kernel, model, by)
        winners = self.served.list_winners(kernel, environment)
        verdict = self.served.find_verdict(kernel, environment, key_problem, model, by)
        found = decide_answer(
            kernel,
            key_problem,
            model,
            context,
            winners,
            admits or (lambda config: self._admission.known_verdict(kernel, problem, config)),
            is_certain=not doubt,
            objective=by,
            has_failed=lambda config: context is not None and self._store.has_failed(context, config),
            portfolio=None if kept is None else kept.portfolio,
        )
        # Queue the work that would improve the answer.
        if found.undecided:
            self._follow_ups.queue_check(kernel, problem, found.undecided)
        # A tuning that failed for these very files would fail again, so the answer gives the failure instead.
        failed = "" if context is None else self._jobs.find_last_failure(context, by, kernel.plan_digest)
        failure = f"its tuning failed: {failed}" if failed else fault
        if verdict is not None and verdict.broken_by and not failure:
            failure = verdict.describe()
        if not failure and measured_on is not None and measured_on.no_energy and kernel.needs_energy(by):
            failure = explain_unmeasurable(by, measured_on)
        if verdict is not None and verdict.waiting and measured_on is not None and not failure:
            failure = self._find_failure(kernel, environment, measured_on, by, verdict)
        if tune and found.wants_tuning and context is not None and measured_on is not None and not failure:
            awaits_portfolio = kept is None and found.status in (Status.NEAR, Status.DEFAULT)
            # A portfolio cannot answer with exact numerics, because its configs' bits are not compared on this problem.
            is_its = not is_exact(by) and (found.expected_loss is not None or awaits_portfolio)
            if not (is_its and self._portfolios.count_lookup(kernel, context.device, by, problem)):
                # A group has a winner only once all its problems are tuned, so all that are missing are queued.
                waiting = () if verdict is None else verdict.waiting
                for asked in map(json.loads, waiting) if waiting else (key_problem,):
                    asked_context = self._machine.build_context(kernel, environment, asked, measured_on)
                    self._follow_ups.queue_tuning(kernel, asked, asked_context, by)
                # Count this lookup, and those that got the previous answer from its shortcut.
                self._jobs.count_lookups(context.key_for(by), 1 + self.shortcuts.repeats)
        # Say why the answer is not better, by the most specific reason that applies.
        incumbent = found.winner
        message = doubt or failure
        if found.status is Status.FRESH:
            message = "" if incumbent is None else incumbent.note
        is_noisy_one = (
            incumbent is not None and not needs_metric(by) and is_noisy(incumbent.latency_us, incumbent.spread_us)
        )
        if is_noisy_one and incumbent is not None and not message:
            message = describe_noise(incumbent.latency_us, incumbent.spread_us or 0.0)
        if is_exact(by) and found.is_current and incumbent is not None and context is not None and not message:
            fastest = self._store.list_best_trials(context, 1, objective=strip_numerics(by))
            if fastest and not needs_metric(by):
                message = describe_price(incumbent.latency_us, fastest[0].latency_us)
        if verdict is not None and not message and (found.is_current or verdict.waiting):
            message = verdict.describe()
        if found.is_unobserved:
            message = explain_unobserved(kernel)
        if found.status is Status.DEFAULT and found.config is None and kernel.default is not None:
            message = failure or "the space does not admit the default for this problem"
        if found.status is Status.DEFAULT and not message:
            message = _why_untuned(found.wants_tuning and tune, device, is_here=context is not None)
        decided = None if incumbent is None else incumbent.decided
        answer = Answer(
            kernel=kernel.name,
            problem=problem,
            device=model,
            status=found.status,
            config=None if found.config is None else kernel.order_config(found.config),
            latency_us=None if incumbent is None else incumbent.latency_us,
            # Only an artifact of this very problem and source can be launched without compiling again.
            artifact=self._locate_artifact(incumbent) if incumbent is not None and found.is_current else None,
            age_s=compute_age(decided),
            decided=decided,
            file=kernel.file,
            message=message,
            generation=self.table.generation(kernel.name),
            is_final=found.is_final and not is_noisy_one,
            metrics={} if incumbent is None else incumbent.metrics,
            measured=None if incumbent is None else self._find_measured_problem(kernel, problem, incumbent),
            objective=by,
            expected_loss=found.expected_loss,
        )
        return Lookup(answer, found.is_certain, found.undecided, failure)

    def _find_failure(
        self, kernel: KernelInfo, environment: Environment, device: Device, by: Objective, verdict: Verdict
    ) -> str:
        """Return why a group waits for a problem that cannot be tuned; empty if all its problems may be tuned."""
        for problem in verdict.waiting:
            context = self._machine.build_context(kernel, environment, json.loads(problem), device)
            if failed := self._jobs.find_last_failure(context, by, kernel.plan_digest):
                return f"{verdict.describe()}: the tuning of {problem} failed: {failed}"
        return ""

    async def settle_answer(self, found: Lookup, look_up: Callable[[], Lookup], ends_at: float) -> Lookup:
        """Return ``found``, or the answer of ``look_up`` after a worker has said which configs the space has.

        Only the kernel file's own code may know whether the winner of the nearest size is valid for this one. At
        ``ends_at`` (by ``monotonic``) the best answer so far is returned; all lookups of one request share that end.
        """
        with anyio.move_on_after(max(0.0, ends_at - monotonic())), suppress(KtunedError):
            for _ in range(MAX_SETTLED):
                if not found.undecided:
                    break
                kernel = self._catalog.resolve_kernel(found.answer.kernel)
                await self._follow_ups.await_check(kernel, found.answer.problem, found.undecided)
                found = look_up()
        return found

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

    def _locate_artifact(self, incumbent: Winner) -> str | None:
        path = None if incumbent.artifact is None else self._artifacts.find_artifact(incumbent.artifact)
        if path is None or incumbent.artifact is None:
            return None
        self._artifacts.mark_served(incumbent.artifact)
        return str(path)

    async def run_until_cancelled(self) -> None:
        """Carry out the follow-ups of lookups, and keep the table of winners up to date, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_ups.run_until_cancelled)
            tasks.start_soon(self._publication.run_until_cancelled)


def _why_untuned(is_queued: bool, device: str | None, *, is_here: bool) -> str:
    """Return why an answer is only the default."""
    if is_queued:
        return "not tuned yet for this problem; its tuning is queued"
    if not is_here:
        return f"not tuned for this problem, and {device or 'its device'} is not here to measure on"
    return "not tuned yet for this problem"
