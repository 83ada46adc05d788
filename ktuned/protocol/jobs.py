"""Jobs: methods that create, list, pause and cancel them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ktuned.model import JobState, Scalar
from ktuned.protocol.method import Method


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


TUNE: Final[Method[TuneParams, dict[str, Any]]] = Method("tune", TuneParams, dict)
COMPILE: Final[Method[CompileParams, dict[str, Any]]] = Method("compile", CompileParams, dict)
CANCEL: Final[Method[CancelParams, dict[str, Any]]] = Method("cancel", CancelParams, dict)
PAUSE: Final[Method[PauseParams, dict[str, Any]]] = Method("pause", PauseParams, dict)
RESUME: Final[Method[PauseParams, dict[str, Any]]] = Method("resume", PauseParams, dict)
JOBS: Final[Method[JobsParams, dict[str, Any]]] = Method("jobs", JobsParams, dict)
