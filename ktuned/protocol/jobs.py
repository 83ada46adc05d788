"""Jobs: the methods that create, list, pause and cancel them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from ktuned.model import LATENCY, Job, JobState, Objective, Scalar
from ktuned.protocol.kernels import FileError
from ktuned.protocol.method import Method, Params


class JobInfo(Job, frozen=True):
    """A job as the daemon reports it: with its objective and its current state.

    Attributes:
        priority: its current priority, which decides when its turn comes.
        objective: the objective that it tunes for.
        waiters: number of clients that wait for it.
        left_s: estimate of the seconds that it still needs, while it runs.
        waits_for: why it does not run, or runs but does not measure; empty while it measures.
        launches: number of launches of its key that applications have counted.
    """

    objective: Objective = LATENCY
    waiters: int = 0
    left_s: float | None = None
    waits_for: str = ""
    launches: int = 0

    # Only the daemon needs the key.
    @classmethod
    def from_job(cls, job: Job, *, launches: int = 0, waiters: int = 0) -> JobInfo:
        """Return the report of a job that neither runs nor waits."""
        known = structs.asdict(structs.replace(job, key_problem=msgspec.UNSET))
        return cls(**known, objective=job.objective, launches=launches, waiters=waiters)


def read_jobs(jobs: Iterable[Mapping[str, Any]]) -> list[JobInfo]:
    """Convert jobs' maps, such as those of a :class:`ktuned_client.client.Tuning`, to :class:`JobInfo`."""
    return msgspec.convert(jobs, list[JobInfo])


class JobParams(Params, frozen=True):
    """Params of methods that create jobs: a kernel by name, or all kernels at or below a path.

    The other fields override the plan.
    """

    kernel: str | None = None
    path: str | None = None
    problem: dict[str, Scalar] | None = None
    trials: int | None = None
    time_limit_s: float | None = None
    strategy: str | None = None
    seed: int | None = None
    python: str | None = None
    directory: str | None = None


class TuneParams(JobParams, frozen=True):
    """``tune``: also the device, the thoroughness, the priority and the objective.

    With ``configs``, only these are tried; ``again`` measures configs that were measured before once more.
    ``beside`` is the process of an application that keeps using the device during the tuning. With exact ``numerics``,
    winners must have the output bits of ``anchor``, which is a config or a part of one.
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


class CompileParams(JobParams, frozen=True):
    """``compile``: as ``tune``, but nothing is measured; ``arch`` is the target architecture, such as ``sm_90a``."""

    arch: str | None = None


class CancelParams(Params, frozen=True):
    """``cancel``: one job, or all jobs of a kernel."""

    job: int | None = None
    kernel: str | None = None
    directory: str | None = None


class PauseParams(Params, frozen=True):
    """``pause`` and ``resume``: a job, a kernel or a device; all tuning if none of them is given."""

    job: int | None = None
    kernel: str | None = None
    device: str | None = None
    directory: str | None = None


class JobsParams(Params, frozen=True):
    """``jobs``: one job, several jobs, or the jobs of a kernel or in a state."""

    job: int | None = None
    ids: list[int] | None = None
    kernel: str | None = None
    state: JobState | None = None
    limit: int = 200
    directory: str | None = None


class TuneAnswer(msgspec.Struct, frozen=True):
    """The jobs that do the work of a request.

    Attributes:
        jobs: the jobs.
        epoch, seq: the position in the stream of events; the jobs' events come after it.
        errors: the errors of kernel files that could not be read.
        notices: lines for the person who asked.
    """

    jobs: tuple[JobInfo, ...]
    epoch: int
    seq: int
    errors: tuple[FileError, ...] = ()
    notices: tuple[str, ...] = ()


class JobsAnswer(msgspec.Struct, frozen=True):
    """The jobs that were requested, or that were cancelled."""

    jobs: tuple[JobInfo, ...]


class PauseAnswer(msgspec.Struct, frozen=True):
    """The jobs that were paused or resumed, and the device models that are paused now (``""`` stands for all)."""

    jobs: tuple[JobInfo, ...]
    paused: tuple[str, ...]


TUNE: Final = Method("tune", TuneParams, TuneAnswer)
COMPILE: Final = Method("compile", CompileParams, TuneAnswer)
CANCEL: Final = Method("cancel", CancelParams, JobsAnswer)
PAUSE: Final = Method("pause", PauseParams, PauseAnswer)
RESUME: Final = Method("resume", PauseParams, PauseAnswer)
JOBS: Final = Method("jobs", JobsParams, JobsAnswer)
