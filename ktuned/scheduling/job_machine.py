"""Job machine: events in, instructions out. Decides everything about jobs, and does no IO.

*One job* moves as :data:`MOVES` says::

    waiting ──▶ running ──▶ done, failed             paused ◀──▶ waiting      waiting, paused ──▶ cancelled
       ▲          │  ├─ interrupted ──▶ waiting
       │          ▼  ▼
       ├────── yielding ⇄ pausing ──▶ paused         yielding, pausing ──▶ cancelling ──▶ cancelled

A running job is stopped in two steps: it is asked to stop (yielding, pausing, cancelling), and then its pipeline ends.
The stop decides where the job goes, however the pipeline ends meanwhile. If there are two reasons to stop, the stronger
one decides; resuming takes back only a pause. A job whose kernel or environment changes (outdated) yields, and is
prepared again later.

*All jobs.* :mod:`~ktuned.scheduling.queue` has the order of waiting jobs. Jobs start by rank, and make way for a job of
a higher rank, for a pause, or if the idle policy says so. :mod:`~ktuned.scheduling.jobs` carries out the instructions.
Facts that only affect ranks (waiting clients, lookups, launches) or hold jobs back (paused devices) go directly to the
queue; they count from the next :class:`Reviewed`.

Jobs overlap::

    job 1   explores │ compiles ───────│
                     │   measures ───────│ decides │
    job 2            └ explores │ compiles ─────────────│
                                │                  │ measures ─│ decides │
    job 3                       └ explores │ compiles ───────│           │ measures ...

The next job of a device model starts when no config of the running jobs waits for a compile slot, so that it takes no
slot from them. The lanes belong to the running job of the highest rank; among equal ranks, to the job that started
first. A job of a higher rank takes them, but not from a job whose finalists compete.

Two jobs that do the same work never run at once: the second starts later and finds the first one's results.

An event that is illegal for its job changes nothing and raises :class:`~ktuned.model.errors.IllegalMove`, whose message
has the job's story.

*Known failures.* If a job found no working config in a context, another job would find none. A lookup that would
otherwise request the same job again gets the failed job's message instead.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Container
from enum import StrEnum
from time import monotonic, time
from typing import assert_never

import msgspec
from msgspec.structs import replace

from ktuned.fleet import KILLS_EXCUSED
from ktuned.model import FrozenStruct, IllegalMove, KernelInfo, Objective, Plan, WinnerKey
from ktuned.protocol import Job, JobEvent, JobPaused, JobQueued, JobState, Priority
from ktuned.scheduling.idle_policy import IdlePolicy
from ktuned.scheduling.queue import JobQueue, extend_plan
from ktuned.store import Context
from ktuned.tuning import JobBrief, JobStage

MAX_FAILED = 10_000
"""Most failures that are kept. If one is forgotten, the next lookup requests a job, which finds every trial known."""


class KnownFailures:
    """Messages of failed jobs by context, objective and kernel's plan. Beyond ``limit``, the oldest is forgotten."""

    def __init__(self, limit: int = MAX_FAILED) -> None:
        self._limit = limit
        self._messages: dict[tuple[Context, Objective, str], str] = {}

    def record_job_end(self, brief: JobBrief, state: JobState, message: str, *, is_hopeless: bool = False) -> None:
        """Record how a job ended, if that predicts the end of the next job.

        A failure does so if the job had at least the kernel's declared budget. It also does if the job ``is_hopeless``,
        which shows that all configs fail alike; not, however, if the job was for certain configs only.
        """
        key = brief.context, brief.job.objective, brief.kernel.plan_digest
        # A job with a smaller budget than the kernel declares has not tried every config that another job would.
        declared = replace(brief.kernel.plan, objective=brief.job.objective)
        went_all_the_way = extend_plan(brief.job.plan, declared) == brief.job.plan
        is_conclusive = bool(brief.devices) and (went_all_the_way or (is_hopeless and not brief.job.plan.configs))
        if state is JobState.DONE:
            self._messages.pop(key, None)
        elif state is JobState.FAILED and is_conclusive:
            if len(self._messages) >= self._limit:
                del self._messages[next(iter(self._messages))]
            self._messages[key] = message

    def list_messages(self, kernel: KernelInfo) -> dict[tuple[Context, Objective], str]:
        """Return how the newest jobs of a kernel failed, for its present plan, by context and objective."""
        return {
            (context, objective): message
            for (context, objective, plan), message in self._messages.items()
            if context.kernel == kernel.name and plan == kernel.plan_digest
        }

    def forget_failures(self, kernel: str | None = None) -> bool:
        """Forget a kernel's failures, or all of them: something outside of contexts makes another try worthwhile.

        Return whether there were any.
        """
        before = len(self._messages)
        self._messages = {key: said for key, said in self._messages.items() if kernel not in (None, key[0].kernel)}
        return len(self._messages) < before


MOST_RUNNING = 16
"""Most jobs that run at once on a device model. Sixteen jobs with three configs each keep 48 slots busy. Each running
job takes a little of the daemon's memory, and if it is cancelled, its configs were compiled for nothing."""

CHANGES_EXCUSED = 5
"""How often a job may find its files changed since they were inspected, without progress in between."""

STORY_LENGTH = 20
"""Most events that are kept as a job's story. A job may be preempted any number of times, and the latest moves are
enough to explain an error."""


class JobPlace(StrEnum):
    """A job's place in the table; finer than its public state."""

    WAITING = "waiting"
    PAUSED = "paused"
    RUNNING = "running"
    YIELDING = "yielding"
    PAUSING = "pausing"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LEFT = "left to the next daemon"


class JobMove(StrEnum):
    """Moves in a job's life. The last five are the ways in which its pipeline ends."""

    STARTED = "started"
    PREEMPTED = "preempted"
    OUTDATED = "outdated"
    PAUSED = "paused"
    RESUMED = "resumed"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    DAEMON_STOPPED = "daemon stopped"


_Moves = dict[JobMove, JobPlace]


def _make_stopping_moves(place: JobPlace) -> _Moves:
    """Return the moves of a job that was asked to stop, and that goes to ``place`` however its pipeline ends."""
    ends = (JobMove.SUCCEEDED, JobMove.FAILED, JobMove.INTERRUPTED, JobMove.STOPPED)
    return {**dict.fromkeys(ends, place), JobMove.DAEMON_STOPPED: JobPlace.LEFT}


MOVES: dict[JobPlace, _Moves] = {
    JobPlace.WAITING: {
        JobMove.OUTDATED: JobPlace.WAITING,
        JobMove.STARTED: JobPlace.RUNNING,
        JobMove.PAUSED: JobPlace.PAUSED,
        JobMove.RESUMED: JobPlace.WAITING,
        JobMove.CANCELLED: JobPlace.CANCELLED,
    },
    JobPlace.PAUSED: {
        JobMove.OUTDATED: JobPlace.PAUSED,
        JobMove.PAUSED: JobPlace.PAUSED,
        JobMove.RESUMED: JobPlace.WAITING,
        JobMove.CANCELLED: JobPlace.CANCELLED,
    },
    JobPlace.RUNNING: {
        JobMove.PREEMPTED: JobPlace.YIELDING,
        JobMove.OUTDATED: JobPlace.YIELDING,
        JobMove.PAUSED: JobPlace.PAUSING,
        JobMove.RESUMED: JobPlace.RUNNING,
        JobMove.CANCELLED: JobPlace.CANCELLING,
        JobMove.SUCCEEDED: JobPlace.DONE,
        JobMove.FAILED: JobPlace.FAILED,
        JobMove.INTERRUPTED: JobPlace.WAITING,
        JobMove.DAEMON_STOPPED: JobPlace.LEFT,
    },
    JobPlace.YIELDING: {
        JobMove.OUTDATED: JobPlace.YIELDING,
        JobMove.PAUSED: JobPlace.PAUSING,
        JobMove.RESUMED: JobPlace.YIELDING,
        JobMove.CANCELLED: JobPlace.CANCELLING,
        **_make_stopping_moves(JobPlace.WAITING),
    },
    JobPlace.PAUSING: {
        JobMove.OUTDATED: JobPlace.PAUSING,
        JobMove.PAUSED: JobPlace.PAUSING,
        JobMove.RESUMED: JobPlace.YIELDING,
        JobMove.CANCELLED: JobPlace.CANCELLING,
        **_make_stopping_moves(JobPlace.PAUSED),
    },
    JobPlace.CANCELLING: {
        JobMove.OUTDATED: JobPlace.CANCELLING,
        JobMove.RESUMED: JobPlace.CANCELLING,
        JobMove.CANCELLED: JobPlace.CANCELLING,
        **_make_stopping_moves(JobPlace.CANCELLED),
    },
}

STATES: dict[JobPlace, JobState] = {
    JobPlace.WAITING: JobState.QUEUED,
    JobPlace.PAUSED: JobState.PAUSED,
    JobPlace.RUNNING: JobState.RUNNING,
    JobPlace.YIELDING: JobState.RUNNING,
    JobPlace.PAUSING: JobState.RUNNING,
    JobPlace.CANCELLING: JobState.RUNNING,
    JobPlace.DONE: JobState.DONE,
    JobPlace.FAILED: JobState.FAILED,
    JobPlace.CANCELLED: JobState.CANCELLED,
    # The job's row in the store says `running`, and the next daemon queues it.
    JobPlace.LEFT: JobState.RUNNING,
}
"""A job's public state in each place."""

STOPPING = frozenset({JobPlace.YIELDING, JobPlace.PAUSING, JobPlace.CANCELLING})
"""Places of a job that was asked to stop and whose pipeline has not ended yet."""


class JobLife(msgspec.Struct, eq=False):
    """One job's place in the table, and how it got there.

    Attributes:
        job: The job's id.
        place: Its place in the table.
        kills: Runs since its last progress that ended because its workers were killed from outside.
        changes: Runs since its last progress that ended because its files had changed.
        story: Its latest moves.
    """

    job: int
    place: JobPlace = JobPlace.WAITING
    kills: int = 0
    changes: int = 0
    story: deque[JobMove] = msgspec.field(default_factory=lambda: deque(maxlen=STORY_LENGTH))

    def make_move(self, move: JobMove) -> JobPlace:
        """Make a move and return the new place.

        Raises:
            IllegalMove: The table has no such move; the job stays where it was.
        """
        moves = MOVES.get(self.place, {})
        if move not in moves:
            story = " → ".join(self.story) or "nothing"
            raise IllegalMove(f"job {self.job} is {self.place} and cannot be {move} (so far: {story})")
        self.story.append(move)
        self.place = moves[move]
        return self.place


# Events


class Ending(StrEnum):
    """The end of a job's pipeline, or of the attempt to make one."""

    DONE = "done"
    FAILED = "failed"
    HOPELESS = "hopeless"
    KILLED = "killed from outside"
    NOT_RECORDED = "not recorded"
    SOURCE_CHANGED = "source changed"
    STOPPED = "stopped"
    DAEMON_STOPPED = "daemon stopped"


class TakenUp(FrozenStruct):
    """The previous daemon left these jobs queued or paused."""

    jobs: Collection[Job]


class Arrived(FrozenStruct):
    """A new job was recorded; with ``is_fixed`` its priority stays as it is even while clients wait for it."""

    job: Job
    is_fixed: bool = False


class Joined(FrozenStruct):
    """Another request wants the work of a live job; its ``plan`` may extend the job's, ``None`` changes nothing."""

    job: int
    priority: int
    reason: str
    plan: Plan | None = None
    is_fixed: bool = False


class CancelAsked(FrozenStruct):
    """A job is to end; ``message`` is the reason."""

    job: int
    message: str = "cancelled"


class BeginAgainAsked(FrozenStruct):
    """A job is to be prepared again, because its kernel or its environment has changed."""

    job: int
    message: str


class PauseAsked(FrozenStruct):
    """A job is to wait until it is resumed."""

    job: int


class ResumeAsked(FrozenStruct):
    """A pause is taken back."""

    job: int


class Inspected(FrozenStruct):
    """The catalog knows the present state of a kernel's files."""

    kernel: str


class Reviewed(FrozenStruct):
    """The order of jobs may have changed: the choice of running jobs is to be reconsidered."""


class Advanced(FrozenStruct):
    """A running job's pipeline has reached its next stage."""

    job: int
    stage: JobStage


class Ended(FrozenStruct):
    """A running job's pipeline ended.

    Attributes:
        job: The job with its newest figures.
        ending: How the pipeline ended.
        message: The reason, for the job's message.
        gets_on: Whether the run made progress: some config was tried.
        brief: The brief of the run; ``None`` if the preparation failed.
    """

    job: Job
    ending: Ending
    message: str = ""
    gets_on: bool = False
    brief: JobBrief | None = None


class StoreMended(FrozenStruct):
    """The store can be written again."""


Event = (
    TakenUp
    | Arrived
    | Joined
    | CancelAsked
    | BeginAgainAsked
    | PauseAsked
    | ResumeAsked
    | Inspected
    | Reviewed
    | Advanced
    | Ended
    | StoreMended
)


# Instructions


class Start(FrozenStruct):
    """Prepare a job and run its pipeline."""

    job: Job


class Stop(FrozenStruct):
    """Stop a running job's pipeline; its results so far are kept."""

    job: int


class GrantLanes(FrozenStruct):
    """Let this running job, and no other, use the lanes of its device model."""

    job: int


class Record(FrozenStruct):
    """Write a job's row. If ``is_vital``, a store error is the answer to the request that caused this."""

    job: Job
    is_vital: bool = True


class Publish(FrozenStruct):
    """Publish an event of a job, after its facts are recorded."""

    event: type[JobEvent]
    job: Job


class Close(FrozenStruct):
    """Record that a job has ended, and publish it, even if it cannot be recorded."""

    job: Job


class Inspect(FrozenStruct):
    """Have the files of a job's kernel inspected: the job waits for that, and the watcher may not report the change."""

    job: Job


Instruction = Start | Stop | GrantLanes | Record | Publish | Close | Inspect

_MOVE_OF = {
    Ending.DONE: JobMove.SUCCEEDED,
    Ending.FAILED: JobMove.FAILED,
    Ending.HOPELESS: JobMove.FAILED,
    Ending.KILLED: JobMove.INTERRUPTED,
    Ending.NOT_RECORDED: JobMove.INTERRUPTED,
    Ending.SOURCE_CHANGED: JobMove.INTERRUPTED,
    Ending.STOPPED: JobMove.STOPPED,
    Ending.DAEMON_STOPPED: JobMove.DAEMON_STOPPED,
}


class _Run(msgspec.Struct):
    """One run of a job, from its start to its pipeline's end.

    Attributes:
        job: The job as it runs.
        inspections: How often the job's kernel had been inspected when the run started.
        stage: The stage that its pipeline has reached.
        stop_reason: Why it was asked to stop.
    """

    job: Job
    inspections: int
    stage: JobStage = JobStage.EXPLORING
    stop_reason: str = ""


class JobMachine:
    """All live jobs: those that wait or run.

    Args:
        pauses: The device models that are paused.
        idle_policy: Decides which jobs must not run now, because others use the machine.
        clock: Returns a time in seconds that never goes back; jobs are ranked by it.
        now: Returns the Unix time that is recorded.

    Attributes:
        idle_policy: Decides which jobs must not run now.
        queue: The waiting jobs.
        failures: The jobs that failed, and that would fail again.
        stalled: The reason why nothing can be recorded, or empty. No job starts until the store can be written again.
    """

    def __init__(
        self,
        *,
        pauses: Collection[str] = (),
        idle_policy: IdlePolicy | None = None,
        clock: Callable[[], float] = monotonic,
        now: Callable[[], float] = time,
    ) -> None:
        self.idle_policy = idle_policy or IdlePolicy()
        self.queue = JobQueue(clock=clock, refuse=self.idle_policy.refuse_job)
        self.queue.pauses = {*pauses}
        self.failures = KnownFailures()
        self.stalled = ""
        self._clock = clock
        self._now = now
        self._lives: dict[int, JobLife] = {}
        """The life of every live job, waiting or running."""
        self._runs: dict[int, _Run] = {}
        """The runs, in the order in which they started."""
        self._lane_holders: dict[str, int] = {}
        """The job that has the lanes, by device model."""
        self._inspections: Counter[str] = Counter()
        """How often each kernel was inspected."""
        self._instructions: list[Instruction] = []
        """What follows from the event that is being handled."""

    def handle(self, event: Event) -> list[Instruction]:
        """Handle an event; return the instructions that follow from it, in order.

        Raises:
            IllegalMove: The event's job is not live, or the event is illegal for it now; nothing has changed.
        """
        self._instructions = []
        match event:
            case TakenUp(jobs):
                for job in jobs:
                    self._queue_job(job)
            case Arrived(job, is_fixed):
                self._queue_job(job, is_fixed=is_fixed)
                self._add(Publish(JobQueued, job))
            case Joined():
                self._join_job(event)
            case CancelAsked():
                self._cancel_job(event)
            case BeginAgainAsked():
                self._begin_again(event)
            case PauseAsked(job_id):
                self._pause_job(job_id)
            case ResumeAsked(job_id):
                self._resume_job(job_id)
            case Inspected(kernel):
                self._inspections[kernel] += 1
                self.queue.release_jobs_of_kernel(kernel)
            case Reviewed():
                self._choose_running_jobs()
            case Advanced(job_id, stage):
                self._advance_stage(self._get_job(job_id), stage)
            case Ended():
                self._end_job(event)
            case StoreMended():
                self.stalled = ""
            case _:
                assert_never(event)
        return self._instructions

    def _add(self, *instructions: Instruction) -> None:
        self._instructions += instructions

    # Queries

    @property
    def running(self) -> list[Job]:
        """The jobs that run, including those that were asked to stop."""
        return [run.job for run in self._runs.values()]

    def find_job(self, job_id: int) -> Job | None:
        """Return a live job, running or waiting."""
        return self.find_running_job(job_id) or self.queue.get_job(job_id)

    def is_paused(self, job_id: int) -> bool:
        """Return whether a live job is paused, or is about to be."""
        return self._lives[job_id].place in (JobPlace.PAUSED, JobPlace.PAUSING)

    def find_running_job(self, job_id: int) -> Job | None:
        """Return a running job."""
        run = self._runs.get(job_id)
        return None if run is None else run.job

    def list_running_on(self, device: str) -> list[Job]:
        """Return the jobs that run on a device model, in the order in which they started."""
        return [job for job in self.running if job.device == device]

    def find_lane_holder(self, device: str) -> Job | None:
        """Return the job that has the lanes of a device model."""
        return self.find_running_job(self._lane_holders.get(device, 0))

    def find_matching_job(self, key: WinnerKey, plan: Plan | None, excluded: Container[int] = ()) -> Job | None:
        """Return the live job that finds a key's winner by ``plan``, or that could with a larger budget.

        Args:
            key: The key.
            plan: The plan that the job must follow; with ``None`` any plan will do.
            excluded: Ids of jobs to leave out.
        """
        for running in self.running:
            if running.key == key and running.id not in excluded:
                does_all = plan is None or extend_plan(running.plan, plan) == running.plan
                if does_all and self._lives[running.id].place is not JobPlace.CANCELLING:
                    return running
        return self.queue.find_matching_job(key, plan, excluded)

    def is_waited_for(self, job_id: int) -> bool:
        """Return whether a client waits for a live job."""
        return self.queue.find_level(job_id) >= Priority.WAITED_FOR

    def find_slot_rank(self, job_id: int) -> int:
        """Return a live job's rank for compile slots and devices. Among equals, jobs that measure sooner come first.

        The job that has the lanes keeps its full rank. Each further job has 1 less than the one before it, which is
        small compared with a level.
        """
        rank, job = self.queue.find_rank(job_id), self.find_running_job(job_id)
        if job is None or self._lane_holders.get(job.device) == job_id:
            return rank
        others = [
            other.id for other in self.list_running_on(job.device) if other.id != self._lane_holders.get(job.device)
        ]
        return rank - others.index(job_id) - 1

    # Handlers

    def _queue_job(self, job: Job, *, is_fixed: bool = False) -> None:
        place = JobPlace.PAUSED if job.state is JobState.PAUSED else JobPlace.WAITING
        self._lives[job.id] = JobLife(job.id, place)
        self.queue.add_job(job, is_fixed=is_fixed)

    def _join_job(self, event: Joined) -> None:
        job = self._get_job(event.job)
        is_resumed = event.priority >= Priority.REQUESTED
        if job.id in self._runs:
            if is_resumed and self._lives[job.id].place is JobPlace.PAUSING:
                self._move_job(job.id, JobMove.RESUMED)
            self._runs[job.id].job = self.queue.raise_job_priority(
                job, event.priority, event.reason, is_fixed=event.is_fixed
            )
            return
        before = job
        if is_resumed and job.state is JobState.PAUSED:
            # A request by name takes a pause back.
            self._move_job(job.id, JobMove.RESUMED)
            job = self.queue.resume_job(job.id)
        job = self.queue.raise_job_priority(job, event.priority, event.reason, is_fixed=event.is_fixed)
        larger = job.plan if event.plan is None else extend_plan(job.plan, event.plan)
        if larger is not None and larger != job.plan:
            job = replace(job, plan=larger)
            self.queue.replace_job(job)
        if (job.state, job.plan) != (before.state, before.plan):
            self._add(Record(job))
        if job.state is not before.state:
            self._add(Publish(JobQueued, job))

    def _cancel_job(self, event: CancelAsked) -> None:
        job = self._get_job(event.job)
        is_stopping = self._lives[job.id].place is JobPlace.CANCELLING
        place = self._move_job(job.id, JobMove.CANCELLED)
        if place is JobPlace.CANCELLED:
            self.queue.remove_job(job.id)
            self._close_job(job, JobState.CANCELLED, event.message)
        elif not is_stopping:
            self._stop_job(job, event.message)

    def _begin_again(self, event: BeginAgainAsked) -> None:
        job = self._get_job(event.job)
        is_stopping = self._lives[job.id].place in STOPPING
        place = self._move_job(job.id, JobMove.OUTDATED)
        # A waiting job is prepared when it starts, and a stopping job when it starts the next time.
        if place is JobPlace.YIELDING and not is_stopping:
            self._stop_job(job, event.message)

    def _pause_job(self, job_id: int) -> None:
        job = self._get_job(job_id)
        is_stopping = self._lives[job_id].place is JobPlace.PAUSING
        place = self._move_job(job_id, JobMove.PAUSED)
        if place is JobPlace.PAUSED:
            paused = self.queue.pause_job(job_id)
            self._add(Record(paused), Publish(JobPaused, paused))
        elif not is_stopping:
            self._stop_job(job, "")

    def _resume_job(self, job_id: int) -> None:
        job = self._get_job(job_id)
        self._move_job(job_id, JobMove.RESUMED)
        if job.state is JobState.PAUSED:
            resumed = self.queue.resume_job(job_id)
            self._add(Record(resumed), Publish(JobQueued, resumed))

    def _choose_running_jobs(self) -> None:
        if self.stalled:
            return
        for device in sorted(self.queue.devices | {job.device for job in self.running}):
            first = self.queue.choose_next_job(device, self._may_run)
            for running in self.list_running_on(device):
                reason = self._find_reason_to_make_way(running, first)
                if reason and self._lives[running.id].place is JobPlace.RUNNING:
                    self._move_job(running.id, JobMove.PREEMPTED)
                    self._stop_job(running, reason)
            if first is not None and self._has_room_for(first):
                self._start_job(first)
            self._grant_lanes(device)

    def _advance_stage(self, job: Job, stage: JobStage) -> None:
        run = self._runs.get(job.id)
        # Without a run, the job waits again by now.
        if run is not None:
            run.stage = max(run.stage, stage)

    def _may_run(self, waiting: Job) -> bool:
        """Return whether no running job of the same or a higher rank does the same work."""
        rank = self.queue.find_rank(waiting.id)
        same = (job for job in self.running if _try_same_configs(job, waiting))
        return all(self.queue.find_rank(job.id) < rank for job in same)

    def _find_reason_to_make_way(self, running: Job, first: Job | None) -> str:
        obstacle = self.queue.explain_wait(running)
        if obstacle:
            return f"made way: {obstacle}"
        is_outranked = first is not None and self.queue.find_rank(first.id) > self.queue.find_rank(running.id)
        return "made way for a more important job" if is_outranked else ""

    def _has_room_for(self, waiting: Job) -> bool:
        """Return whether a job that starts now would take no compile slot from the running jobs."""
        running = self.list_running_on(waiting.device)
        return len(running) < MOST_RUNNING and all(
            self._lives[job.id].place is JobPlace.RUNNING
            and self._runs[job.id].stage is not JobStage.EXPLORING
            and not _try_same_configs(job, waiting)
            for job in running
        )

    def _start_job(self, job: Job) -> None:
        self._move_job(job.id, JobMove.STARTED)
        self.queue.remove_job(job.id)
        started = replace(job, state=JobState.RUNNING, started=self._now(), message="")
        self._runs[job.id] = _Run(started, self._inspections[job.kernel])
        self._add(Start(started))

    def _grant_lanes(self, device: str) -> None:
        """Give the lanes to a job of the highest rank; a job whose finalists compete keeps them."""
        able = [job.id for job in self.list_running_on(device) if self._lives[job.id].place is JobPlace.RUNNING]
        holder = self._lane_holders.get(device)
        if not able:
            return
        best = max(able, key=self.queue.find_rank)
        if holder in able:
            is_first = self.queue.find_rank(holder) >= self.queue.find_rank(best)
            if self._runs[holder].stage is JobStage.DECIDING or is_first:
                return
        if holder in self._runs:
            self.queue.end_turn(holder)
        self._lane_holders[device] = best
        self.queue.begin_turn(best)
        self._add(GrantLanes(best))

    def _stop_job(self, job: Job, reason: str) -> None:
        self._runs[job.id].stop_reason = reason
        self._add(Stop(job.id))

    def _end_job(self, event: Ended) -> None:
        job, message = event.job, event.message
        self._get_job(job.id)
        life = self._lives[job.id]
        # If a job's workers are killed again and again without progress, the job is to blame. Its files must not change
        # for ever either.
        is_kill, is_change = event.ending is Ending.KILLED, event.ending is Ending.SOURCE_CHANGED
        kills = is_kill + (0 if event.gets_on else life.kills)
        changes = is_change + (0 if event.gets_on else life.changes)
        is_excused = is_kill and kills <= KILLS_EXCUSED
        is_failed = (is_kill and not is_excused) or changes > CHANGES_EXCUSED
        is_stopping = life.place in STOPPING
        place = self._move_job(job.id, JobMove.FAILED if is_failed else _MOVE_OF[event.ending])

        life.kills, life.changes = kills, changes
        run = self._runs.pop(job.id)
        if self._lane_holders.get(job.device) == job.id:
            del self._lane_holders[job.device]
        if event.ending is Ending.NOT_RECORDED:
            self.stalled = message
        if is_stopping:
            message = run.stop_reason
        elif is_excused:
            message = f"taken up again: {message}"
        elif is_change:
            message = f"{'its files keep changing' if is_failed else 'waits for a new inspection'}: {message}"
        if event.brief is not None:
            is_hopeless = event.ending is Ending.HOPELESS
            self.failures.record_job_end(event.brief, STATES[place], message, is_hopeless=is_hopeless)
        if place is JobPlace.LEFT:
            self._forget_job(job.id)
        elif place in (JobPlace.WAITING, JobPlace.PAUSED):
            waiting = replace(job, state=STATES[place], message=message)
            self.queue.add_job(waiting)
            self._add(
                Record(waiting, is_vital=False), Publish(JobPaused if place is JobPlace.PAUSED else JobQueued, waiting)
            )
            if is_change and self._inspections[job.kernel] == run.inspections:
                # The files have changed since their inspection, and were not inspected again yet.
                self.queue.hold_until_inspected(job.id)
                self._add(Inspect(waiting))
        else:
            self._close_job(job, STATES[place], message)

    def _close_job(self, job: Job, state: JobState, message: str) -> None:
        self.queue.remove_job(job.id)
        self._forget_job(job.id)
        self._add(Close(replace(job, state=state, message=message, finished=self._now())))

    def _forget_job(self, job_id: int) -> None:
        self.queue.forget_job(job_id)
        del self._lives[job_id]

    def _get_job(self, job_id: int) -> Job:
        job = self.find_job(job_id)
        if job is None:
            raise IllegalMove(f"job {job_id} is not live: it has ended, or never existed")
        return job

    def _move_job(self, job_id: int, move: JobMove) -> JobPlace:
        return self._lives[job_id].make_move(move)


def _try_same_configs(job: Job, other: Job) -> bool:
    """Return whether two jobs try the same configs, even if they judge them by different objectives.

    A judged job and a tuning do different work.
    """
    return job.plan.is_judged == other.plan.is_judged and job.key._replace(objective=other.objective) == other.key
