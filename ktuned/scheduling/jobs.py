"""Jobs: the interface of the job machine and its dispatcher for the rest of the daemon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from time import time

import anyio
from msgspec.structs import replace

from ktuned.fleet import Lane
from ktuned.model import (
    LATENCY,
    IllegalMove,
    Job,
    JobState,
    KeyProblem,
    KtunedError,
    NotFound,
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
"""Assumed latency of a kernel without winners, that of a small kernel: such kernels are ordered by their launches."""

MAX_WAITING = 10_000
"""Most jobs that may wait. A client that asks for more problems than this has an error in its loop."""


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
        # Held while a job may be in the store and not yet in the machine.
        self._arriving = anyio.Lock()
        self._outdated: set[int] = set()

    async def run_until_cancelled(self) -> None:
        """Take up the previous daemon's unfinished jobs, and work until cancelled."""
        async with self._arriving:
            unfinished = self._store.list_jobs(states=(JobState.QUEUED, JobState.PAUSED), limit=MAX_WAITING)
            for key, launches in self._store.load_launches().items():
                self._record_launches(key, launches)
            await self._dispatcher.handle_event(TakenUp(unfinished))
        await self._dispatcher.run_until_cancelled()

    def request_review(self) -> None:
        """Have the choice of running jobs reconsidered soon, because something that it depends on has changed."""
        self._dispatcher.request_review()

    @property
    def stalled(self) -> str:
        """The reason why nothing can be recorded, and therefore nothing is tuned; empty if there is none."""
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
        """Request the winner of a key, by a new job or by one that waits or runs already.

        A waiting job is joined if one plan can do the work of both; it gets the larger budget. A running job is joined
        if its budget is large enough. Otherwise there is a new job, which runs later and finds the other's results.

        Args:
            key: The key.
            problem: The problem that a new job measures, of which the key may hold a part. A joined job keeps its own.
            priority: The priority of the request, which may raise a joined job's.
            reason: Why the job is wanted.
            plan: How to search.
            any_plan: Join a job for this key whatever its plan is.
            is_fixed: Keep the priority as it is while clients wait for the job.

        Raises:
            StoreError: The job cannot be recorded.
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
        """Count lookups that a waiting job would serve: many and recent lookups make it run sooner."""
        self._queue.count_lookups(wanted, times)

    async def add_job_launches(self, counts: Mapping[WinnerKey, int]) -> None:
        """Add launches that applications have counted.

        Among equal ranks, the job whose key costs applications the most time runs first.

        Raises:
            StoreError: The launches cannot be recorded; they count only until the daemon ends.
        """
        counts = {key._replace(objective=LATENCY): count for key, count in counts.items() if count > 0}
        for key, count in counts.items():
            self._record_launches(key, self._queue.find_launch_cost(key).launches + count)
        self.request_review()
        await self._store.add_launches(counts, time())

    def list_launches(self, kernel: str, device: str) -> dict[KeyProblem, int]:
        """Return how often applications have launched each key of a kernel, tuned or not, on a device model."""
        return self._queue.list_launches(kernel, device)

    def _record_launches(self, key: WinnerKey, launches: int) -> None:
        """Record a key's launches so far, and their cost by its winner's latency, or by the kernel's other winners'."""
        winner = self._store.get_winner(key)
        known = [winner] if winner is not None else self._store.list_winners(key.kernel)
        latency_us = median([winner.latency_us for winner in known]) if known else UNKNOWN_LATENCY_US
        self._queue.record_launch_cost(key, LaunchCost(launches, launches * latency_us / 1e6))

    def add_waiter(self, waiter: Hashable, jobs: Collection[int]) -> None:
        """Note that a client waits for jobs; they have precedence until it leaves."""
        self._queue.add_waiter(waiter, jobs)
        self.request_review()

    def remove_waiter(self, waiter: Hashable) -> None:
        """Note that a client waits no longer."""
        self._queue.remove_waiter(waiter)
        self.request_review()

    def release_inspected_jobs(self, kernel: str) -> None:
        """Let the jobs of a kernel run that waited for an inspection of its files."""
        self._machine.handle_event(Inspected(kernel))
        self.request_review()

    async def record_failed_job(
        self, key: WinnerKey, problem: Problem, *, reason: str, plan: Plan, priority: int, error: KtunedError
    ) -> Job:
        """Record a job that failed at once because there is no device for it; its key names no device."""
        job = await self._store.create_job(key, problem, priority=priority, reason=reason, plan=plan, now=time())
        ended = replace(job, state=JobState.FAILED, message=describe_failure(error), finished=time())
        return await self._dispatcher.close_job(ended)

    async def cancel_job(self, job_id: int, reason: str = "cancelled") -> Job:
        """Cancel a job, whether it waits or runs; return it with its final state.

        Raises:
            NotFound: There is no such job, or it has ended.
        """
        if self._machine.find_running_job(job_id) is not None:
            return await self._stop_job(CancelAsked(job_id, reason), JobState.CANCELLED)
        async with self._arriving:
            return await self._stop_job(CancelAsked(job_id, reason), JobState.CANCELLED)

    async def pause_job(self, job_id: int) -> Job:
        """Let a job wait until it is resumed, even by a later daemon; its results so far are kept.

        Raises:
            NotFound: There is no such job, or it has ended, or it is being cancelled.
            StoreError: The pause cannot be recorded.
        """
        return await self._stop_job(PauseAsked(job_id), JobState.PAUSED)

    async def _stop_job(self, event: CancelAsked | PauseAsked, state: JobState) -> Job:
        """Give the machine an event that stops a job; return the job with its state after its pipeline's end."""
        job = self._get_live_job(event.job)
        try:
            closed = await self._dispatcher.handle_event(event)
        except IllegalMove:
            raise NotFound(f"job {event.job} is being cancelled") from None
        return closed or replace(self._stamp_progress(self._machine.find_job(event.job) or job), state=state)

    async def resume_job(self, job_id: int) -> Job:
        """Let a paused job run again; do nothing if it is not paused.

        Raises:
            NotFound: There is no such job, or it has ended.
            StoreError: The end of the pause cannot be recorded.
        """
        job = self._get_live_job(job_id)
        await self._dispatcher.handle_event(ResumeAsked(job_id))
        return self._stamp_progress(self._machine.find_job(job_id) or job)

    def _get_live_job(self, job_id: int) -> Job:
        job = self._machine.find_job(job_id)
        if job is not None:
            return job
        known = self._store.get_job(job_id)
        if known is None:
            raise NotFound(f"there is no job {job_id}", hint="`ktuned jobs` lists them")
        raise NotFound(f"job {job_id} is {known.state} already")

    async def pause_devices(self, devices: Collection[str], *, is_paused: bool) -> None:
        """Pause device models, or end their pause: no job runs on a paused one. ``EVERYTHING`` stands for all of them.

        Raises:
            StoreError: The change cannot be recorded.
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

    def mark_jobs_outdated(self, kernels: Collection[str]) -> None:
        """Note that live jobs of some kernels work on an older state of the files, so that no request joins them."""
        live = [*self._machine.running, *self._queue]
        known = self._outdated & {job.id for job in live}
        self._outdated = known | {job.id for job in live if job.kernel in kernels}

    async def restart_outdated_jobs(self, kernel: str, is_still_wanted: Callable[[Job], bool]) -> list[int]:
        """Restart a kernel's jobs for an older state of its files if they are still wanted; otherwise cancel them.

        Jobs for the present state are left alone.

        Returns:
            The ids of the cancelled jobs.
        """
        stopped = []
        for job in [job for job in (*self._machine.running, *self._queue) if job.kernel == kernel]:
            if job.id not in self._outdated:
                continue
            if is_still_wanted(job):
                await self._begin_again(job, "restarted: its files changed")
                continue
            # The job may have ended meanwhile.
            with suppress(NotFound):
                stopped.append((await self.cancel_job(job.id, "replaced by a job for the newer state of its files")).id)
        return stopped

    async def cancel_jobs_of_kernel(self, kernel: str) -> list[int]:
        """Cancel all live jobs of a kernel; return their ids."""
        self.mark_jobs_outdated([kernel])
        return await self.restart_outdated_jobs(kernel, lambda job: False)

    async def restart_running_jobs(self, kernel: str, reason: str, is_outdated: Callable[[JobBrief], bool]) -> None:
        """Restart a kernel's running jobs whose brief is outdated."""
        for job in self._machine.running:
            task = self._dispatcher.pipelines.get(job.id)
            if job.kernel == kernel and task is not None and is_outdated(task.pipeline.brief):
                await self._begin_again(job, reason)

    async def _begin_again(self, job: Job, reason: str) -> None:
        """Have a job prepared again when its turn comes; its clients keep waiting for it."""
        self._outdated.discard(job.id)
        # The job may have ended meanwhile, with its own result.
        with suppress(IllegalMove):
            await self._dispatcher.handle_event(BeginAgainAsked(job.id, reason))

    def forget_failures(self, kernel: str | None = None) -> None:
        """Forget failures of one kernel or of all, so that lookups may request the same jobs again."""
        self._machine.failures.forget_failures(kernel)

    def list_live_jobs(self) -> list[Job]:
        """Return the running jobs, then the waiting jobs in their order."""
        return [self._stamp_progress(job) for job in self._machine.running] + list(self._queue)

    def get_job(self, job_id: int) -> Job | None:
        """Return a job with its newest figures."""
        live = self._machine.find_job(job_id)
        return self._store.get_job(job_id) if live is None else self._stamp_progress(live)

    def _stamp_progress(self, job: Job) -> Job:
        task = self._dispatcher.pipelines.get(job.id)
        return job if task is None else task.pipeline.progress.stamp_job(job)

    def describe_job(self, job: Job) -> JobInfo:
        """Return a job's public description, with its present progress or the reason for its wait."""
        return self._dispatcher.describe_job(job)

    def count_jobs(self) -> JobCounts:
        """Return the numbers of live jobs by state, and of waiting jobs by the reason why they must not run now."""
        states = Counter(job.state for job in self.list_live_jobs())
        waits = Counter(filter(None, map(self._queue.explain_wait, self._queue)))
        return JobCounts(states[JobState.QUEUED], states[JobState.RUNNING], states[JobState.PAUSED], waits)

    def add_new_devices(self) -> None:
        """Let running jobs also measure on new devices."""
        self._dispatcher.add_new_devices()

    @property
    def policy(self) -> str:
        """When tuning yields to others: the ``policy`` of ``config.toml``."""
        return self._machine.idle_policy.policy

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
