"""All jobs: taken in, coalesced, run one at a time per device model, stopped when something better is to be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import time

import anyio
import anyio.abc
import structlog

from ktuned.errors import KtunedError, NotFound, StoreError
from ktuned.fleet.kills import KILLS_EXCUSED, is_outside_kill
from ktuned.fleet.lanes import Lane
from ktuned.fleet.pool import Fleet
from ktuned.model import Device, Job, JobState, Plan, Problem, canonical
from ktuned.store import Artifacts, Store
from ktuned.tuning.pipeline import Pipeline
from ktuned.tuning.precompiling import Precompiling
from ktuned.tuning.queue import Arrival, JobQueue, identity
from ktuned.tuning.telling import Publish, publish_job
from ktuned.tuning.trying import Work

_log = structlog.get_logger()

Prepare = Callable[[Job], Work]
"""Turns a job into all that it needs, as its kernel stands now; raises a KtunedError that says why it cannot run."""

RETRY_S = 2.0
"""How often a store that could not be written is tried again while tuning is paused."""

SOURCE_CHANGED = "source_changed"
"""The code of a worker's refusal to work on files that are no longer those that were inspected."""

MAX_WAITING = 10_000
"""Jobs that may wait; a client that asks for more problems than that has an error in its loop."""


@dataclass
class _Running:
    job: Job
    pipeline: Pipeline | Precompiling
    inspections: int
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    stopped: JobState | None = None
    message: str = ""
    is_outdated: bool = False


class Jobs:
    """The daemon's jobs. :meth:`run` works on them until it is cancelled; what is unfinished then stays queued."""

    def __init__(self, *, fleet: Fleet, store: Store, artifacts: Artifacts, prepare: Prepare, publish: Publish) -> None:
        self._fleet = fleet
        self._store = store
        self._artifacts = artifacts
        self._prepare = prepare
        self._publish = publish
        self._queue = JobQueue()
        self._arriving = anyio.Lock()
        self._running: dict[str, _Running] = {}
        self._lanes: dict[tuple[str, str, str], Lane] = {}
        self._seats: dict[str, anyio.Lock] = {}
        self._inspections: Counter[str] = Counter()
        self._kills: Counter[int] = Counter()
        self._news = anyio.Event()
        self.paused = ""

    async def run(self) -> None:
        """Take up what the last daemon left, and work until cancelled."""
        for job in self._store.jobs(states=[JobState.QUEUED], limit=MAX_WAITING):
            # One that was asked for before this began waits already, perhaps with a higher priority by now.
            if self._queue.get(job.id) is None:
                self._queue.add(job)
        async with anyio.create_task_group() as tasks:
            while True:
                self._news = anyio.Event()
                if self.paused:
                    await self._await_space()
                self._dispatch(tasks)
                await self._news.wait()

    async def _await_space(self) -> None:
        """Wait until what happened can be recorded again: a job must not measure what it cannot keep."""
        _log.warning("tuning_paused", reason=self.paused)
        self._publish("paused", reason=self.paused)
        while self.paused:
            await anyio.sleep(RETRY_S)
            with suppress(StoreError):
                await self._store.check_writable()
                await self._artifacts.check_writable()
                self.paused = ""
        _log.info("tuning_resumed")
        self._publish("resumed")

    async def submit(
        self, kernel: str, problem: Problem, device: str, *, priority: int, reason: str, plan: Plan
    ) -> Arrival:
        """Ask for a tuning; a request for work that waits or runs already joins it.

        Raises:
            StoreError: it cannot be recorded.
        """
        wanted = (kernel, canonical(problem), device)
        async with self._arriving:
            running = self._running.get(device)
            if running is not None and identity(running.job) == wanted and running.stopped in (None, JobState.QUEUED):
                if priority > running.job.priority:
                    running.job = replace(running.job, priority=priority, reason=reason)
                return Arrival(self._public(running), is_new=False)
            waiting = self._queue.find(wanted)
            if waiting is not None:
                waiting = self._queue.raise_priority(waiting.id, priority, reason)
                self._news.set()
                return Arrival(waiting, is_new=False)
            if len(self._queue) >= MAX_WAITING:
                raise StoreError(f"{MAX_WAITING} jobs wait already", hint="cancel some: `ktuned cancel KERNEL`")
            job = await self._store.create_job(
                kernel, problem, device, priority=priority, reason=reason, plan=plan, now=time()
            )
            self._queue.add(job)
        publish_job(self._publish, "job_queued", job)
        self._news.set()
        return Arrival(job, is_new=True)

    async def fail(
        self, kernel: str, problem: Problem, *, reason: str, plan: Plan, priority: int, error: KtunedError
    ) -> Job:
        """Record a job that cannot even wait for a device, because there is none."""
        job = await self._store.create_job(kernel, problem, "", priority=priority, reason=reason, plan=plan, now=time())
        return await self._end(job, JobState.FAILED, _sentence(error))

    async def cancel(self, job_id: int) -> Job:
        """Stop a job, whatever it does; returns it as it ended.

        Raises:
            NotFound: there is no such job, or it has ended.
        """
        for running in self._running.values():
            if running.job.id == job_id:
                self._stop(running, JobState.CANCELLED, "cancelled")
                return replace(self._public(running), state=JobState.CANCELLED)
        async with self._arriving:
            waiting = self._queue.remove(job_id)
        if waiting is not None:
            return await self._end(waiting, JobState.CANCELLED, "cancelled")
        known = self._store.job(job_id)
        if known is None:
            raise NotFound(f"there is no job {job_id}", hint="`ktuned jobs` lists them")
        raise NotFound(f"job {job_id} is {known.state} already")

    async def supersede(self, kernel: str) -> list[int]:
        """Cancel what works on an older state of a kernel; return the ids of those jobs."""
        message = "superseded by a newer state of its files"
        stopped = []
        for running in self._running.values():
            if running.job.kernel == kernel:
                self._stop(running, JobState.CANCELLED, message)
                stopped.append(running.job.id)
        for job in [job for job in self._queue if job.kernel == kernel]:
            async with self._arriving:
                waiting = self._queue.remove(job.id)
            if waiting is not None:
                await self._end(waiting, JobState.CANCELLED, message)
                stopped.append(job.id)
        return stopped

    def inspected(self, kernel: str) -> None:
        """Note that the catalog knows a kernel's files as they are now; jobs that waited for that go on."""
        self._inspections[kernel] += 1
        self._queue.release(kernel)
        self._news.set()

    def live(self) -> list[Job]:
        """Return what runs, then what waits in its order."""
        return [self._public(running) for running in self._running.values()] + list(self._queue)

    def job(self, job_id: int) -> Job | None:
        """Return a job with its newest figures."""
        return next((job for job in self.live() if job.id == job_id), None) or self._store.job(job_id)

    def lanes(self) -> list[Lane]:
        """Return every lane that has been opened."""
        return list(self._lanes.values())

    def channels(self) -> dict[str, Mapping[str, int]]:
        """Return how full the running jobs' channels are."""
        return {
            f"{name} (job {running.job.id})": figures
            for running in self._running.values()
            for name, figures in running.pipeline.statistics().items()
        }

    def _dispatch(self, tasks: anyio.abc.TaskGroup) -> None:
        for device in sorted(self._queue.devices):
            running = self._running.get(device)
            if running is None:
                job = self._queue.next_for(device)
                if job is not None:
                    self._queue.remove(job.id)
                    self._start(tasks, job)
            elif running.stopped is None and self._queue.preempts(running.job):
                self._stop(running, JobState.QUEUED, "made way for a more important job")

    def _start(self, tasks: anyio.abc.TaskGroup, job: Job) -> None:
        try:
            work = self._prepare(job)
        except Exception as error:
            tasks.start_soon(self._end, job, *_verdict(_cause(error)))
            # The device is still free: let the next job have it.
            self._news.set()
            return
        job = replace(job, state=JobState.RUNNING, started=time(), message="")
        pipeline = self._pipeline(replace(work, job=job))
        running = self._running[job.device] = _Running(job, pipeline, self._inspections[job.kernel])
        tasks.start_soon(self._work, running)

    def _pipeline(self, work: Work) -> Pipeline | Precompiling:
        if not work.devices:
            return Precompiling(work, fleet=self._fleet, artifacts=self._artifacts, publish=self._publish)
        return Pipeline(
            work,
            fleet=self._fleet,
            lanes=[self._lane(device) for device in work.devices],
            store=self._store,
            artifacts=self._artifacts,
            publish=self._publish,
        )

    def _lane(self, device: Device) -> Lane:
        """Return the lane of a device; two backends that see the same seat as two models share its lock."""
        key = (device.name, device.model, device.target)
        if key not in self._lanes:
            lock = self._seats.setdefault(device.name, anyio.Lock())
            self._lanes[key] = Lane(device, self._fleet, lock=lock, on_state=self._lane_changed)
        return self._lanes[key]

    def _lane_changed(self, lane: Lane) -> None:
        log = _log.warning if lane.health.is_sick else _log.info
        log("lane_state", device=lane.device.name, state=lane.state, reason=lane.health.reason)
        self._publish("lane", device=lane.device.name, state=lane.state, reason=lane.health.reason)

    async def _work(self, running: _Running) -> None:
        log = _log.bind(job=running.job.id, kernel=running.job.kernel)
        state: JobState | None = None
        message = ""
        try:
            with running.scope:
                try:
                    await self._store.update_job(running.job)
                    publish_job(self._publish, "job_started", running.job)
                    log.info("job_started", reason=running.job.reason)
                    await running.pipeline.run()
                except Exception as error:
                    cause = _cause(error)
                    state, message = _verdict(cause)
                    if is_outside_kill(cause) and self._begins_anew(running):
                        state, message = JobState.QUEUED, f"taken up again: {message}"
                    log.warning("job_stopped", state=state, reason=message)
                    running.is_outdated = getattr(cause, "code", "") == SOURCE_CHANGED
                    if isinstance(cause, StoreError):
                        self.paused = message
            if running.stopped is not None:
                state, message = running.stopped, running.message
            if state is None:
                state, message = running.pipeline.verdict
            await self._close(running, state, message)
        finally:
            del self._running[running.job.device]
            self._news.set()

    def _begins_anew(self, running: _Running) -> bool:
        """Tell whether a job whose worker was killed from outside is taken up again: while it gets on between kills."""
        progress = running.pipeline.progress
        gets_on = progress.done > progress.reused
        self._kills[running.job.id] = 1 if gets_on else self._kills[running.job.id] + 1
        return self._kills[running.job.id] <= KILLS_EXCUSED

    async def _close(self, running: _Running, state: JobState, message: str) -> None:
        for lane in self._lanes.values():
            if lane.state == "ready" and lane.device.model == running.job.device:
                lane.rest()
        job = self._public(running)
        if state is JobState.QUEUED:
            job = replace(job, state=state, message=message)
            try:
                await self._store.update_job(job)
            except StoreError as error:
                _log.warning("job_not_recorded", job=job.id, reason=error.message)
            if running.stopped in (None, JobState.QUEUED):
                # Whoever asked for it meanwhile may have raised its priority.
                job = replace(job, priority=running.job.priority, reason=running.job.reason)
                self._queue.add(job)
                if running.is_outdated and self._inspections[job.kernel] == running.inspections:
                    # Its files are not what was inspected, and their inspection is still to come.
                    self._queue.hold(job.id)
                publish_job(self._publish, "job_queued", job)
                return
            state, message = running.stopped, running.message
        await self._end(job, state, message)

    async def _end(self, job: Job, state: JobState, message: str) -> Job:
        ended = replace(job, state=state, message=message, finished=time())
        self._kills.pop(job.id, None)
        try:
            await self._store.update_job(ended)
        except StoreError as error:
            # Told all the same: somebody may wait for it. The row still says `running`, and the next daemon resumes it.
            ended = replace(ended, state=JobState.FAILED, message=_sentence(error))
        _log.info("job_done", job=job.id, kernel=job.kernel, state=ended.state, best_us=job.best_us)
        publish_job(self._publish, "job_done", ended)
        return ended

    def _stop(self, running: _Running, state: JobState, message: str) -> None:
        makes_way = running.stopped is JobState.QUEUED and state is not JobState.QUEUED
        if running.stopped is None or makes_way:
            running.stopped, running.message = state, message
            running.scope.cancel()

    def _public(self, running: _Running) -> Job:
        return running.pipeline.progress.stamp(running.job)


def _sentence(error: KtunedError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _cause(error: BaseException) -> BaseException:
    """Return the exception itself, or a group's first KtunedError, or its first at all."""
    while isinstance(error, BaseExceptionGroup):
        known = error.subgroup(KtunedError)
        error = (known or error).exceptions[0]
    return error


def _verdict(error: BaseException) -> tuple[JobState, str]:
    """Return how a job ends that an exception stopped."""
    if not isinstance(error, KtunedError):
        _log.error("job_broke", exc_info=error)
        return JobState.FAILED, f"an error in ktuned itself: {type(error).__name__}: {error}"
    if error.code == SOURCE_CHANGED:
        return JobState.QUEUED, f"waits for a new inspection: {error.message}"
    if isinstance(error, StoreError):
        return JobState.QUEUED, _sentence(error)
    return JobState.FAILED, _sentence(error)
