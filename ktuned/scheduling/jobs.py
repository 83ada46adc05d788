"""Jobs: what the rest of the daemon asks of them and may see of them, over the job machine and its dispatcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import time

import anyio

from ktuned.fleet import Lane
from ktuned.model import (
    LATENCY,
    Context,
    IllegalMove,
    Job,
    JobState,
    KtunedError,
    NotFound,
    Objective,
    Plan,
    Problem,
    StoreError,
    WinnerKey,
    median,
)
from ktuned.protocol import ChannelInfo, JobCounts, JobInfo, PublishEvent, TuningPaused, TuningResumed
from ktuned.scheduling.dispatcher import Dispatcher, describe_failure
from ktuned.scheduling.job_events import (
    Arrived,
    BeginAgainAsked,
    CancelAsked,
    Inspected,
    Joined,
    PauseAsked,
    ResumeAsked,
    TakenUp,
)
from ktuned.scheduling.job_machine import JobMachine
from ktuned.scheduling.queue import Arrival, LaunchCost
from ktuned.store import Store
from ktuned.tuning import JobBrief

UNKNOWN_LATENCY_US = 10.0
"""Assumed latency of a kernel without any winner (a small kernel's): its number of launches decides then."""

MAX_WAITING = 10_000
"""Jobs that may wait; a client that asks for more problems than that has an error in its loop."""


class Jobs:
    """The daemon's jobs. :meth:`run_until_cancelled` works on them; jobs unfinished at its end stay queued."""

    def __init__(
        self,
        machine: JobMachine,
        dispatcher: Dispatcher,
        *,
        store: Store,
        publish: PublishEvent,
    ) -> None:
        self._machine = machine
        self._queue = machine.queue
        self._store = store
        self._publish = publish
        self._dispatcher = dispatcher
        # Between the store and the machine: a job that is in the one is not in the other while this is held.
        self._arriving = anyio.Lock()
        self._outdated: set[int] = set()

    async def run_until_cancelled(self) -> None:
        """Take up what the last daemon left, and work until cancelled."""
        async with self._arriving:
            unfinished = self._store.list_jobs(states=(JobState.QUEUED, JobState.PAUSED), limit=MAX_WAITING)
            for key, launches in self._store.load_launches().items():
                self._record_launches(key, launches)
            await self._dispatcher.handle_event(TakenUp(unfinished))
        await self._dispatcher.run_until_cancelled()

    def request_review(self) -> None:
        """Have it decided again who should run: something that decides it has changed."""
        self._dispatcher.request_review()

    @property
    def stalled(self) -> str:
        """The reason why nothing can be recorded, and so nothing is tuned; empty if all is well."""
        return self._machine.stalled

    async def submit_job(
        self,
        key: WinnerKey,
        problem: Problem,
        *,
        priority: int,
        reason: str,
        plan: Plan,
        any_plan: bool = False,
        is_fixed: bool = False,
    ) -> Arrival:
        """Ask for the winner of a key; a request for work that waits or runs already joins it.

        A new job measures ``problem``, of which the key may hold a part; one that is joined keeps its own.

        One with a larger budget extends a job that waits; beside one that runs with less, or one that goes about it
        another way, a second job follows, which finds known what the first has measured. With ``any_plan`` it joins
        whatever does the work. ``is_fixed`` keeps the priority as it is while clients wait for the job.

        Raises:
            StoreError: it cannot be recorded.
        """
        plan = replace(plan, objective=key.objective)
        wanted = None if any_plan else plan
        async with self._arriving:
            found = self._machine.find_matching_job(key, wanted, self._outdated)
            if found is not None:
                await self._dispatcher.handle_event(Joined(found.id, priority, reason, wanted, is_fixed))
                return Arrival(self.get_job(found.id) or found, is_new=False)
            if len(self._queue) >= MAX_WAITING:
                raise StoreError(f"{MAX_WAITING} jobs wait already", hint="cancel some: `ktuned jobs KERNEL --cancel`")
            job = await self._store.create_job(key, problem, priority=priority, reason=reason, plan=plan, now=time())
            await self._dispatcher.handle_event(Arrived(job, is_fixed))
        return Arrival(job, is_new=True)

    def count_lookups(self, wanted: WinnerKey, times: int = 1) -> None:
        """Count lookups that a waiting job would serve: the more and the later they are, the sooner it runs."""
        self._queue.count_lookups(wanted, times)

    async def note_launches(self, counts: Mapping[WinnerKey, int]) -> None:
        """Add launches that applications have counted: of equals, the job goes first whose key costs them most time.

        Raises:
            StoreError: they cannot be recorded; they count until the daemon ends.
        """
        counts = {key._replace(objective=LATENCY): count for key, count in counts.items() if count > 0}
        for key, count in counts.items():
            self._record_launches(key, self._queue.find_launch_cost(key).launches + count)
        self.request_review()
        await self._store.add_launches(counts, time())

    def _record_launches(self, key: WinnerKey, launches: int) -> None:
        """Record a key's launches so far, and their cost by its winner, or by the kernel's other ones."""
        winner = self._store.get_winner(key)
        known = [winner] if winner is not None else self._store.list_winners(key.kernel)
        latency_us = median([winner.latency_us for winner in known]) if known else UNKNOWN_LATENCY_US
        self._queue.record_launch_cost(key, LaunchCost(launches, launches * latency_us / 1e6))

    def add_waiter(self, waiter: Hashable, jobs: Collection[int]) -> None:
        """Note that a client waits for jobs; they go first until it leaves."""
        self._queue.add_waiter(waiter, jobs)
        self.request_review()

    def remove_waiter(self, waiter: Hashable) -> None:
        """Note that a client waits no longer."""
        self._queue.remove_waiter(waiter)
        self.request_review()

    def release_inspected(self, kernel: str) -> None:
        """Let a kernel's jobs run that waited for its files to be inspected."""
        self._machine.handle_event(Inspected(kernel))
        self.request_review()

    async def record_failed_job(
        self, key: WinnerKey, problem: Problem, *, reason: str, plan: Plan, priority: int, error: KtunedError
    ) -> Job:
        """Record a job that cannot even wait for a device, because there is none; its key names none."""
        job = await self._store.create_job(key, problem, priority=priority, reason=reason, plan=plan, now=time())
        ended = replace(job, state=JobState.FAILED, message=describe_failure(error), finished=time())
        return await self._dispatcher.close_job(ended)

    async def cancel_job(self, job_id: int, reason: str = "cancelled") -> Job:
        """Stop a job, whatever it does; returns it as it ends.

        Raises:
            NotFound: there is no such job, or it has ended.
        """
        if self._machine.find_running_job(job_id) is not None:
            return await self._stop_job(CancelAsked(job_id, reason), JobState.CANCELLED)
        async with self._arriving:
            return await self._stop_job(CancelAsked(job_id, reason), JobState.CANCELLED)

    async def pause_job(self, job_id: int) -> Job:
        """Let a job wait until it is resumed, in the next daemon's life too; what it measured stays known.

        Raises:
            NotFound: there is no such job, or it has ended, or it is being cancelled.
            StoreError: it cannot be recorded.
        """
        return await self._stop_job(PauseAsked(job_id), JobState.PAUSED)

    async def _stop_job(self, event: CancelAsked | PauseAsked, state: JobState) -> Job:
        """Give the machine an event that stops a job; return the job as it will be when its pipeline has ended."""
        job = self._get_live_job(event.job)
        try:
            closed = await self._dispatcher.handle_event(event)
        except IllegalMove:
            raise NotFound(f"job {event.job} is being cancelled") from None
        return closed or replace(self._with_progress(self._machine.find_job(event.job) or job), state=state)

    async def resume_job(self, job_id: int) -> Job:
        """Let a paused job run again; do nothing if it is not paused.

        Raises:
            NotFound: there is no such job, or it has ended.
            StoreError: it cannot be recorded.
        """
        job = self._get_live_job(job_id)
        await self._dispatcher.handle_event(ResumeAsked(job_id))
        return self._with_progress(self._machine.find_job(job_id) or job)

    def _get_live_job(self, job_id: int) -> Job:
        job = self._machine.find_job(job_id)
        if job is not None:
            return job
        known = self._store.get_job(job_id)
        if known is None:
            raise NotFound(f"there is no job {job_id}", hint="`ktuned jobs` lists them")
        raise NotFound(f"job {job_id} is {known.state} already")

    async def pause_devices(self, devices: Collection[str], *, is_paused: bool) -> None:
        """Let nothing run on device models (``EVERYTHING``: on none) until that is taken back.

        Raises:
            StoreError: it cannot be recorded.
        """
        pauses = self._queue.pauses | {*devices} if is_paused else self._queue.pauses - {*devices}
        await self._store.save_pauses(pauses)
        self._queue.pauses = pauses
        self.request_review()
        for device in sorted(devices):
            self._publish((TuningPaused if is_paused else TuningResumed)(device=device, reason="asked for"))

    @property
    def pauses(self) -> set[str]:
        """The device models that are paused; ``EVERYTHING`` when all are."""
        return set(self._queue.pauses)

    def mark_outdated(self, kernels: Collection[str]) -> None:
        """Note that jobs of some kernels work on an older state than the catalog's: no request joins them any more."""
        live = [*self._machine.running, *self._queue]
        known = self._outdated & {job.id for job in live}
        self._outdated = known | {job.id for job in live if job.kernel in kernels}

    async def restart_outdated(self, kernel: str, is_still_wanted: Callable[[Job], bool]) -> list[int]:
        """Restart a kernel's jobs that work on an older state and are still wanted; cancel the others.

        Return the ids of those that were cancelled. Jobs of the present state are left as they are.
        """
        stopped = []
        for job in [job for job in (*self._machine.running, *self._queue) if job.kernel == kernel]:
            if job.id not in self._outdated:
                continue
            if is_still_wanted(job):
                await self._begin_again(job, "begun again: its files changed")
                continue
            # It may have ended meanwhile.
            with suppress(NotFound):
                stopped.append((await self.cancel_job(job.id, "superseded by a newer state of its files")).id)
        return stopped

    async def cancel_jobs_of_kernel(self, kernel: str) -> list[int]:
        """Cancel what works on a kernel; return the ids of those jobs."""
        self.mark_outdated([kernel])
        return await self.restart_outdated(kernel, lambda job: False)

    async def restart_running(self, kernel: str, reason: str, is_outdated: Callable[[JobBrief], bool]) -> None:
        """Restart a kernel's running jobs whose brief is outdated."""
        for job in self._machine.running:
            task = self._dispatcher.pipelines.get(job.id)
            if job.kernel == kernel and task is not None and is_outdated(task.pipeline.brief):
                await self._begin_again(job, reason)

    async def _begin_again(self, job: Job, reason: str) -> None:
        """Let a job be prepared again when its turn comes; its clients keep waiting for it."""
        self._outdated.discard(job.id)
        # It may have ended meanwhile, with a result of its own.
        with suppress(IllegalMove):
            await self._dispatcher.handle_event(BeginAgainAsked(job.id, reason))

    def find_last_failure(self, context: Context, objective: Objective, plan_digest: str) -> str:
        """Return how the newest job in this very context failed, all its configs tried; nothing if none did."""
        return self._machine.failures.find_message(context, plan_digest, objective)

    def forget_failures(self, kernel: str | None = None) -> None:
        """Let lookups ask again for what failed, of one kernel or of all."""
        self._machine.failures.forget_failures(kernel)

    def list_live_jobs(self) -> list[Job]:
        """Return what runs, then what waits in its order."""
        return [self._with_progress(job) for job in self._machine.running] + list(self._queue)

    def get_job(self, job_id: int) -> Job | None:
        """Return a job with its newest figures."""
        live = self._machine.find_job(job_id)
        return self._store.get_job(job_id) if live is None else self._with_progress(live)

    def _with_progress(self, job: Job) -> Job:
        task = self._dispatcher.pipelines.get(job.id)
        return job if task is None else task.pipeline.progress.stamp_job(job)

    def describe_job(self, job: Job) -> JobInfo:
        """Return a job as it is reported, with how it stands now."""
        return self._dispatcher.describe_job(job)

    def count_jobs(self) -> JobCounts:
        """Return how many live jobs there are by state, and why some wait although their device may be free."""
        states = Counter(job.state for job in self.list_live_jobs())
        waits = Counter(filter(None, map(self._queue.explain_wait, self._queue)))
        return JobCounts(states[JobState.QUEUED], states[JobState.RUNNING], states[JobState.PAUSED], waits)

    def join_devices(self) -> None:
        """Let running jobs measure on devices that have come meanwhile."""
        self._dispatcher.join_devices()

    @property
    def policy(self) -> str:
        """When tuning yields to others: the ``policy`` of ``config.toml``."""
        return self._dispatcher.idle_policy.policy

    def list_lanes(self) -> list[Lane]:
        """Return every lane that has been opened."""
        return list(self._dispatcher.lanes.values())

    def describe_channels(self) -> dict[str, ChannelInfo]:
        """Return how full the running jobs' channels are."""
        return {
            f"{name} (job {job})": figures
            for job, task in self._dispatcher.pipelines.items()
            for name, figures in task.pipeline.describe_channels().items()
        }
