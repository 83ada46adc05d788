"""Events: the types of the stream that a connection subscribes to.

A part of the daemon publishes one of these values when it has committed a change. The stream numbers and encodes the
event, and a client gets the same value back from :func:`read_event`. On the wire an event is one map, whose ``type`` is
the tag of its class. Types are only ever added; :func:`read_event` returns None for a type that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import msgspec
from msgspec.structs import replace

from ktuned.model import (
    LATENCY,
    Config,
    DeviceModel,
    DeviceName,
    KernelName,
    Objective,
    Outcome,
    Problem,
    select_figure,
)
from ktuned.protocol.jobs import Job, JobInfo, StreamPosition
from ktuned.protocol.kernels import FileError
from ktuned.protocol.method import EmptyAnswer, Method, NoParams, Params
from ktuned.protocol.trials import Trial

J = TypeVar("J", bound=Job)


class SubscribeParams(Params):
    """``subscribe``: the (epoch, seq) of the last event that was seen, and filters; events must pass all of them."""

    since: tuple[int, int] | None = None
    kernels: frozenset[str] | None = None
    jobs: frozenset[int] | None = None
    types: frozenset[str] | None = None


class Event(StreamPosition, kw_only=True, tag_field="type"):
    """Base of all events: the kernel and the job that they concern, if any. The stream sets ``seq`` and ``epoch``."""

    seq: int = 0
    epoch: int = 0
    kernel: KernelName | None = None
    job: int | None = None


class EventOfKernel(Event, kw_only=True):
    """Base of events that concern a kernel."""

    kernel: KernelName


class EventOfJob(EventOfKernel, kw_only=True):
    """Base of events that concern a job."""

    job: int


class StreamGap(Event, kw_only=True, tag="gap"):
    """Stands for events that are no longer available; the subscriber should request the current state instead."""


PublishEvent = Callable[[Event], None]
"""Sends an event to the parts of the daemon that it concerns and to all subscribers; never blocks."""


class JobEvent(EventOfJob, kw_only=True):
    """A job's state has changed; ``job_state`` is the job as it is now."""

    job_state: JobInfo

    @classmethod
    def from_job(cls, job: JobInfo) -> Self:
        """Return the event that reports a job."""
        return cls(kernel=job.kernel, job=job.id, job_state=job)


class JobQueued(JobEvent, kw_only=True, tag="job_queued"):
    """A job waits for its turn: it is new, was resumed, or has given up its device."""


class JobStarted(JobEvent, kw_only=True, tag="job_started"):
    """A job runs."""


class JobPaused(JobEvent, kw_only=True, tag="job_paused"):
    """A job waits until it is resumed."""


class JobDone(JobEvent, kw_only=True, tag="job_done"):
    """A job has ended: it is done, was cancelled, or failed."""


class JobProgress(EventOfJob, kw_only=True):
    """A job's figures after one more config; the fields are those of :class:`~ktuned.protocol.Job`."""

    done: int
    total: int | None = None
    outcomes: Mapping[str, int] = {}
    best_us: float | None = None
    best_spread_us: float | None = None
    default_us: float | None = None
    default_spread_us: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None
    best_figure: float | None = None
    default_figure: float | None = None

    def update_job(self, job: J) -> J:
        """Return the job with these figures."""
        return replace(job, **{name: getattr(self, name) for name in FIGURES})


FIGURES = tuple(name for name in JobProgress.__struct_fields__ if name not in Event.__struct_fields__)
"""The names of the figures; a job has fields of the same names."""


class TrialDone(JobProgress, kw_only=True, tag="trial_done"):
    """A config has its outcome.

    Attributes:
        trial: the trial without its detail; None if only the figures changed.
        left_s: estimate of the seconds that the job still needs.
    """

    trial: Trial | None
    left_s: float | None = None


class ConfigCompiled(JobProgress, kw_only=True, tag="config_compiled"):
    """A config of a job that only compiles has its artifact, or the reason why there is none.

    Attributes:
        problem: the problem that it was compiled for.
        target: the architecture that it was compiled for.
        config: the config.
        outcome: None if the config has its artifact.
        message: why there is no artifact.
        compile_s: the seconds that the compile took.
        facts: the figures that the compiler reports, by name.
        artifact: the artifact's path.
        reused: whether the artifact existed already.
    """

    problem: Problem
    target: str
    config: Config
    outcome: Outcome | None
    message: str
    compile_s: float
    facts: Mapping[str, Any]
    artifact: str | None
    reused: bool


class Refining(EventOfJob, kw_only=True, tag="refining"):
    """A round of a job's final measurement begins: number ``round`` of ``rounds``, with ``finalists`` configs."""

    round: int
    rounds: int
    finalists: int


class WinnerChanged(EventOfKernel, kw_only=True, tag="winner"):
    """A problem has another winner. Without a ``job``, it was known before: an edit was undone, or it was imported."""

    problem: Problem
    device: DeviceModel
    config: Config
    latency_us: float
    trial: int | None = None
    metrics: Mapping[str, float] = {}
    objective: Objective = LATENCY

    @property
    def figure(self) -> float | None:
        """The winner's figure by the objective, in the objective's unit."""
        return select_figure(self.objective, self.latency_us, self.metrics)


class KernelStale(EventOfKernel, kw_only=True, tag="stale"):
    """A kernel has changed, so its winners, which are older than the change, are stale."""

    digest: str = ""


class NamesLearned(EventOfKernel, kw_only=True, tag="learned"):
    """Compiling or measuring has shown that a kernel also depends on these files; they are watched from now on."""

    names: tuple[str, ...]


class AnswersChanged(Event, kw_only=True, tag="answers"):
    """Answers for a kernel, or for all, may have changed for a reason without an event of its own. It is not sent.

    Attributes:
        is_revoked: whether the present answers must not be given any more, not even while no better one is known.
    """

    is_revoked: bool = False


class LaneChanged(Event, kw_only=True, tag="lane"):
    """A device's lane has opened, has closed, or is sick, with the reason."""

    device: DeviceName
    state: str
    reason: str | None = None


class PauseEvent(Event, kw_only=True):
    """Tuning on a device model (``""``: on all) was paused or resumed; without a ``device``, by a full disk."""

    device: str | msgspec.UnsetType = msgspec.UNSET
    reason: str = ""


class TuningPaused(PauseEvent, kw_only=True, tag="paused"):
    """Tuning was paused on a device model (``""``: on all). Without a ``device``, because nothing can be recorded."""


class TuningResumed(PauseEvent, kw_only=True, tag="resumed"):
    """A pause that :class:`TuningPaused` reported has ended."""


class KernelsReloaded(Event, kw_only=True, tag="reloaded"):
    """Kernel files were read again.

    Attributes:
        added, changed, replanned, removed: full names of kernels.
        mended: files that had an error before and have none now.
        errors: all errors that there are now.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    replanned: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    errors: tuple[FileError, ...] = ()


EVENT_TYPES: Mapping[str, type[Event]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        *(JobQueued, JobStarted, JobPaused, JobDone, TrialDone, ConfigCompiled, Refining, WinnerChanged, KernelStale),
        *(NamesLearned, LaneChanged, TuningPaused, TuningResumed, KernelsReloaded, StreamGap),
    )
}
"""The classes of events by their types on the wire."""


def get_event_type(event: Event) -> str:
    """Return an event's type, as it is named on the wire."""
    return str(event.__struct_config__.tag)


def read_event(event: Mapping[str, Any]) -> Event | None:
    """Return an event's map as its type; None for a type that only a newer daemon has.

    Raises:
        msgspec.ValidationError: a field is missing or of another type.
    """
    kind = EVENT_TYPES.get(event.get("type") or "")
    return None if kind is None else msgspec.convert(event, kind)


SUBSCRIBE = Method("subscribe", SubscribeParams, StreamPosition)
UNSUBSCRIBE = Method("unsubscribe", NoParams, EmptyAnswer)
