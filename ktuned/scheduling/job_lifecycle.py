"""A job's life: every state, every event, every legal move, as one table without IO.

::

    waiting ──▶ running ──▶ done, failed             paused ◀──▶ waiting      waiting, paused ──▶ cancelled
       ▲          │  ├─ interrupted ──▶ waiting
       │          ▼  ▼
       ├────── yielding ⇄ pausing ──▶ paused         yielding, pausing ──▶ cancelling ──▶ cancelled

A running job is stopped in two steps: it is asked to stop (yielding, pausing, cancelling), and then its pipeline ends.
The stop decides where the job goes, however the pipeline ends meanwhile. If there are two reasons to stop, the stronger
one decides; resuming takes back only a pause. A job whose kernel or environment changes (outdated) yields, and is
prepared again later.

An event that the table does not allow changes nothing and raises :class:`~ktuned.model.errors.IllegalMove`, whose
message has the job's story.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Final

from ktuned.model import IllegalMove
from ktuned.protocol import JobState

STORY_LENGTH: Final = 20
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


class JobEvent(StrEnum):
    """Events in a job's life. The last five are the ways in which its pipeline ends."""

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


_Moves = dict[JobEvent, JobPlace]


def _make_stopping_moves(place: JobPlace) -> _Moves:
    """Return the moves of a job that was asked to stop, and that goes to ``place`` however its pipeline ends."""
    ends = (JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.INTERRUPTED, JobEvent.STOPPED)
    return {**dict.fromkeys(ends, place), JobEvent.DAEMON_STOPPED: JobPlace.LEFT}


MOVES: dict[JobPlace, _Moves] = {
    JobPlace.WAITING: {
        JobEvent.OUTDATED: JobPlace.WAITING,
        JobEvent.STARTED: JobPlace.RUNNING,
        JobEvent.PAUSED: JobPlace.PAUSED,
        JobEvent.RESUMED: JobPlace.WAITING,
        JobEvent.CANCELLED: JobPlace.CANCELLED,
    },
    JobPlace.PAUSED: {
        JobEvent.OUTDATED: JobPlace.PAUSED,
        JobEvent.PAUSED: JobPlace.PAUSED,
        JobEvent.RESUMED: JobPlace.WAITING,
        JobEvent.CANCELLED: JobPlace.CANCELLED,
    },
    JobPlace.RUNNING: {
        JobEvent.PREEMPTED: JobPlace.YIELDING,
        JobEvent.OUTDATED: JobPlace.YIELDING,
        JobEvent.PAUSED: JobPlace.PAUSING,
        JobEvent.RESUMED: JobPlace.RUNNING,
        JobEvent.CANCELLED: JobPlace.CANCELLING,
        JobEvent.SUCCEEDED: JobPlace.DONE,
        JobEvent.FAILED: JobPlace.FAILED,
        JobEvent.INTERRUPTED: JobPlace.WAITING,
        JobEvent.DAEMON_STOPPED: JobPlace.LEFT,
    },
    JobPlace.YIELDING: {
        JobEvent.OUTDATED: JobPlace.YIELDING,
        JobEvent.PAUSED: JobPlace.PAUSING,
        JobEvent.RESUMED: JobPlace.YIELDING,
        JobEvent.CANCELLED: JobPlace.CANCELLING,
        **_make_stopping_moves(JobPlace.WAITING),
    },
    JobPlace.PAUSING: {
        JobEvent.OUTDATED: JobPlace.PAUSING,
        JobEvent.PAUSED: JobPlace.PAUSING,
        JobEvent.RESUMED: JobPlace.YIELDING,
        JobEvent.CANCELLED: JobPlace.CANCELLING,
        **_make_stopping_moves(JobPlace.PAUSED),
    },
    JobPlace.CANCELLING: {
        JobEvent.OUTDATED: JobPlace.CANCELLING,
        JobEvent.RESUMED: JobPlace.CANCELLING,
        JobEvent.CANCELLED: JobPlace.CANCELLING,
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


class JobLife:
    """One job's place in the table, and how it got there.

    Attributes:
        job: The job's id.
        place: Its place in the table.
        kills: Runs since its last progress that ended because its workers were killed from outside.
        changes: Runs since its last progress that ended because its files had changed.
        story: Its latest events.
    """

    __slots__ = ("changes", "job", "kills", "place", "story")

    def __init__(self, job: int, place: JobPlace = JobPlace.WAITING) -> None:
        self.job = job
        self.place = place
        self.kills = 0
        self.changes = 0
        self.story: deque[JobEvent] = deque(maxlen=STORY_LENGTH)

    def make_move(self, event: JobEvent) -> JobPlace:
        """Make the move of ``event`` and return the new place.

        Raises:
            IllegalMove: The table has no such move; the job stays where it was.
        """
        moves = MOVES.get(self.place, {})
        if event not in moves:
            story = " → ".join(self.story) or "nothing"
            raise IllegalMove(f"job {self.job} is {self.place} and cannot be {event} (so far: {story})")
        self.story.append(event)
        self.place = moves[event]
        return self.place
