"""Job machine: events in, instructions out. Decides everything about jobs, and does no IO.

:mod:`~ktuned.scheduling.job_lifecycle` has the legal moves of one job, :mod:`~ktuned.scheduling.queue` the order of
those that wait. The machine puts them together: one job runs per device model, the highest rank first; it makes way
for a higher rank, for a pause and for what the idle policy says. The dispatcher carries out what it returns.

An event that is illegal for its job changes nothing and raises :class:`~ktuned.model.errors.IllegalMove`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import replace
from time import monotonic, time
from typing import assert_never

from ktuned.fleet import KILLS_EXCUSED
from ktuned.model import IllegalMove, Job, JobState, Plan, Priority, WinnerKey
from ktuned.scheduling.job_events import (
    Arrived,
    Attended,
    BeginAgainAsked,
    CancelAsked,
    Close,
    Ended,
    Ending,
    Event,
    Inspected,
    Instruction,
    Joined,
    Left,
    PauseAsked,
    PausesChanged,
    Publish,
    Record,
    Refused,
    ResumeAsked,
    Reviewed,
    Start,
    Stop,
    StoreMended,
    TakenUp,
)
from ktuned.scheduling.job_lifecycle import STATES, STOPPING, JobEvent, JobLife, JobPlace
from ktuned.scheduling.known_failures import KnownFailures
from ktuned.scheduling.queue import JobQueue, Refusal, extended

_EVENT_OF = {
    Ending.DONE: JobEvent.SUCCEEDED,
    Ending.FAILED: JobEvent.FAILED,
    Ending.KILLED: JobEvent.INTERRUPTED,
    Ending.NOT_RECORDED: JobEvent.INTERRUPTED,
    Ending.SOURCE_CHANGED: JobEvent.INTERRUPTED,
    Ending.STOPPED: JobEvent.STOPPED,
    Ending.DAEMON_STOPPED: JobEvent.DAEMON_STOPPED,
}


class JobMachine:
    """All live jobs. ``queue`` has those that wait, ``failures`` what was tried in vain.

    ``stalled`` is the reason why nothing can be recorded; nothing starts until the store is mended. ``refuse`` may keep
    jobs from running. ``clock`` only rises and ranks jobs; ``now`` gives the Unix time that is recorded.
    """

    def __init__(
        self,
        *,
        pauses: Collection[str] = (),
        refuse: Refusal = lambda job, level: "",
        clock: Callable[[], float] = monotonic,
        now: Callable[[], float] = time,
    ) -> None:
        self.queue = JobQueue(clock=clock, refuse=refuse)
        self.queue.pauses = {*pauses}
        self.failures = KnownFailures()
        self.stalled = ""
        self._now = now
        self._running: dict[str, Job] = {}
        self._lives: dict[int, JobLife] = {}
        self._stop_reasons: dict[int, str] = {}
        self._kills: Counter[int] = Counter()
        self._inspections: Counter[str] = Counter()
        self._inspections_at_start: dict[int, int] = {}

    def handle(self, event: Event) -> list[Instruction]:
        """Take an event in; return what is to be done, in order.

        Raises:
            IllegalMove: the event's job is not live, or cannot take it now; nothing has changed.
        """
        return list(self._handle(event))

    def _handle(self, event: Event) -> Iterator[Instruction]:
        match event:
            case TakenUp():
                self._take_up(event.jobs)
            case Arrived():
                self._wait(event.job, is_fixed=event.is_fixed)
                yield Publish("job_queued", event.job)
            case Joined():
                yield from self._join(event)
            case Refused():
                waiting = self._job(event.job)
                self._move(event.job, JobEvent.REFUSED)
                yield self._close(waiting, JobState.FAILED, event.message)
            case CancelAsked():
                yield from self._cancel(event)
            case BeginAgainAsked():
                yield from self._begin_again(event)
            case PauseAsked():
                yield from self._pause(event.job)
            case ResumeAsked():
                yield from self._resume(event.job)
            case PausesChanged():
                self.queue.pauses = {*event.devices}
            case Attended():
                self.queue.attend(event.waiter, event.jobs)
            case Left():
                self.queue.leave(event.waiter)
            case Inspected():
                self._inspections[event.kernel] += 1
                self.queue.release(event.kernel)
            case Reviewed():
                yield from self._review()
            case Ended():
                yield from self._end_job(event)
            case StoreMended():
                self.stalled = ""
            case _:
                assert_never(event)

    # Queries

    @property
    def running(self) -> list[Job]:
        """The jobs that run, those that are asked to stop included."""
        return list(self._running.values())

    def job(self, job_id: int) -> Job | None:
        """Return a live job as it is known here."""
        return self.running_job(job_id) or self.queue.get(job_id)

    def running_job(self, job_id: int) -> Job | None:
        """Return a running job."""
        return next((job for job in self._running.values() if job.id == job_id), None)

    def running_on(self, device: str) -> Job | None:
        """Return the job that has a device model."""
        return self._running.get(device)

    def find(self, key: WinnerKey, plan: Plan | None, but: Container[int] = ()) -> Job | None:
        """Return the live job that does some work, or could by a larger budget; without a plan, in whatever way.

        Those that are named by ``but`` are left out.
        """
        running = self._running.get(key.device)
        if running is not None and running.key == key and running.id not in but:
            does_all = plan is None or extended(running.plan, plan) == running.plan
            if does_all and self._lives[running.id].place is not JobPlace.CANCELLING:
                return running
        return self.queue.find(key, plan, but)

    def rank(self, job_id: int) -> int:
        """Return a live job's rank now: compile slots and devices are given out by it, too."""
        return self.queue.rank(job_id)

    # Handlers

    def _take_up(self, jobs: Collection[Job]) -> None:
        for job in jobs:
            # One that was asked for before this began waits already, perhaps with a higher priority by now.
            if job.id not in self._lives:
                self._wait(job)

    def _wait(self, job: Job, *, is_fixed: bool = False) -> None:
        place = JobPlace.PAUSED if job.state is JobState.PAUSED else JobPlace.WAITING
        self._lives[job.id] = JobLife(job.id, place)
        self.queue.add(job, is_fixed=is_fixed)

    def _join(self, event: Joined) -> Iterator[Instruction]:
        job = self._job(event.job)
        is_resumed = event.priority >= Priority.REQUESTED
        running = self._running.get(job.device)
        if running is not None and running.id == job.id:
            if is_resumed and self._lives[job.id].place is JobPlace.PAUSING:
                self._move(job.id, JobEvent.RESUMED)
            self._running[job.device] = self.queue.want(job, event.priority, event.reason, is_fixed=event.is_fixed)
            return
        before = job
        if is_resumed and job.state is JobState.PAUSED:
            # Who asks for it by name wants it now.
            self._move(job.id, JobEvent.RESUMED)
            job = self.queue.resume(job.id)
        job = self.queue.want(job, event.priority, event.reason, is_fixed=event.is_fixed)
        larger = job.plan if event.plan is None else extended(job.plan, event.plan)
        if larger is not None and larger != job.plan:
            job = replace(job, plan=larger)
            self.queue.change(job)
        if (job.state, job.plan) != (before.state, before.plan):
            yield Record(job)
        if job.state is not before.state:
            yield Publish("job_queued", job)

    def _cancel(self, event: CancelAsked) -> Iterator[Instruction]:
        job = self._job(event.job)
        is_stopping = self._lives[job.id].place is JobPlace.CANCELLING
        place = self._move(job.id, JobEvent.CANCELLED)
        if place is JobPlace.CANCELLED:
            self.queue.remove(job.id)
            yield self._close(job, JobState.CANCELLED, event.message)
        elif not is_stopping:
            yield self._stop(job, event.message)

    def _begin_again(self, event: BeginAgainAsked) -> Iterator[Instruction]:
        job = self._job(event.job)
        is_stopping = self._lives[job.id].place in STOPPING
        place = self._move(job.id, JobEvent.OUTDATED)
        # One that waits is prepared when it starts, and one that stops is not prepared yet for the next time.
        if place is JobPlace.YIELDING and not is_stopping:
            yield self._stop(job, event.message)

    def _pause(self, job_id: int) -> Iterator[Instruction]:
        job = self._job(job_id)
        is_stopping = self._lives[job_id].place is JobPlace.PAUSING
        place = self._move(job_id, JobEvent.PAUSED)
        if place is JobPlace.PAUSED:
            paused = self.queue.pause(job_id)
            yield Record(paused)
            yield Publish("job_paused", paused)
        elif not is_stopping:
            yield self._stop(job, "")

    def _resume(self, job_id: int) -> Iterator[Instruction]:
        job = self._job(job_id)
        self._move(job_id, JobEvent.RESUMED)
        if job.state is JobState.PAUSED:
            resumed = self.queue.resume(job_id)
            yield Record(resumed)
            yield Publish("job_queued", resumed)

    def _review(self) -> Iterator[Instruction]:
        if self.stalled:
            return
        for device in sorted(self.queue.devices | self._running.keys()):
            running = self._running.get(device)
            if running is None:
                first = self.queue.next_for(device)
                if first is not None:
                    yield self._start(first)
            elif self._lives[running.id].place is JobPlace.RUNNING:
                reason = self._reason_to_make_way(running)
                if reason:
                    self._move(running.id, JobEvent.PREEMPTED)
                    yield self._stop(running, reason)

    def _reason_to_make_way(self, running: Job) -> str:
        obstacle = self.queue.obstacle(running)
        if obstacle:
            return f"made way: {obstacle}"
        return "made way for a more important job" if self.queue.preempts(running) else ""

    def _start(self, job: Job) -> Start:
        self._move(job.id, JobEvent.STARTED)
        self.queue.start(job.id)
        self._inspections_at_start[job.id] = self._inspections[job.kernel]
        started = replace(job, state=JobState.RUNNING, started=self._now(), message="")
        self._running[job.device] = started
        return Start(started)

    def _stop(self, job: Job, reason: str) -> Stop:
        self._stop_reasons[job.id] = reason
        return Stop(job.id)

    def _end_job(self, event: Ended) -> Iterator[Instruction]:
        job, message = event.job, event.message
        self._job(job.id)
        kills = 1 if event.gets_on else self._kills[job.id] + 1
        # A job whose workers are killed again and again without progress is the reason itself.
        is_excused = event.ending is Ending.KILLED and kills <= KILLS_EXCUSED
        is_failed = event.ending is Ending.KILLED and not is_excused
        is_stopping = self._lives[job.id].place in STOPPING
        place = self._move(job.id, JobEvent.FAILED if is_failed else _EVENT_OF[event.ending])

        del self._running[job.device]
        inspections = self._inspections_at_start.pop(job.id)
        reason = self._stop_reasons.pop(job.id, "")
        if event.ending is Ending.KILLED:
            self._kills[job.id] = kills
        if event.ending is Ending.NOT_RECORDED:
            self.stalled = message
        if is_stopping:
            message = reason
        elif is_excused:
            message = f"taken up again: {message}"
        if event.work is not None:
            self.failures.note(event.work, STATES[place], message)
        if place is JobPlace.LEFT:
            self._forget(job.id)
        elif place in (JobPlace.WAITING, JobPlace.PAUSED):
            waiting = replace(job, state=STATES[place], message=message)
            self.queue.add(waiting)
            if event.ending is Ending.SOURCE_CHANGED and self._inspections[job.kernel] == inspections:
                # Its files are not those that were inspected, and their inspection is still to come.
                self.queue.hold(job.id)
            yield Record(waiting, is_vital=False)
            yield Publish("job_paused" if place is JobPlace.PAUSED else "job_queued", waiting)
        else:
            yield self._close(job, STATES[place], message)

    def _close(self, job: Job, state: JobState, message: str) -> Close:
        self.queue.remove(job.id)
        self._forget(job.id)
        return Close(replace(job, state=state, message=message, finished=self._now()))

    def _forget(self, job_id: int) -> None:
        self.queue.forget(job_id)
        self._kills.pop(job_id, None)
        del self._lives[job_id]

    def _job(self, job_id: int) -> Job:
        job = self.job(job_id)
        if job is None:
            raise IllegalMove(f"job {job_id} is not live: it has ended, or never was")
        return job

    def _move(self, job_id: int, event: JobEvent) -> JobPlace:
        return self._lives[job_id].move(event)
