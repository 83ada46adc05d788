"""Events that the job machine takes, and instructions that it gives. Values without behaviour."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from enum import StrEnum

from ktuned.model import Job, Plan
from ktuned.tuning import Work


class Ending(StrEnum):
    """The end of a job's pipeline, or of the attempt to make one."""

    DONE = "done"
    FAILED = "failed"
    KILLED = "killed from outside"
    NOT_RECORDED = "not recorded"
    SOURCE_CHANGED = "source changed"
    STOPPED = "stopped"
    DAEMON_STOPPED = "daemon stopped"


@dataclass(frozen=True, slots=True)
class TakenUp:
    """The last daemon left these jobs queued or paused."""

    jobs: Collection[Job]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A job was recorded for new work; ``is_fixed`` keeps its priority as it is, although clients wait for it."""

    job: Job
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """One more request wants what a job does already; ``plan`` may extend it, ``None`` takes it as it is."""

    job: int
    priority: int
    reason: str
    plan: Plan | None = None
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A job cannot even wait, because there is no device for it."""

    job: int
    message: str


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """A job is to end; ``message`` is the reason."""

    job: int
    message: str = "cancelled"


@dataclass(frozen=True, slots=True)
class BeginAgainAsked:
    """A job is to be prepared again, because its kernel or its environment is another one now."""

    job: int
    message: str


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """A job is to wait until it is resumed."""

    job: int


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """A pause is taken back."""

    job: int


@dataclass(frozen=True, slots=True)
class PausesChanged:
    """The device models on which nothing may run (``EVERYTHING``: none of them)."""

    devices: Collection[str]


@dataclass(frozen=True, slots=True)
class Attended:
    """A client waits for jobs."""

    waiter: Hashable
    jobs: Collection[int]


@dataclass(frozen=True, slots=True)
class Left:
    """A client waits no longer."""

    waiter: Hashable


@dataclass(frozen=True, slots=True)
class Inspected:
    """The catalog knows a kernel's files as they are now."""

    kernel: str


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The order of jobs may have changed: it is to be decided again which run."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A running job's pipeline ended.

    ``job`` has its newest figures; ``gets_on`` says that it tried something since it was started; ``work`` is what it
    worked on, if it came so far.
    """

    job: Job
    ending: Ending
    message: str = ""
    gets_on: bool = False
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class StoreMended:
    """The store can be written again."""


Event = (
    TakenUp
    | Arrived
    | Joined
    | Refused
    | CancelAsked
    | BeginAgainAsked
    | PauseAsked
    | ResumeAsked
    | PausesChanged
    | Attended
    | Left
    | Inspected
    | Reviewed
    | Ended
    | StoreMended
)


@dataclass(frozen=True, slots=True)
class Start:
    """Prepare a job and run its pipeline."""

    job: Job


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a running job's pipeline; what it measured stays known."""

    job: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write a job's row. Where the request that caused it needs that (``is_vital``), a store error is its answer."""

    job: Job
    is_vital: bool = True


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish a job event, after what it says is recorded."""

    type: str
    job: Job


@dataclass(frozen=True, slots=True)
class Close:
    """Record a job that has ended, and publish that; it is published even where it cannot be recorded."""

    job: Job


Instruction = Start | Stop | Record | Publish | Close
