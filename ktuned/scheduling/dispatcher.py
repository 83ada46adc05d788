"""Dispatcher: carries out the job machine's instructions, and reports to the machine how pipelines end."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import assert_never

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec
import structlog
from msgspec.structs import replace

from ktuned.fleet import Fleet, Lane, is_outside_kill
from ktuned.model import Device, IllegalMove, Job, JobState, KtunedError, StoreError, find_first_error
from ktuned.protocol import (
    JobDone,
    JobEvent,
    JobInfo,
    JobStarted,
    LaneChanged,
    PublishEvent,
    TuningPaused,
    TuningResumed,
)
from ktuned.scheduling.idle_policy import Reading
from ktuned.scheduling.job_events import (
    Advanced,
    Close,
    Ended,
    Ending,
    Event,
    GrantLanes,
    Inspect,
    Inspected,
    Instruction,
    Publish,
    Record,
    Reviewed,
    Start,
    Stop,
    StoreMended,
)
from ktuned.scheduling.job_machine import JobMachine
from ktuned.store import Artifacts, Store
from ktuned.tuning import CompileOnly, JobBrief, JobStage, Pipeline

_log = structlog.get_logger()

SOURCE_CHANGED = "source_changed"
"""Error code with which a worker refuses files that have changed since they were inspected."""

Prepare = Callable[[Job], JobBrief]
"""Makes a job's brief from the present state of its kernel; raises a KtunedError if the job cannot run."""


class Intervals(msgspec.Struct, frozen=True):
    """Intervals at which the dispatcher checks things that no event reports.

    Attributes:
        retry_s: Between attempts to write to a store that could not be written.
        review_s: Between reviews of the order of jobs; ranks rise with time, even if nothing happens.
        reading_s: Between readings of the machine's use, while tuning may have to yield to others.
        inspection_s: After this wait for an inspection of its files, a job asks for one.
    """

    retry_s: float = 2.0
    review_s: float = 5.0
    reading_s: float = 2.0
    inspection_s: float = 2.0


class PipelineTask(msgspec.Struct, eq=False):
    """A running job's pipeline; cancelling ``scope`` stops it."""

    pipeline: Pipeline | CompileOnly
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)


class Dispatcher:
    """Runs the jobs that the machine starts. A job that is unfinished at the end is left to the next daemon.

    Args:
        inspect: Has a kernel's file inspected, and reacts to the changes.
        read: Takes a reading of the machine's use, for the machine's idle policy.

    Attributes:
        pipelines: The pipeline of each running job, by the job's id.
        lanes: The lanes that were opened, by name, model and target of their device.
    """

    def __init__(
        self,
        machine: JobMachine,
        *,
        fleet: Fleet,
        store: Store,
        artifacts: Artifacts,
        prepare: Prepare,
        inspect: Callable[[str], Awaitable[None]],
        publish: PublishEvent,
        read: Callable[[], Awaitable[Reading]],
        intervals: Intervals,
    ) -> None:
        self.pipelines: dict[int, PipelineTask] = {}
        self.lanes: dict[tuple[str, str, str], Lane] = {}
        self._machine = machine
        self._fleet = fleet
        self._store = store
        self._artifacts = artifacts
        self._prepare = prepare
        self._inspect = inspect
        self._publish = publish
        self._read = read
        self._intervals = intervals
        self._review_requested = anyio.Event()
        self._tasks: anyio.abc.TaskGroup

    async def run_until_cancelled(self) -> None:
        """Work until cancelled."""
        machine = self._machine
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._watch_host_use)
            while True:
                self._review_requested = anyio.Event()
                if machine.stalled:
                    await self._await_writable_store()
                await self.handle_event(Reviewed(), review=False)
                # If jobs compete for lanes, the passing of time alone can change which job has them.
                is_contended = bool(machine.running) and len(machine.queue) + len(machine.running) > 1
                with anyio.move_on_after(self._intervals.review_s if is_contended else math.inf):
                    await self._review_requested.wait()

    async def handle_event(self, event: Event, *, review: bool = True) -> Job | None:
        """Give the machine an event and carry out its instructions; return the job if it was closed.

        With ``review``, the choice of running jobs is reconsidered afterwards.

        Raises:
            IllegalMove: The event is illegal for its job; nothing has changed.
            StoreError: A vital row cannot be written.
        """
        instructions = self._machine.handle_event(event)
        try:
            return await self._carry_out(instructions)
        finally:
            if review:
                self.request_review()

    def request_review(self) -> None:
        """Have the choice of running jobs reconsidered soon."""
        self._review_requested.set()

    async def _carry_out(self, instructions: Iterable[Instruction]) -> Job | None:
        closed = None
        for instruction in instructions:
            match instruction:
                case Start():
                    self._start_job(instruction.job)
                case Stop():
                    # A job whose preparation failed has no pipeline to stop.
                    if instruction.job in self.pipelines:
                        self.pipelines[instruction.job].scope.cancel()
                case GrantLanes():
                    self._grant_lanes(instruction.job)
                case Record():
                    await self._record_job(instruction)
                case Publish():
                    self._publish_job(instruction.event, instruction.job)
                case Close():
                    closed = await self.close_job(instruction.job)
                case Inspect():
                    self._tasks.start_soon(self._await_inspection, instruction.job)
                case _:
                    assert_never(instruction)
        return closed

    async def _await_inspection(self, job: Job) -> None:
        """Have the files inspected that a job waits for, unless the watcher does so: it has usually seen the edit."""
        await anyio.sleep(self._intervals.inspection_s)
        if not self._machine.queue.awaits_inspection(job.id):
            return
        try:
            await self._inspect(job.kernel)
        except KtunedError as error:
            _log.warning("not_inspected", kernel=job.kernel, reason=error.message)
        await self.handle_event(Inspected(job.kernel))

    async def _record_job(self, instruction: Record) -> None:
        try:
            await self._store.update_job(instruction.job)
        except StoreError as error:
            if instruction.is_vital:
                raise
            _log.warning("job_not_recorded", job=instruction.job.id, reason=error.message)

    async def close_job(self, ended: Job) -> Job:
        """Record and publish how a job ended."""
        try:
            await self._store.update_job(ended)
        except StoreError as error:
            # Publish the end even so, since a client may wait for it. The row still says `running`, and the next daemon
            # resumes the job.
            ended = replace(ended, state=JobState.FAILED, message=describe_failure(error))
        _log.info("job_done", job=ended.id, kernel=ended.kernel, state=ended.state, best_us=ended.best_us)
        self._publish_job(JobDone, ended)
        return ended

    def _publish_job(self, event: type[JobEvent], job: Job) -> None:
        self._publish(event.from_job(self.describe_job(job)))

    def describe_job(self, job: Job) -> JobInfo:
        """Return a job's public description, with its present progress or the reason for its wait."""
        queue = self._machine.queue
        info = JobInfo.from_job(
            job, launches=queue.find_launch_cost(job.key).launches, waiters=queue.count_waiters(job.id)
        )
        if self._machine.find_job(job.id) is None:
            return info
        holder = self._machine.find_lane_holder(job.device)
        waits_for = "" if holder is None or holder.id == job.id else f"job {holder.id} has the device"
        left_s = None
        if self._machine.find_running_job(job.id) is None:
            waits_for = queue.explain_wait(job) or waits_for or self._machine.stalled
        elif (task := self.pipelines.get(job.id)) is not None:
            left_s = task.pipeline.progress.left_s
        return replace(info, priority=queue.find_level(job.id), waits_for=waits_for, left_s=left_s)

    def _start_job(self, job: Job) -> None:
        try:
            brief = msgspec.structs.replace(self._prepare(job), job=job)
        except Exception as error:
            ending, message = classify_ending(error)
            self._tasks.start_soon(self.handle_event, Ended(job, ending, message))
            return
        task = self.pipelines[job.id] = PipelineTask(self._build_pipeline(brief))
        self._tasks.start_soon(self._run_job, job, task)

    async def _run_job(self, job: Job, task: PipelineTask) -> None:
        # Log lines of this task, and of the tasks that it starts, name the job.
        structlog.contextvars.bind_contextvars(job=job.id, kernel=job.kernel)
        ending, message = Ending.DAEMON_STOPPED, ""
        try:
            ending, message = await self._run_pipeline(job, task)
        finally:
            del self.pipelines[job.id]
            self._release_lanes(job)
            progress = task.pipeline.progress
            now = self._machine.find_running_job(job.id) or job
            instructions = self._machine.handle_event(
                Ended(progress.stamp_job(now), ending, message, progress.done > progress.reused, task.pipeline.brief)
            )
            self.request_review()
        await self._carry_out(instructions)

    def _grant_lanes(self, job_id: int) -> None:
        granted = self._machine.find_running_job(job_id)
        if granted is None:
            return
        for job in self._machine.list_running_on(granted.device):
            task = self.pipelines.get(job.id)
            # A job whose preparation failed has no pipeline, and a job that only compiles needs no lane.
            if task is None or not isinstance(task.pipeline, Pipeline):
                continue
            if job.id == job_id:
                task.pipeline.grant_lanes()
            else:
                task.pipeline.withdraw_lanes()

    def _release_lanes(self, ended: Job) -> None:
        """Release the workers of an ended job's lanes, unless another job runs on the same device model."""
        if any(job.id != ended.id for job in self._machine.list_running_on(ended.device)):
            return
        for lane in self.lanes.values():
            if lane.state == "ready" and lane.device.model == ended.device:
                lane.release_worker()

    async def _run_pipeline(self, job: Job, task: PipelineTask) -> tuple[Ending, str]:
        """Run a pipeline until it ends or is stopped; return how it ended, and the message."""
        with task.scope:
            try:
                await self._store.update_job(job)
                self._publish_job(JobStarted, job)
                _log.info("job_started", reason=job.reason)
                await task.pipeline.run()
            except Exception as error:
                ending, message = classify_ending(error)
                _log.warning("job_stopped", ending=ending, reason=message)
                return ending, message
        if task.scope.cancelled_caught:
            return Ending.STOPPED, ""
        state, message = task.pipeline.conclude_job()
        if state is JobState.DONE:
            return Ending.DONE, message
        return (Ending.HOPELESS if task.pipeline.is_hopeless else Ending.FAILED), message

    def add_new_devices(self) -> None:
        """Let running jobs also measure on new devices, where these give the same measuring context."""
        for job, task in self.pipelines.items():
            running = self._machine.find_running_job(job)
            if running is None or not isinstance(task.pipeline, Pipeline):
                continue
            with suppress(KtunedError):
                brief = self._prepare(running)
                if brief.context == task.pipeline.brief.context:
                    task.pipeline.add_lanes([self.get_lane(device) for device in brief.devices])

    def _build_pipeline(self, brief: JobBrief) -> Pipeline | CompileOnly:
        job = brief.job

        def advance(stage: JobStage) -> None:
            # A job whose end was handled already reports no further stages.
            with suppress(IllegalMove):
                self._machine.handle_event(Advanced(job.id, stage))
                self.request_review()

        if not brief.devices:
            return CompileOnly(
                brief, fleet=self._fleet, artifacts=self._artifacts, publish=self._publish, on_stage=advance
            )
        return Pipeline(
            brief,
            fleet=self._fleet,
            lanes=[self.get_lane(device) for device in brief.devices],
            store=self._store,
            artifacts=self._artifacts,
            publish=self._publish,
            on_stage=advance,
            follows_same_kernel=any(
                other.id != job.id and other.kernel == job.kernel for other in self._machine.list_running_on(job.device)
            ),
        )

    def get_lane(self, device: Device) -> Lane:
        """Return the lane of a device.

        If two backends see one device as two models, it has a lane for each, and these take turns.
        """
        key = (device.name, device.model, device.target)
        if key not in self.lanes:
            self.lanes[key] = Lane(
                device,
                self._fleet,
                on_state=self._publish_lane_state,
                is_waited_for=self._machine.is_waited_for,
            )
        return self.lanes[key]

    def _publish_lane_state(self, lane: Lane) -> None:
        log = _log.warning if lane.health.is_sick else _log.info
        log("lane_state", device=lane.device.name, state=lane.state, reason=lane.health.reason)
        # A sick device may have been the reason why a job found nothing that works.
        self._machine.failures.forget_failures()
        self._publish(LaneChanged(device=lane.device.name, state=lane.state, reason=lane.health.reason))

    async def _watch_host_use(self) -> None:
        """Take readings of the machine's use while there is work that may have to yield; without work, none."""
        policy = self._machine.idle_policy
        while True:
            if not (policy.needs_readings and (self._machine.running or len(self._machine.queue))):
                policy.forget_readings()
                await self._review_requested.wait()
                await anyio.sleep(self._intervals.reading_s)
                continue
            before = policy.reason
            policy.take_reading(await self._read())
            if policy.reason != before:
                _log.info("idle_policy", reason=policy.reason)
            if bool(policy.reason) != bool(before):
                self.request_review()
            await anyio.sleep(self._intervals.reading_s)

    async def _await_writable_store(self) -> None:
        """Wait until the store can be written again: a job must not measure what it cannot record."""
        reason = self._machine.stalled
        _log.warning("tuning_paused", reason=reason)
        self._publish(TuningPaused(reason=reason))
        while self._machine.stalled:
            await anyio.sleep(self._intervals.retry_s)
            with suppress(StoreError):
                await self._store.check_writable()
                await self._artifacts.check_writable()
                self._machine.handle_event(StoreMended())
        _log.info("tuning_resumed")
        self._publish(TuningResumed())


def classify_ending(error: BaseException) -> tuple[Ending, str]:
    """Return the ending and the message of a job that an exception stopped."""
    error = find_first_error(error)
    if not isinstance(error, KtunedError):
        _log.error("job_broke", exc_info=error)
        return Ending.FAILED, f"an error in ktuned itself: {type(error).__name__}: {error}"
    if error.code == SOURCE_CHANGED:
        return Ending.SOURCE_CHANGED, error.message
    if isinstance(error, StoreError):
        return Ending.NOT_RECORDED, describe_failure(error)
    return (Ending.KILLED if is_outside_kill(error) else Ending.FAILED), describe_failure(error)


def describe_failure(error: KtunedError) -> str:
    """Return an error's message and hint as a job's message."""
    return f"{error.message}; {error.hint}" if error.hint else error.message
