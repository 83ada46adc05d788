"""Jobs: the daemon's requests to the job machine, and the machine's instructions carried out.

The first half of :class:`Jobs` is for the rest of the daemon. The second half carries out the machine's instructions,
runs pipelines, and reports to the machine how they end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from time import time
from typing import assert_never

import anyio
import anyio.abc
import msgspec
import structlog
from msgspec.structs import replace

from ktuned.fleet import Fleet, Lane, is_outside_kill
from ktuned.model import (
    LATENCY,
    PRESETS,
    Device,
    FrozenStruct,
    IllegalMove,
    KernelName,
    KeyProblem,
    KtunedError,
    NotFound,
    Outcome,
    Plan,
    Problem,
    StoreError,
    WinnerKey,
    find_first_error,
    median,
)
from ktuned.protocol import (
    AnswersChanged,
    ChannelInfo,
    Job,
    JobCounts,
    JobDone,
    JobEvent,
    JobInfo,
    JobStarted,
    JobState,
    LaneChanged,
    Priority,
    PublishEvent,
    TuningPaused,
    TuningResumed,
)
from ktuned.scheduling.idle_policy import Reading
from ktuned.scheduling.job_machine import (
    Advanced,
    Arrived,
    BeginAgainAsked,
    CancelAsked,
    Close,
    Ended,
    Ending,
    Event,
    GrantLanes,
    Inspect,
    Inspected,
    Instruction,
    JobMachine,
    Joined,
    PauseAsked,
    Publish,
    Record,
    ResumeAsked,
    Reviewed,
    Start,
    Stop,
    StoreMended,
    TakenUp,
)
from ktuned.scheduling.queue import Arrival, LaunchCost
from ktuned.store import Artifacts, Store
from ktuned.tuning import CompileOnly, JobBrief, JobStage, Judging, Pipeline

_log = structlog.get_logger()

UNKNOWN_LATENCY_US = 10.0
"""Assumed latency of a kernel without winners, that of a small kernel: such kernels are ordered by their launches."""

MAX_WAITING = 10_000
"""Most jobs that may wait. A client that asks for more problems than this has an error in its loop."""

GIVEN_UP = "given up for time"
"""Reason of a job of configs whose compiles an earlier job has given up."""

SOURCE_CHANGED = "source_changed"
"""Error code with which a worker refuses files that have changed since they were inspected."""


class Intervals(FrozenStruct):
    """Intervals at which the jobs check things that no event reports.

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

    pipeline: Pipeline | CompileOnly | Judging
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)


class Jobs:
    """The daemon's jobs. :meth:`run_until_cancelled` works on them; jobs unfinished at its end stay queued.

    Args:
        prepare: Makes a job's brief from the present state of its kernel; raises a KtunedError if the job cannot run.
        inspect: Has a kernel's file inspected, and reacts to the changes.
        read: Takes a reading of the machine's use, for the machine's idle policy.
    """

    def __init__(
        self,
        machine: JobMachine,
        *,
        fleet: Fleet,
        store: Store,
        artifacts: Artifacts,
        prepare: Callable[[Job], JobBrief],
        inspect: Callable[[str], Awaitable[None]],
        publish: PublishEvent,
        read: Callable[[], Awaitable[Reading]],
        intervals: Intervals,
    ) -> None:
        self._machine = machine
        self._queue = machine.queue
        self._store = store
        self._publish = publish
        self._fleet = fleet
        self._artifacts = artifacts
        self._prepare = prepare
        self._inspect = inspect
        self._read = read
        self._intervals = intervals
        self._pipelines: dict[int, PipelineTask] = {}
        """The pipeline of each running job, by the job's id."""
        self._lanes: dict[tuple[str, str, str], Lane] = {}
        """The lanes that were opened, by name, model and target of their device."""
        self._review_requested = anyio.Event()
        self._tasks: anyio.abc.TaskGroup
        # Held while a job may be in the store and not yet in the machine.
        self._arriving = anyio.Lock()
        self._outdated: set[int] = set()

    async def take_up_jobs(self) -> None:
        """Queue the previous daemon's unfinished jobs, before the first request, which may be about one of them."""
        for key, launches in self._store.load_launches().items():
            self._record_launches(key, launches)
        unfinished = self._store.list_jobs(states=(JobState.QUEUED, JobState.PAUSED), limit=MAX_WAITING)
        await self._handle(TakenUp(unfinished))

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

        A judged job is always new: each request is judged anew.

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
            found = None if plan.is_judged else self._machine.find_matching_job(key, wanted, self._outdated)
            if found is not None:
                await self._handle(Joined(found.id, priority, reason, wanted, is_fixed))
                return Arrival(self.get_job(found.id) or found, is_new=False)
            if len(self._queue) >= MAX_WAITING:
                raise StoreError(f"{MAX_WAITING} jobs wait already", hint="cancel some: `ktuned jobs KERNEL --cancel`")
            job = await self._store.create_job(key, problem, priority=priority, reason=reason, plan=plan, now=time())
            await self._handle(Arrived(job, is_fixed))
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
        self._handle_soon(Inspected(kernel))

    async def record_failed_job(
        self, key: WinnerKey, problem: Problem, *, reason: str, plan: Plan, priority: int, error: KtunedError
    ) -> Job:
        """Record a job that failed at once because there is no device for it; its key names no device."""
        job = await self._store.create_job(key, problem, priority=priority, reason=reason, plan=plan, now=time())
        ended = replace(job, state=JobState.FAILED, message=describe_failure(error), finished=time())
        return await self._close_job(ended)

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
            closed = await self._handle(event)
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
        await self._handle(ResumeAsked(job_id))
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

    async def cancel_jobs_of_kernel(self, kernel: str, problem: KeyProblem | None = None) -> list[int]:
        """Cancel all live jobs of a kernel, or those of one of its problems; return their ids."""
        doomed = [job for job in self.list_live_jobs() if job.kernel == kernel and problem in (None, job.key.problem)]
        # No request may join them.
        self._outdated |= {job.id for job in doomed}
        stopped = []
        for job in doomed:
            # The job may have ended meanwhile.
            with suppress(NotFound):
                stopped.append((await self.cancel_job(job.id, "its kernel or its trials were removed")).id)
        return stopped

    async def restart_running_jobs(self, kernel: str, reason: str, is_outdated: Callable[[JobBrief], bool]) -> None:
        """Restart a kernel's running jobs whose brief is outdated."""
        for job in self._machine.running:
            task = self._pipelines.get(job.id)
            if job.kernel == kernel and task is not None and is_outdated(task.pipeline.brief):
                await self._begin_again(job, reason)

    async def _begin_again(self, job: Job, reason: str) -> None:
        """Have a job prepared again when its turn comes; its clients keep waiting for it."""
        self._outdated.discard(job.id)
        # The job may have ended meanwhile, with its own result.
        with suppress(IllegalMove):
            await self._handle(BeginAgainAsked(job.id, reason))

    def forget_failures(self, kernel: KernelName | None = None) -> None:
        """Forget failures of one kernel or of all, so that lookups may request the same jobs again."""
        if self._machine.failures.forget_failures(kernel):
            self._publish(AnswersChanged(kernel=kernel))

    def list_live_jobs(self) -> list[Job]:
        """Return the running jobs, then the waiting jobs in their order."""
        return [self._stamp_progress(job) for job in self._machine.running] + list(self._queue)

    def is_paused(self, job: Job) -> bool:
        """Return whether a live job is paused itself, or is about to be."""
        return self._machine.is_paused(job.id)

    def get_job(self, job_id: int) -> Job | None:
        """Return a job with its newest figures."""
        live = self._machine.find_job(job_id)
        return self._store.get_job(job_id) if live is None else self._stamp_progress(live)

    def _stamp_progress(self, job: Job) -> Job:
        task = self._pipelines.get(job.id)
        return job if task is None else task.pipeline.progress.stamp_job(job)

    def count_jobs(self) -> JobCounts:
        """Return the numbers of live jobs by state, and of waiting jobs by the reason why they must not run now."""
        states = Counter(job.state for job in self.list_live_jobs())
        waits = Counter(filter(None, map(self._queue.explain_wait, self._queue)))
        return JobCounts(states[JobState.QUEUED], states[JobState.RUNNING], states[JobState.PAUSED], waits)

    @property
    def policy(self) -> str:
        """When tuning yields to others: the ``policy`` of ``config.toml``."""
        return self._machine.idle_policy.policy

    def list_lanes(self) -> list[Lane]:
        """Return every lane that has been opened."""
        return list(self._lanes.values())

    def describe_channels(self) -> dict[str, ChannelInfo]:
        """Return how full the running jobs' channels are."""
        return {
            f"{name} (job {job})": figures
            for job, task in self._pipelines.items()
            for name, figures in task.pipeline.describe_channels().items()
        }

    # The machine's instructions

    async def run_until_cancelled(self) -> None:
        """Run jobs until cancelled."""
        machine = self._machine
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._watch_host_use)
            while True:
                self._review_requested = anyio.Event()
                if machine.stalled:
                    await self._await_writable_store()
                await self._handle(Reviewed())
                # If jobs compete for lanes, the passing of time alone can change which job has them.
                is_contended = bool(machine.running) and len(machine.queue) + len(machine.running) > 1
                with anyio.move_on_after(self._intervals.review_s if is_contended else math.inf):
                    await self._review_requested.wait()

    async def _handle(self, event: Event) -> Job | None:
        """Give the machine an event and carry out its instructions; return the job if it was closed.

        The choice of running jobs is reconsidered soon.

        Raises:
            IllegalMove: The event is illegal for its job; nothing has changed.
            StoreError: A vital row cannot be written.
        """
        try:
            return await self._carry_out(self._machine.handle(event))
        finally:
            if not isinstance(event, Reviewed):
                self.request_review()

    def _handle_soon(self, event: Event) -> None:
        """Give the machine an event now, and carry out its instructions in the background.

        Raises:
            IllegalMove: The event is illegal for its job; nothing has changed.
        """
        instructions = self._machine.handle(event)
        self.request_review()
        if instructions:
            self._tasks.start_soon(self._carry_out, instructions)

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
                    if instruction.job in self._pipelines:
                        self._pipelines[instruction.job].scope.cancel()
                case GrantLanes():
                    self._grant_lanes(instruction.job)
                case Record():
                    await self._record_job(instruction)
                case Publish():
                    self._publish_job(instruction.event, instruction.job)
                case Close():
                    closed = await self._close_job(instruction.job)
                case Inspect():
                    self._tasks.start_soon(self._await_inspection, instruction.job)
                case _:
                    assert_never(instruction)
        return closed

    async def _await_inspection(self, job: Job) -> None:
        """Have the files inspected for which a job waits. The watcher has usually seen the edit, and then does so
        itself.
        """
        await anyio.sleep(self._intervals.inspection_s)
        if not self._machine.queue.awaits_inspection(job.id):
            return
        try:
            await self._inspect(job.kernel)
        except KtunedError as error:
            _log.warning("inspect_kernel_failed", kernel=job.kernel, reason=error.message)
        await self._handle(Inspected(job.kernel))

    async def _record_job(self, instruction: Record) -> None:
        try:
            await self._store.update_job(instruction.job)
        except StoreError as error:
            if instruction.is_vital:
                raise
            _log.warning("record_job_failed", job=instruction.job.id, reason=error.message)

    async def _close_job(self, ended: Job) -> Job:
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
        elif (task := self._pipelines.get(job.id)) is not None:
            left_s = task.pipeline.progress.left_s
        return replace(info, priority=queue.find_level(job.id), waits_for=waits_for, left_s=left_s)

    def _start_job(self, job: Job) -> None:
        try:
            brief = msgspec.structs.replace(self._prepare(job), job=job)
        except Exception as error:
            ending, message = classify_ending(error)
            self._tasks.start_soon(self._handle, Ended(job, ending, message))
            return
        task = self._pipelines[job.id] = PipelineTask(self._build_pipeline(brief))
        self._tasks.start_soon(self._run_job, job, task)

    async def _run_job(self, job: Job, task: PipelineTask) -> None:
        # Log lines of this task, and of the tasks that it starts, name the job.
        structlog.contextvars.bind_contextvars(job=job.id, kernel=job.kernel)
        ending, message = Ending.DAEMON_STOPPED, ""
        try:
            ending, message = await self._run_pipeline(job, task)
        finally:
            del self._pipelines[job.id]
            self._release_lanes(job)
            progress = task.pipeline.progress
            now = progress.stamp_job(self._machine.find_running_job(job.id) or job)
            # If the daemon stops, there is nothing to carry out: the next daemon takes the job up.
            self._handle_soon(Ended(now, ending, message, progress.done > progress.reused, task.pipeline.brief))

    def _grant_lanes(self, job_id: int) -> None:
        granted = self._machine.find_running_job(job_id)
        if granted is None:
            return
        for job in self._machine.list_running_on(granted.device):
            task = self._pipelines.get(job.id)
            # A job whose preparation failed has no pipeline, and a job that only compiles needs no lane.
            if task is None or isinstance(task.pipeline, CompileOnly):
                continue
            if job.id == job_id:
                task.pipeline.grant_lanes()
            else:
                task.pipeline.withdraw_lanes()

    def _release_lanes(self, ended: Job) -> None:
        """Release the workers of an ended job's lanes, unless another job runs on the same device model."""
        if any(job.id != ended.id for job in self._machine.list_running_on(ended.device)):
            return
        for lane in self._lanes.values():
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
            await self._submit_given_up_configs(job)
            return Ending.DONE, message
        return (Ending.HOPELESS if task.pipeline.is_hopeless else Ending.FAILED), message

    async def _submit_given_up_configs(self, job: Job) -> None:
        """Request the configs whose compiles a job has given up for time, to be tried when nothing else waits."""
        if job.plan.configs or job.plan.is_judged or PRESETS[job.plan.preset].straggler_times is None:
            return
        late = self._store.list_trials(job=job.id, outcome=Outcome.COMPILE_TIMEOUT)
        if late:
            plan = replace(job.plan, configs=tuple(trial.config for trial in late))
            with suppress(StoreError):
                await self.submit_job(job.key, job.problem, priority=Priority.VERIFY, reason=GIVEN_UP, plan=plan)

    def add_new_devices(self) -> None:
        """Let running jobs also measure on new devices, where these give the same measuring context."""
        for job, task in self._pipelines.items():
            running = self._machine.find_running_job(job)
            if running is None or not isinstance(task.pipeline, Pipeline):
                continue
            with suppress(KtunedError):
                brief = self._prepare(running)
                if brief.context == task.pipeline.brief.context:
                    task.pipeline.add_lanes([self.get_lane(device) for device in brief.devices])

    def _build_pipeline(self, brief: JobBrief) -> Pipeline | CompileOnly | Judging:
        job = brief.job

        def advance(stage: JobStage) -> None:
            # A job whose end was handled already reports no further stages.
            with suppress(IllegalMove):
                self._handle_soon(Advanced(job.id, stage))

        if not brief.devices:
            return CompileOnly(
                brief, fleet=self._fleet, artifacts=self._artifacts, publish=self._publish, on_stage=advance
            )
        lanes = [self.get_lane(device) for device in brief.devices]
        if job.plan.is_judged:
            return Judging(
                brief,
                fleet=self._fleet,
                lanes=lanes,
                store=self._store,
                artifacts=self._artifacts,
                publish=self._publish,
                on_stage=advance,
            )
        return Pipeline(
            brief,
            fleet=self._fleet,
            lanes=lanes,
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
        if key not in self._lanes:
            self._lanes[key] = Lane(
                device,
                self._fleet,
                on_state=self._publish_lane_state,
                is_waited_for=self._machine.is_waited_for,
            )
        return self._lanes[key]

    def _publish_lane_state(self, lane: Lane) -> None:
        log = _log.warning if lane.health.is_sick else _log.info
        log("lane_state", device=lane.device.name, state=lane.state, reason=lane.health.reason)
        # A sick device may have been the reason why a job found nothing that works.
        self.forget_failures()
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
                _log.info("idle_reason_changed", reason=policy.reason)
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
                await self._handle(StoreMended())
        _log.info("tuning_resumed")
        self._publish(TuningResumed())


def classify_ending(error: BaseException) -> tuple[Ending, str]:
    """Return the ending and the message of a job that an exception stopped."""
    error = find_first_error(error)
    if not isinstance(error, KtunedError):
        _log.error("run_job_failed", exc_info=error)
        return Ending.FAILED, f"an error in ktuned itself: {type(error).__name__}: {error}"
    if error.code == SOURCE_CHANGED:
        return Ending.SOURCE_CHANGED, error.message
    if isinstance(error, StoreError):
        return Ending.NOT_RECORDED, describe_failure(error)
    return (Ending.KILLED if is_outside_kill(error) else Ending.FAILED), describe_failure(error)


def describe_failure(error: KtunedError) -> str:
    """Return an error's message and hint as a job's message."""
    return f"{error.message}; {error.hint}" if error.hint else error.message
