"""Events that the job machine takes, and instructions that it gives. Values without behaviour."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from ktuned.model import Job, Plan
from ktuned.protocol import JobEvent
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
    """The last daemon left these jobs queued or paused."""

    jobs: Collection[Job]


class Arrived(msgspec.Struct, frozen=True):
    """A job was recorded for new work; ``is_fixed`` keeps its priority as it is, although clients wait for it."""

    job: Job
    is_fixed: bool = False


class Joined(msgspec.Struct, frozen=True):
    """One more request wants what a job does already; ``plan`` may extend it, ``None`` takes it as it is."""

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
    """A job is to be prepared again, because its kernel or its environment is another one now."""

    job: int
    message: str


class PauseAsked(msgspec.Struct, frozen=True):
    """A job is to wait until it is resumed."""

    job: int


class ResumeAsked(msgspec.Struct, frozen=True):
    """A pause is taken back."""

    job: int


class Inspected(msgspec.Struct, frozen=True):
    """The catalog knows a kernel's files as they are now."""

    kernel: str


class Reviewed(msgspec.Struct, frozen=True):
    """The order of jobs may have changed: it is to be decided again which run."""


class Advanced(msgspec.Struct, frozen=True):
    """A running job's pipeline has reached its next stage."""

    job: int
    stage: JobStage


class Ended(msgspec.Struct, frozen=True):
    """A running job's pipeline ended.

    ``job`` has its newest figures; ``gets_on`` says that it tried something since it was started; ``brief`` is what
    it ran with, if it was prepared.
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
    """Stop a running job's pipeline; what it measured stays known."""

    job: int


class GrantLanes(msgspec.Struct, frozen=True):
    """Let a running job use the lanes of its device model, and no other job."""

    job: int


class Record(msgspec.Struct, frozen=True):
    """Write a job's row. Where the request that caused it needs that (``is_vital``), a store error is its answer."""

    job: Job
    is_vital: bool = True


class Publish(msgspec.Struct, frozen=True):
    """Publish an event of a job, after what it says is recorded."""

    event: type[JobEvent]
    job: Job


class Close(msgspec.Struct, frozen=True):
    """Record a job that has ended, and publish that; it is published even where it cannot be recorded."""

    job: Job


class Inspect(msgspec.Struct, frozen=True):
    """Have the files of a job's kernel inspected: the job waits for that, and no event of theirs may come."""

    job: Job


Instruction = Start | Stop | GrantLanes | Record | Publish | Close | Inspect
