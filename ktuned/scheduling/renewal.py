"""Renewal: the reaction to an inspection that finds changed kernels, and to a new driver or toolchain.

An inspection compares digests, and so knows how far a change reaches (:class:`~ktuned.catalog.Changes`):

==============  =====================================================================================================
added           tuned if it was saved just now; else nothing happens before a request or a lookup
changed         its measurements no longer hold: winners become stale, and problems that were tuned are tuned again
replanned       its measurements hold: only the space, the problems or the budgets differ, and the search continues
removed         its jobs are cancelled; its results stay in the store
==============  =====================================================================================================

Two things happen, in this order. First, jobs for the older state are handled: a job that is still wanted begins again,
and keeps the clients that wait for it; a job that the save replaces by a new one is cancelled. Then follows re-tuning:
for each problem, the best config known in the new context is served at once (an undone edit finds its old winner), and
a job is requested to find a better one.

A re-tuning needs the store to record its job. If that fails, the kernel is remembered and retried, so that a full disk
delays the re-tuning after a save but does not lose it.

*Re-verification.* After a driver or toolchain has changed, the best known configs of the kernels that have not changed
themselves are measured again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from functools import partial

import anyio
import anyio.lowlevel
import msgspec
import structlog
from msgspec.structs import replace

from ktuned.answers import Knowledge
from ktuned.catalog import Changes, read_problem
from ktuned.fleet import Environment
from ktuned.model import (
    PRESETS,
    BackendError,
    KernelInfo,
    KtunedError,
    Objective,
    Plan,
    Problem,
    StoreError,
    UsageError,
    WinnerKey,
    WorkerError,
    canonical,
)
from ktuned.protocol import Job, KernelsReloaded, KernelStale, Priority, PublishEvent
from ktuned.scheduling.job_requests import JobRequests, TuningRequest
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.preparation import find_present_key
from ktuned.store import Winner
from ktuned.tuning import JobBrief, PresentKey, publish_winner, restore_winner

_log = structlog.get_logger()

ELSEWHERE = "restarted: the environment of its project changed"

NEW_TOOLCHAIN = "a driver or toolchain changed"

QUIETER = "the machine is quieter than when it was measured"

RETRY_S = 5.0
"""Interval of retries if the store could not record a re-tuning."""

TRUSTED = 5
"""Number of best old configs that are measured again. A new driver shifts figures, but slower configs rarely win
then."""


class Renewal(msgspec.Struct, eq=False):
    """Re-tunes changed kernels, and has winners of an older driver or toolchain measured again.

    :meth:`retry_unrecorded` repeats re-tunings that the store could not record.
    """

    known: Knowledge
    jobs: Jobs
    requests: JobRequests
    publish: PublishEvent
    _postponed: dict[str, bool] = {}
    _postponed_because: str = ""
    _was_postponed: anyio.Event = msgspec.field(default_factory=anyio.Event)

    @property
    def notice(self) -> str:
        """One line about saves that the store could not record yet; empty if there are none."""
        return (
            f"{', '.join(sorted(self._postponed))} is tuned again later: {self._postponed_because}"
            if self._postponed
            else ""
        )

    async def retry_unrecorded(self) -> None:
        """Repeat re-tunings that the store could not record until they succeed; run until cancelled."""
        while True:
            await self._was_postponed.wait()
            _log.warning("retune_postponed", kernels=sorted(self._postponed), reason=self._postponed_because)
            while self._postponed:
                await anyio.sleep(RETRY_S)
                again, self._postponed = self._postponed, {}
                for name, saved in again.items():
                    await self._retune_kernel(name, saved=saved)
            self._was_postponed = anyio.Event()

    async def react_to_changes(self, changes: Changes, saved: bool) -> None:
        """Publish changes, stop the jobs that they outdate, and re-tune the kernels in use.

        In use are kernels that were saved just now (``saved``), and kernels that have been tuned before.
        """
        await self.replace_outdated_jobs(changes, saved=saved)
        await self.retune_changed_kernels(changes, saved=saved)

    async def replace_outdated_jobs(self, changes: Changes, *, saved: bool) -> None:
        """Publish changes; cancel the jobs that a save replaces, and restart the others that they outdate."""
        # At any await, a root may be removed together with its kernels.
        for name in changes.inspected:
            if (found := self.known.catalog.find_kernel(name)) is not None:
                environment = self.known.catalog.find_kernel_environment(found)
                await self.jobs.restart_running_jobs(name, ELSEWHERE, partial(_has_other_environment, environment))
            self.jobs.release_inspected_jobs(name)
        for kernel in self.known.catalog.kernels if changes.errors else ():
            if self.known.catalog.find_file_fault(kernel):
                # A job that waits for an inspection of this file can run now: it will end with the file's error.
                self.jobs.release_inspected_jobs(kernel.name)
        if not changes:
            return
        self.publish(
            KernelsReloaded(
                added=changes.added,
                changed=changes.changed,
                replanned=changes.replanned,
                removed=changes.removed,
                mended=changes.mended,
                errors=changes.errors,
            )
        )
        for name in changes.removed:
            await self.jobs.cancel_jobs_of_kernel(name)
        for name in (*changes.changed, *changes.replanned):
            if (found := self.known.catalog.find_kernel(name)) is None:
                continue
            # After a save, the jobs for its keys are new ones, because the client that shows the save follows those.
            replaced = self._list_keys_tuned_again(found) if saved and not changes.is_environment else frozenset()
            await self.jobs.restart_outdated_jobs(name, partial(_is_still_wanted, found, replaced))
            if name in changes.changed:
                self.publish(KernelStale(kernel=found.name, digest=found.digest))

    def _list_keys_tuned_again(self, kernel: KernelInfo) -> frozenset[WinnerKey]:
        """Return the keys that are tuned again after a save."""
        try:
            device = self.known.machine.find_device(
                self.known.catalog.find_kernel_environment(kernel), kernel.backend, None
            ).model
        except BackendError:
            return frozenset()
        won = self.known.store.list_winners(kernel.name)
        problems = {kernel.make_key_problem(problem) for problem in kernel.problems} | {
            one.context.problem for one in won
        }
        objectives = _list_objectives(kernel, [one.objective for one in won])
        return frozenset(
            WinnerKey(kernel.name, problem, device, objective) for problem in problems for objective in objectives
        )

    async def retune_changed_kernels(self, changes: Changes, *, saved: bool) -> None:
        """Re-tune changed kernels: all of them if they were ``saved``, else those that have been tuned before.

        A save in a project whose kernels were only judged tunes nothing. It may be another candidate that is not
        trusted, and a tuning would run it without a sandbox.
        """
        for name in (*changes.added, *changes.changed, *changes.replanned):
            await self._retune_kernel(name, saved=saved, is_stale=name in changes.changed)

    async def _restore_winner(
        self, kernel: KernelInfo, problem: Problem, objective: Objective, *, is_stale: bool
    ) -> None:
        """Serve the best known config at once, after an edit was undone or removed the winner's config from the space.

        If the kernel ``is_stale``, clients were told so. Then a winner that still holds is published as well: this
        happens if the undone edit had not led to another winner.
        """
        environment = self.known.catalog.find_kernel_environment(kernel)
        for device in self.known.machine.list_devices(environment, kernel.backend):
            context = self.known.machine.build_context(kernel, environment, problem, device)
            finalists = PRESETS[kernel.plan.preset].finalists
            key = PresentKey(kernel, problem, context, objective)
            seated = self.known.store.get_winner(key.winner_key)
            try:
                winner = await restore_winner(
                    self.known.store,
                    self.known.admission,
                    key,
                    finalists,
                    decided_only=seated is None or seated.context != context,
                )
            except WorkerError as error:
                # The job that is requested next checks the space again.
                _log.warning("restore_winner_failed", kernel=kernel.name, reason=error.message)
                continue
            if winner is None and is_stale and seated is not None and seated.context == context:
                # The space may no longer hold the winner's config, without a better one to replace it.
                winner = seated if self.known.admission.find_known_verdict(kernel, problem, seated.config) else None
            if winner is not None:
                publish_winner(self.publish, kernel, winner, None)

    async def _retune_kernel(self, name: str, *, saved: bool, is_stale: bool = False) -> None:
        kernel = self.known.catalog.find_kernel(name)
        if kernel is None:
            return
        winners = self.known.store.list_winners(kernel.name)
        tuned = {winner.context.problem for winner in winners}
        if not tuned and (not saved or self.known.store.is_only_judged(kernel.project)):
            return
        known: dict[str, Problem] = {}
        for problem in kernel.problems:
            known.setdefault(canonical(kernel.select_key_values(problem)), problem)
        for job in filter(None, map(self.known.store.find_job_of_winner, winners)):
            with suppress(UsageError):
                read_problem(kernel, job.problem)
                problem = kernel.choose_representative(job.problem)
                key = canonical(kernel.select_key_values(problem))
                if key in tuned:
                    known.setdefault(key, problem)
        request = TuningRequest(
            priority=Priority.SAVED if saved else Priority.BACKGROUND,
            reason="saved" if saved else "changed while no daemon watched",
            any_plan=True,
        )
        for key, problem in known.items():
            try:
                for objective in _list_objectives(
                    kernel, [won.objective for won in winners if won.context.problem == key]
                ):
                    await self._restore_winner(kernel, problem, objective, is_stale=is_stale)
                    await self.requests.request_jobs(kernel, replace(request, problem=problem, objective=objective))
            except StoreError as error:
                self._postponed[kernel.name] = saved
                self._postponed_because = error.message
                self._was_postponed.set()
                return
            except KtunedError as error:
                _log.warning("retune_refused", kernel=kernel.name, reason=error.message)

    async def queue_reverification(self, kernels: Sequence[KernelInfo] | None = None) -> list[Job]:
        """Queue a job for each winner that must be measured again, of all kernels or of some; return the jobs.

        Winners of kernels that have themselves changed are left out: :meth:`react_to_changes` handles those.
        """
        queued = []
        # Read winners kernel by kernel: a store may hold ten thousand, most of them of kernels that are gone.
        for kernel in self.known.catalog.kernels if kernels is None else kernels:
            await anyio.lowlevel.checkpoint()
            queued += await self._queue_verifications(self.known.store.list_winners(kernel.name), NEW_TOOLCHAIN)
        return queued

    async def remeasure_provisional_winners(self) -> bool:
        """Queue a job for each winner that was measured on a busy machine; return whether there was any."""
        return bool(await self._queue_verifications(self.known.store.list_provisional_winners(), QUIETER))

    async def reverify_probed(self, kernels: Sequence[KernelInfo], changed: Sequence[KernelInfo]) -> None:
        """React to a new probe of some kernels' toolchain: renew the winners of kernels for which it ``changed``.

        Jobs that stopped because they found another toolchain than the one in their artifacts' keys may run again. Jobs
        that began with an older toolchain begin again; others, which began after the probe, are left alone.
        """
        for kernel in changed:
            await self.jobs.restart_running_jobs(
                kernel.name, f"restarted: {NEW_TOOLCHAIN}", partial(self._is_outdated, kernel)
            )
        for kernel in kernels:
            self.jobs.release_inspected_jobs(kernel.name)
        await self.queue_reverification(changed)

    def _is_outdated(self, kernel: KernelInfo, brief: JobBrief) -> bool:
        """Return whether a job began with another toolchain or driver than the kernel has now."""
        environment = self.known.catalog.find_kernel_environment(kernel)
        return self.known.machine.is_outdated(environment, kernel.backend, brief.context)

    async def _queue_verifications(self, winners: Iterable[Winner], reason: str) -> list[Job]:
        """Queue a job for each winner that is to be measured again for ``reason``; return the jobs."""
        queued = []
        for winner in winners:
            kernel = self.known.catalog.find_kernel(winner.context.kernel)
            if kernel is None or winner.context.digest != kernel.digest:
                continue
            try:
                job = await self._queue_verification(kernel, winner, reason)
            except KtunedError as error:
                _log.info("queue_verification_failed", kernel=kernel.name, reason=error.message)
            else:
                queued += [job] if job is not None else []
        return queued

    async def _queue_verification(self, kernel: KernelInfo, winner: Winner, reason: str) -> Job | None:
        job = self.known.store.find_job_of_winner(winner)
        if job is None:
            return None
        read_problem(kernel, job.problem)
        objective, model = kernel.objective(winner.objective), winner.context.device
        present = find_present_key(self.known.catalog, self.known.machine, kernel, job.problem, model, objective)
        if present.context.problem != winner.context.problem:
            raise UsageError(f"{kernel.name} specialises its problems differently now")
        # A new toolchain concerns the winners of other contexts, and a quiet machine those of the present one.
        if (present.context == winner.context) == (reason == NEW_TOOLCHAIN):
            return None
        plan = self._make_verification_plan(kernel, winner) if reason == NEW_TOOLCHAIN else kernel.plan
        arrival = await self.jobs.submit_job(
            present.winner_key, job.problem, priority=Priority.VERIFY, reason=reason, plan=plan
        )
        return arrival.job

    def _make_verification_plan(self, kernel: KernelInfo, winner: Winner) -> Plan:
        """Return the declared plan with a budget for the best configs only; every job begins with these."""
        best = [
            trial.config
            for trial in self.known.store.list_best_trials(winner.context, TRUSTED, objective=winner.objective)
        ]
        first = [winner.config, *(config for config in best if config != winner.config)][:TRUSTED]
        # The default is tried second, because speed-ups are relative to it. It must not displace another config.
        besides = kernel.default is not None and kernel.default not in first
        return replace(kernel.plan, trials=min(kernel.plan.trials, len(first) + besides))


def _has_other_environment(environment: Environment, brief: JobBrief) -> bool:
    return brief.environment != environment


def _is_still_wanted(kernel: KernelInfo, replaced: Container[WinnerKey], job: Job) -> bool:
    """Return whether a job for an older state is still useful in the new state, and no new job does its work."""
    try:
        read_problem(kernel, job.problem)
        objective = job.objective if job.plan.is_judged else kernel.objective(job.objective)
        key = kernel.make_winner_key(job.problem, job.device, objective)
    except UsageError:
        return False
    return key == job.key and (job.plan.compile_only or key not in replaced)


def _list_objectives(kernel: KernelInfo, won: Iterable[Objective]) -> list[Objective]:
    """Return the declared objective, and those of a problem's winners, except for metrics that no longer exist."""
    found = {kernel.objective(None): None}
    for objective in won:
        with suppress(UsageError):
            found[kernel.objective(objective)] = None
    return list(found)
