"""Events that the job machine handles, and instructions that it returns. Values without behaviour."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from ktuned.model import Plan
from ktuned.protocol import Job, JobEvent
from ktuned.tuning import JobBrief, JobStage


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


class TakenUp(msgspec.Struct, frozen=True):
    """The previous daemon left these jobs queued or paused."""

    jobs: Collection[Job]


class Arrived(msgspec.Struct, frozen=True):
    """A new job was recorded; with ``is_fixed`` its priority stays as it is even while clients wait for it."""

    job: Job
    is_fixed: bool = False


class Joined(msgspec.Struct, frozen=True):
    """Another request wants the work of a live job; its ``plan`` may extend the job's, ``None`` changes nothing."""

    job: int
    priority: int
    reason: str
    plan: Plan | None = None
    is_fixed: bool = False


class CancelAsked(msgspec.Struct, frozen=True):
    """A job is to end; ``message`` is the reason."""

    job: int
    message: str = "cancelled"


class BeginAgainAsked(msgspec.Struct, frozen=True):
    """A job is to be prepared again, because its kernel or its environment has changed."""

    job: int
    message: str


class PauseAsked(msgspec.Struct, frozen=True):
    """A job is to wait until it is resumed."""

    job: int


class ResumeAsked(msgspec.Struct, frozen=True):
    """A pause is taken back."""

    job: int


class Inspected(msgspec.Struct, frozen=True):
    """The catalog knows the present state of a kernel's files."""

    kernel: str


class Reviewed(msgspec.Struct, frozen=True):
    """The order of jobs may have changed: the choice of running jobs is to be reconsidered."""


class Advanced(msgspec.Struct, frozen=True):
    """A running job's pipeline has reached its next stage."""

    job: int
    stage: JobStage


class Ended(msgspec.Struct, frozen=True):
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


class StoreMended(msgspec.Struct, frozen=True):
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


class Start(msgspec.Struct, frozen=True):
    """Prepare a job and run its pipeline."""

    job: Job


class Stop(msgspec.Struct, frozen=True):
    """Stop a running job's pipeline; its results so far are kept."""

    job: int


class GrantLanes(msgspec.Struct, frozen=True):
    """Let this running job, and no other, use the lanes of its device model."""

    job: int


class Record(msgspec.Struct, frozen=True):
    """Write a job's row. If ``is_vital``, a store error is the answer to the request that caused this."""

    job: Job
    is_vital: bool = True


class Publish(msgspec.Struct, frozen=True):
    """Publish an event of a job, after its facts are recorded."""

    event: type[JobEvent]
    job: Job


class Close(msgspec.Struct, frozen=True):
    """Record that a job has ended, and publish it, even if it cannot be recorded."""

    job: Job


class Inspect(msgspec.Struct, frozen=True):
    """Have the files of a job's kernel inspected: the job waits for that, and the watcher may not report the change."""

    job: Job


Instruction = Start | Stop | GrantLanes | Record | Publish | Close | Inspect
