"""What works and when: one job per device model, the most important first, stopped when there is better to do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import time

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from ktuned.fleet import KILLS_EXCUSED, Fleet, Lane, Turns, is_outside_kill
from ktuned.model import Device, Job, JobState, StoreError
from ktuned.scheduling.idle_policy import IdlePolicy, Reading
from ktuned.scheduling.known_failures import FailedGrounds
from ktuned.scheduling.queue import JobQueue
from ktuned.scheduling.running_job import SOURCE_CHANGED, Running, cause, sentence, verdict
from ktuned.store import Artifacts, Store
from ktuned.tuning import Pipeline, Precompiling, Publish, Work, publish_job

_log = structlog.get_logger()

Prepare = Callable[[Job], Work]
"""Turns a job into all that it needs, as its kernel stands now; raises a KtunedError that says why it cannot run."""

MAX_WAITING = 10_000
"""Jobs that may wait; a client that asks for more problems than that has an error in its loop."""

UNFINISHED = (JobState.QUEUED, JobState.PAUSED)
"""States in which a job waits."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often the dispatcher looks at what no event reports.

    ``retry_s`` is for a store that could not be written, ``review_s`` for the order of jobs while nothing happens
    (ranks rise with time alone), ``reading_s`` for the machine while tuning may have to yield to others.
    """

    retry_s: float = 2.0
    review_s: float = 5.0
    reading_s: float = 2.0


class Dispatcher:
    """Runs what :attr:`queue` says should run, until it is cancelled; what is unfinished stays queued.

    ``idle_policy`` decides when tuning yields to others, from what ``read`` returns; without it nothing is read.
    ``running`` has the job of each device model, ``inspections`` counts each kernel's, ``failed`` knows what was tried
    in vain, ``stalled`` says why nothing can be recorded.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: Store,
        artifacts: Artifacts,
        prepare: Prepare,
        publish: Publish,
        idle_policy: IdlePolicy,
        read: Callable[[], Awaitable[Reading]] | None,
        intervals: Intervals,
    ) -> None:
        self.queue = JobQueue(refuse=idle_policy.refuse)
        self.queue.pauses |= store.pauses()
        self.running: dict[str, Running] = {}
        self.lanes: dict[tuple[str, str, str], Lane] = {}
        self.inspections: Counter[str] = Counter()
        self.failed = FailedGrounds()
        self.stalled = ""
        self._fleet = fleet
        self._store = store
        self._artifacts = artifacts
        self._prepare = prepare
        self._publish = publish
        self._idle_policy = idle_policy
        self._read = read
        self._intervals = intervals
        self._seats: dict[str, Turns] = {}
        self._kills: Counter[int] = Counter()
        self._news = anyio.Event()
        fleet.compile_slots.rank_of = self.queue.rank

    def take_up(self) -> None:
        """Let wait what the last daemon left; no job may be on its way between the store and the queue."""
        for job in self._store.jobs(states=UNFINISHED, limit=MAX_WAITING):
            # One that was asked for before this began waits already, perhaps with a higher priority by now.
            if self.queue.get(job.id) is None:
                self.queue.add(job)

    async def run(self) -> None:
        """Work until cancelled."""
        async with anyio.create_task_group() as tasks:
            if self._read is not None:
                tasks.start_soon(self._watch_others, self._read)
            while True:
                self._news = anyio.Event()
                if self.stalled:
                    await self._await_space()
                self._dispatch(tasks)
                with anyio.move_on_after(self._intervals.review_s if len(self.queue) and self.running else math.inf):
                    await self._news.wait()

    async def _watch_others(self, read: Callable[[], Awaitable[Reading]]) -> None:
        """Look at the machine for as long as there is work that may have to yield; at rest nothing is read."""
        while True:
            if not (self._idle_policy.watches and (self.running or len(self.queue))):
                self._idle_policy.forget()
                await self._news.wait()
                await anyio.sleep(self._intervals.reading_s)
                continue
            before = self._idle_policy.reason
            self._idle_policy.take(await read())
            if self._idle_policy.reason != before:
                _log.info("idle_policy", reason=self._idle_policy.reason)
            if bool(self._idle_policy.reason) != bool(before):
                self.review()
            await anyio.sleep(self._intervals.reading_s)

    def review(self) -> None:
        """Ask anew who should run: something that decides it has changed."""
        self._news.set()

    async def _await_space(self) -> None:
        """Wait until what happened can be recorded again: a job must not measure what it cannot keep."""
        _log.warning("tuning_paused", reason=self.stalled)
        self._publish("paused", reason=self.stalled)
        while self.stalled:
            await anyio.sleep(self._intervals.retry_s)
            with suppress(StoreError):
                await self._store.check_writable()
                await self._artifacts.check_writable()
                self.stalled = ""
        _log.info("tuning_resumed")
        self._publish("resumed")

    def _dispatch(self, tasks: anyio.abc.TaskGroup) -> None:
        for device in sorted(self.queue.devices | self.running.keys()):
            running = self.running.get(device)
            if running is None:
                job = self.queue.next_for(device)
                if job is not None:
                    self.queue.start(job.id)
                    self._start(tasks, job)
            elif running.stopped is None and (obstacle := self.queue.obstacle(running.job)):
                running.stop(JobState.QUEUED, f"made way: {obstacle}")
            elif running.stopped is None and self.queue.preempts(running.job):
                running.stop(JobState.QUEUED, "made way for a more important job")

    def _start(self, tasks: anyio.abc.TaskGroup, job: Job) -> None:
        try:
            work = self._prepare(job)
        except Exception as error:
            tasks.start_soon(self.end, job, *verdict(cause(error)))
            # The device is still free: let the next job have it.
            self._news.set()
            return
        job = replace(job, state=JobState.RUNNING, started=time(), message="")
        pipeline = self._pipeline(replace(work, job=job))
        running = self.running[job.device] = Running(job, pipeline, self.inspections[job.kernel])
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
        """Return the lane of a device; two backends that see the same seat as two models take turns on it."""
        key = (device.name, device.model, device.target)
        if key not in self.lanes:
            if device.name not in self._seats:
                self._seats[device.name] = Turns()
                self._seats[device.name].rank_of = self.queue.rank
            seat = self._seats[device.name]
            self.lanes[key] = Lane(device, self._fleet, seat=seat, on_state=self._lane_changed)
        return self.lanes[key]

    def _lane_changed(self, lane: Lane) -> None:
        log = _log.warning if lane.health.is_sick else _log.info
        log("lane_state", device=lane.device.name, state=lane.state, reason=lane.health.reason)
        # A device that was ill may have been the reason why nothing worked.
        self.failed.forget()
        self._publish("lane", device=lane.device.name, state=lane.state, reason=lane.health.reason)

    async def _work(self, running: Running) -> None:
        # Whatever is logged in this task or in one that it starts is about this job.
        structlog.contextvars.bind_contextvars(job=running.job.id, kernel=running.job.kernel)
        state: JobState | None = None
        message = ""
        try:
            with running.scope:
                try:
                    await self._store.update_job(running.job)
                    publish_job(self._publish, "job_started", running.job)
                    _log.info("job_started", reason=running.job.reason)
                    await running.pipeline.run()
                except Exception as error:
                    reason = cause(error)
                    state, message = verdict(reason)
                    if is_outside_kill(reason) and self._begins_anew(running):
                        state, message = JobState.QUEUED, f"taken up again: {message}"
                    _log.warning("job_stopped", state=state, reason=message)
                    running.is_outdated = getattr(reason, "code", "") == SOURCE_CHANGED
                    if isinstance(reason, StoreError):
                        self.stalled = message
            if running.stopped is not None:
                state, message = running.stopped, running.message
            if state is None:
                state, message = running.pipeline.verdict
            self.failed.note(running.pipeline.work, state, message)
            await self._close(running, state, message)
        finally:
            del self.running[running.job.device]
            self._news.set()

    def _begins_anew(self, running: Running) -> bool:
        """Tell whether a job whose worker was killed from outside is taken up again: while it gets on between kills."""
        progress = running.pipeline.progress
        gets_on = progress.done > progress.reused
        self._kills[running.job.id] = 1 if gets_on else self._kills[running.job.id] + 1
        return self._kills[running.job.id] <= KILLS_EXCUSED

    async def _close(self, running: Running, state: JobState, message: str) -> None:
        for lane in self.lanes.values():
            if lane.state == "ready" and lane.device.model == running.job.device:
                lane.rest()
        job = running.public
        if state in UNFINISHED:
            job = replace(job, state=state, message=message)
            try:
                await self._store.update_job(job)
            except StoreError as error:
                _log.warning("job_not_recorded", job=job.id, reason=error.message)
            if running.stopped is not JobState.CANCELLED:
                # Whoever asked for it meanwhile may have raised its priority, or have paused or resumed it.
                state = running.stopped or state
                job = replace(job, state=state, priority=running.job.priority, reason=running.job.reason)
                self.queue.add(job)
                if running.is_outdated and self.inspections[job.kernel] == running.inspections:
                    # Its files are not what was inspected, and their inspection is still to come.
                    self.queue.hold(job.id)
                publish_job(self._publish, "job_paused" if state is JobState.PAUSED else "job_queued", job)
                return
            state, message = running.stopped, running.message
        await self.end(job, state, message)

    async def end(self, job: Job, state: JobState, message: str) -> Job:
        """Record how a job ended, tell of it, and return it."""
        ended = replace(job, state=state, message=message, finished=time())
        self._kills.pop(job.id, None)
        self.queue.forget(job.id)
        try:
            await self._store.update_job(ended)
        except StoreError as error:
            # Told all the same: somebody may wait for it. The row still says `running`, and the next daemon resumes it.
            ended = replace(ended, state=JobState.FAILED, message=sentence(error))
        _log.info("job_done", job=job.id, kernel=job.kernel, state=ended.state, best_us=job.best_us)
        publish_job(self._publish, "job_done", ended)
        return ended
