"""All jobs: taken in, coalesced, run one at a time per device model, stopped when something better is to be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import replace
from time import time
from typing import Any

import anyio

from ktuned.fleet import Fleet, Lane
from ktuned.model import (
    Context,
    Job,
    JobState,
    KtunedError,
    NotFound,
    Plan,
    Priority,
    Problem,
    StoreError,
    WinnerKey,
)
from ktuned.scheduling.dispatcher import MAX_WAITING, Dispatcher, Intervals, Prepare
from ktuned.scheduling.idle_policy import IdlePolicy, Reading
from ktuned.scheduling.queue import Arrival, extended
from ktuned.scheduling.running_job import sentence
from ktuned.store import Artifacts, Store
from ktuned.tuning import Publish, publish_job


class Jobs:
    """The daemon's jobs. :meth:`run` works on them until it is cancelled; what is unfinished then stays queued.

    ``idle_policy`` decides when tuning yields to others, from what ``read`` returns; without it nothing is read.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: Store,
        artifacts: Artifacts,
        prepare: Prepare,
        publish: Publish,
        idle_policy: IdlePolicy | None = None,
        read: Callable[[], Awaitable[Reading]] | None = None,
        intervals: Intervals | None = None,
    ) -> None:
        self._store = store
        self._publish = publish
        self._dispatcher = Dispatcher(
            fleet=fleet,
            store=store,
            artifacts=artifacts,
            prepare=prepare,
            publish=publish,
            idle_policy=idle_policy or IdlePolicy(),
            read=read,
            intervals=intervals or Intervals(),
        )
        self._queue = self._dispatcher.queue
        self._running = self._dispatcher.running
        self._arriving = anyio.Lock()

    async def run(self) -> None:
        """Take up what the last daemon left, and work until cancelled."""
        async with self._arriving:
            # One that is just being recorded is in the store already; who asks for it puts it into the queue, once.
            self._dispatcher.take_up()
        await self._dispatcher.run()

    def review(self) -> None:
        """Ask anew who should run: something that decides it has changed."""
        self._dispatcher.review()

    @property
    def stalled(self) -> str:
        """Why nothing can be recorded, and so nothing is tuned; nothing if all is well."""
        return self._dispatcher.stalled

    async def submit(
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
        whatever does the work. ``is_fixed`` keeps the priority as it is while somebody waits for the job.

        Raises:
            StoreError: it cannot be recorded.
        """
        async with self._arriving:
            joined = await self._join(key, priority, reason, None if any_plan else plan, is_fixed=is_fixed)
            if joined is not None:
                return Arrival(joined, is_new=False)
            if len(self._queue) >= MAX_WAITING:
                raise StoreError(f"{MAX_WAITING} jobs wait already", hint="cancel some: `ktuned cancel KERNEL`")
            job = await self._store.create_job(key, problem, priority=priority, reason=reason, plan=plan, now=time())
            self._queue.add(job, is_fixed=is_fixed)
        publish_job(self._publish, "job_queued", job)
        self.review()
        return Arrival(job, is_new=True)

    async def _join(
        self, wanted: WinnerKey, priority: int, reason: str, plan: Plan | None, *, is_fixed: bool
    ) -> Job | None:
        """Return the job that does the wanted work already, as it is now that one more wants it."""
        running = self._running.get(wanted.device)
        if running is not None and running.does(wanted, plan):
            running.job = self._queue.want(running.job, priority, reason, is_fixed=is_fixed)
            if running.stopped is JobState.PAUSED and priority >= Priority.REQUESTED:
                running.stopped = JobState.QUEUED
            return running.public
        waiting = self._queue.find(wanted, plan)
        if waiting is None:
            return None
        if waiting.state is JobState.PAUSED and priority >= Priority.REQUESTED:
            # Who asks for it by name wants it now.
            waiting = await self._resume_waiting(waiting.id)
        waiting = self._queue.want(waiting, priority, reason, is_fixed=is_fixed)
        larger = waiting.plan if plan is None else extended(waiting.plan, plan)
        if larger is not None and larger != waiting.plan:
            waiting = replace(waiting, plan=larger)
            self._queue.change(waiting)
            await self._store.update_job(waiting)
        self.review()
        return waiting

    def ask(self, wanted: WinnerKey, times: int = 1) -> None:
        """Count lookups that a waiting job would serve: what is asked for more, and now, goes before its equals."""
        self._queue.ask(wanted, times)

    def attend(self, whom: Hashable, jobs: Collection[int]) -> None:
        """Note that somebody waits for jobs; they go first until he leaves."""
        self._queue.attend(whom, jobs)
        self.review()

    def leave(self, whom: Hashable) -> None:
        """Note that somebody waits no longer."""
        self._queue.leave(whom)
        self.review()

    async def fail(
        self, key: WinnerKey, problem: Problem, *, reason: str, plan: Plan, priority: int, error: KtunedError
    ) -> Job:
        """Record a job that cannot even wait for a device, because there is none; its key names none."""
        async with self._arriving:
            job = await self._store.create_job(key, problem, priority=priority, reason=reason, plan=plan, now=time())
            return await self._dispatcher.end(job, JobState.FAILED, sentence(error))

    async def cancel(self, job_id: int) -> Job:
        """Stop a job, whatever it does; returns it as it ended.

        Raises:
            NotFound: there is no such job, or it has ended.
        """
        for running in self._running.values():
            if running.job.id == job_id:
                running.stop(JobState.CANCELLED, "cancelled")
                return replace(running.public, state=JobState.CANCELLED)
        async with self._arriving:
            waiting = self._queue.remove(job_id)
            if waiting is not None:
                return await self._dispatcher.end(waiting, JobState.CANCELLED, "cancelled")
        raise self._no_live_job(job_id)

    def _no_live_job(self, job_id: int) -> NotFound:
        known = self._store.job(job_id)
        if known is None:
            return NotFound(f"there is no job {job_id}", hint="`ktuned jobs` lists them")
        return NotFound(f"job {job_id} is {known.state} already")

    async def pause(self, job_id: int) -> Job:
        """Let a job wait until it is resumed, in the next daemon's life too; what it measured stays known.

        Raises:
            NotFound: there is no such job, or it has ended.
            StoreError: it cannot be recorded.
        """
        for running in self._running.values():
            if running.job.id == job_id and running.stopped is not JobState.CANCELLED:
                running.stop(JobState.PAUSED, "")
                return replace(running.public, state=JobState.PAUSED)
        if self._queue.get(job_id) is None:
            raise self._no_live_job(job_id)
        paused = self._queue.pause(job_id)
        await self._store.update_job(paused)
        publish_job(self._publish, "job_paused", paused)
        return paused

    async def resume(self, job_id: int) -> Job:
        """Let a paused job run again; one that is not paused stays as it is.

        Raises:
            NotFound: there is no such job, or it has ended.
            StoreError: it cannot be recorded.
        """
        for running in self._running.values():
            if running.job.id == job_id:
                if running.stopped is JobState.PAUSED:
                    running.stopped = JobState.QUEUED
                return running.public
        waiting = self._queue.get(job_id)
        if waiting is None:
            raise self._no_live_job(job_id)
        return await self._resume_waiting(job_id) if waiting.state is JobState.PAUSED else waiting

    async def _resume_waiting(self, job_id: int) -> Job:
        resumed = self._queue.resume(job_id)
        await self._store.update_job(resumed)
        publish_job(self._publish, "job_queued", resumed)
        self.review()
        return resumed

    async def pause_devices(self, devices: Collection[str], *, is_paused: bool) -> None:
        """Let nothing run on device models (``EVERYTHING``: on none) until that is taken back.

        Raises:
            StoreError: it cannot be recorded.
        """
        pauses = self._queue.pauses | {*devices} if is_paused else self._queue.pauses - {*devices}
        await self._store.save_pauses(pauses)
        self._queue.pauses = pauses
        for device in sorted(devices):
            self._publish("paused" if is_paused else "resumed", device=device, reason="asked for")
        self.review()

    @property
    def pauses(self) -> set[str]:
        """The device models that are paused; ``EVERYTHING`` when all are."""
        return set(self._queue.pauses)

    async def supersede(self, kernel: str) -> list[int]:
        """Cancel what works on an older state of a kernel; return the ids of those jobs."""
        message = "superseded by a newer state of its files"
        stopped = []
        for running in self._running.values():
            if running.job.kernel == kernel:
                running.stop(JobState.CANCELLED, message)
                stopped.append(running.job.id)
        for job in [job for job in self._queue if job.kernel == kernel]:
            async with self._arriving:
                waiting = self._queue.remove(job.id)
                if waiting is not None:
                    await self._dispatcher.end(waiting, JobState.CANCELLED, message)
                    stopped.append(job.id)
        return stopped

    def inspected(self, kernel: str) -> None:
        """Note that the catalog knows a kernel's files as they are now; jobs that waited for that go on."""
        self._dispatcher.inspections[kernel] += 1
        self._queue.release(kernel)
        self.review()

    def failure(self, ground: Context, plan_digest: str) -> str:
        """Return how the newest job on this very ground failed, all its configs tried; nothing if none did."""
        return self._dispatcher.failed.message(ground, plan_digest)

    def forget_failures(self, kernel: str | None = None) -> None:
        """Let lookups ask again for what failed, of one kernel or of all."""
        self._dispatcher.failed.forget(kernel)

    def live(self) -> list[Job]:
        """Return what runs, then what waits in its order."""
        return [running.public for running in self._running.values()] + list(self._queue)

    def job(self, job_id: int) -> Job | None:
        """Return a job with its newest figures."""
        return next((job for job in self.live() if job.id == job_id), None) or self._store.job(job_id)

    def describe(self, job: Job) -> dict[str, Any]:
        """Return the protocol's job map, with how the job stands now: ``priority waiters left_s waits_for``."""
        public = job.to_wire() | {"waiters": self._queue.waiters(job.id), "left_s": None, "waits_for": ""}
        running = self._running.get(job.device)
        if running is not None and running.job.id == job.id:
            return public | {"priority": self._queue.level(job.id), "left_s": running.pipeline.progress.left_s}
        if self._queue.get(job.id) is None:
            return public
        obstacle = self._queue.obstacle(job)
        if not obstacle and running is not None:
            obstacle = f"job {running.job.id} has the device"
        return public | {"priority": self._queue.level(job.id), "waits_for": obstacle or self.stalled}

    def obstacles(self) -> dict[str, int]:
        """Return why jobs wait although their device may be free, and how many do for each reason."""
        return dict(Counter(filter(None, map(self._queue.obstacle, self._queue))))

    def lanes(self) -> list[Lane]:
        """Return every lane that has been opened."""
        return list(self._dispatcher.lanes.values())

    def channels(self) -> dict[str, Mapping[str, int]]:
        """Return how full the running jobs' channels are."""
        return {
            f"{name} (job {running.job.id})": figures
            for running in self._running.values()
            for name, figures in running.pipeline.statistics().items()
        }
