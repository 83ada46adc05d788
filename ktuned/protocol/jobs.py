"""Jobs: methods that create, list, pause and cancel them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from ktuned.model import LATENCY, Job, JobState, Objective, Scalar, record
from ktuned.protocol.kernels import FileError
from ktuned.protocol.method import Method


@record
class JobInfo(Job):
    """A job as the daemon reports it: with its objective, and how it stands at this moment.

    Attributes:
        priority: its level now, by which it is its turn.
        waiters: number of clients that wait for it.
        left_s: seconds that it is still likely to take while it runs.
        waits_for: why it does not run, or why it runs but does not measure; empty if it does.
        launches: number of launches of its key that applications have counted.
    """

    objective: Objective = LATENCY
    waiters: int = 0
    left_s: float | None = None
    waits_for: str = ""
    launches: int = 0

    # The key is the daemon's alone.
    _omitted: ClassVar = ("key_problem",)

    @classmethod
    def from_job(cls, job: Job, *, launches: int = 0, waiters: int = 0) -> JobInfo:
        """Return what is reported of a job that neither runs nor waits."""
        known = {**vars(job), "key_problem": None}
        return cls(**known, objective=job.objective, launches=launches, waiters=waiters)


def read_jobs(jobs: Iterable[Mapping[str, Any]]) -> list[JobInfo]:
    """Return jobs' maps, such as those of a :class:`ktuned_client.client.Tuning`, as their type."""
    return msgspec.convert(jobs, list[JobInfo])


class JobParams(msgspec.Struct, frozen=True):
    """Params of methods that create jobs: a kernel by name, or all at or below a path; the rest overrides the plan.

    With ``keep_going`` a job goes on where all of its configs fail alike.
    """

    kernel: str | None = None
    path: str | None = None
    problem: dict[str, Scalar] | None = None
    trials: int | None = None
    seconds: float | None = None
    strategy: str | None = None
    seed: int | None = None
    python: str | None = None
    directory: str | None = None
    keep_going: bool = False


class TuneParams(JobParams, frozen=True):
    """``tune``: also the device, the thoroughness, the priority and the objective.

    ``configs`` alone, or known ones ``again``; with ``no_share`` without what others share, and not shared. ``beside``
    is the process of an application that uses the device, and goes on while it is tuned. ``anchor`` is the config, or a
    part of it, to whose bits exact ``numerics`` are to keep, ``anchor_pin`` a pin that holds it.
    """

    device: str | None = None
    preset: str | None = None
    until: str | None = None
    priority: int | None = None
    stale_only: bool = False
    beside: int | None = None
    configs: list[dict[str, Scalar]] | None = None
    again: bool = False
    objective: str | None = None
    numerics: str | None = None
    anchor: dict[str, Scalar] | None = None
    anchor_pin: str | None = None
    no_share: bool = False


class CompileParams(JobParams, frozen=True):
    """``compile``: as ``tune``, but nothing is measured; ``arch`` is what to compile for, e.g. ``sm_90a``."""

    arch: str | None = None


class CancelParams(msgspec.Struct, frozen=True):
    """``cancel``: one job, or all of a kernel."""

    job: int | None = None
    kernel: str | None = None
    directory: str | None = None


class PauseParams(msgspec.Struct, frozen=True):
    """``pause`` and ``resume``: at most one of these; none means everything."""

    job: int | None = None
    kernel: str | None = None
    device: str | None = None
    directory: str | None = None


class JobsParams(msgspec.Struct, frozen=True):
    """``jobs``: one job, several, or those of a kernel or in a state."""

    job: int | None = None
    ids: list[int] | None = None
    kernel: str | None = None
    state: JobState | None = None
    limit: int = 200
    directory: str | None = None


class TuneAnswer(msgspec.Struct, frozen=True):
    """The jobs that do the work of a request.

    Attributes:
        epoch, seq: the place in the stream since which the jobs' events are to be had.
        errors: kernel files that could not be read.
        notices: lines for the person who asked.
    """

    jobs: tuple[JobInfo, ...]
    epoch: int
    seq: int
    errors: tuple[FileError, ...] = ()
    notices: tuple[str, ...] = ()


class JobsAnswer(msgspec.Struct, frozen=True):
    """Jobs: those that were asked for, or that were cancelled."""

    jobs: tuple[JobInfo, ...]


class PauseAnswer(msgspec.Struct, frozen=True):
    """The jobs that were paused or resumed, and the device models that are paused now (``""`` is all of them)."""

    jobs: tuple[JobInfo, ...]
    paused: tuple[str, ...]


TUNE: Final = Method("tune", TuneParams, TuneAnswer)
COMPILE: Final = Method("compile", CompileParams, TuneAnswer)
CANCEL: Final = Method("cancel", CancelParams, JobsAnswer)
PAUSE: Final = Method("pause", PauseParams, PauseAnswer)
RESUME: Final = Method("resume", PauseParams, PauseAnswer)
JOBS: Final = Method("jobs", JobsParams, JobsAnswer)
