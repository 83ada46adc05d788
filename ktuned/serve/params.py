"""Params of each method of the protocol (docs/protocol.md), as they are read from the wire.

``directory``, beside each ``kernel``, is where the client works: of several projects that have one of a short name, it
means that one's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ktuned.model import JobState, Outcome, Scalar


class NoParams(msgspec.Struct, frozen=True):
    """Params of a method that takes none; fields that are sent are ignored."""


class LookupParams(msgspec.Struct, frozen=True):
    """``lookup``: a kernel, a problem and a device; ``tune`` requests a better answer.

    ``objective`` is what the config is to be the best by; the kernel file's own if there is none. ``settle`` is how
    many seconds the answer may wait for a worker's word on configs that might be served instead.
    """

    kernel: str
    problem: dict[str, Scalar]
    device: str | None = None
    tune: bool = True
    pin: str | None = None
    directory: str | None = None
    objective: str | None = None
    settle: float = 0.0


class LookupManyParams(msgspec.Struct, frozen=True):
    """``lookup_many``: several lookups, answered in their order."""

    lookups: list[LookupParams]


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


class CheckParams(msgspec.Struct, frozen=True):
    """``check``: a kernel's winners, or that of one problem; with ``sanitize``, the paths of the sanitizers here."""

    kernel: str
    problem: dict[str, Scalar] | None = None
    sanitize: bool = False
    address: str = ""
    compute: str = ""
    directory: str | None = None


class PeaksParams(msgspec.Struct, frozen=True):
    """``peaks``: what is kept; with ``measure`` also what is not yet, with ``again`` all once more."""

    measure: bool = False
    again: bool = False


class CancelParams(msgspec.Struct, frozen=True):
    """``cancel``: one job, or all of a kernel."""

    job: int | None = None
    kernel: str | None = None
    directory: str | None = None


class JobsParams(msgspec.Struct, frozen=True):
    """``jobs``: one job, several, or those of a kernel or in a state."""

    job: int | None = None
    ids: list[int] | None = None
    kernel: str | None = None
    state: JobState | None = None
    limit: int = 200
    directory: str | None = None


class KernelsParams(msgspec.Struct, frozen=True):
    """``kernels``: one kernel, or those below a path; all without either. ``why`` adds what made winners stale."""

    kernel: str | None = None
    path: str | None = None
    why: bool = False
    directory: str | None = None


class ResultsParams(msgspec.Struct, frozen=True):
    """``results``: a kernel's trials, or one trial with all its details.

    ``before`` is the id of a trial, and continues a list in the order ``newest``; ``count`` asks for the ``total``.
    """

    kernel: str | None = None
    problem: dict[str, Scalar] | None = None
    device: str | None = None
    outcome: Outcome | None = None
    trial: int | None = None
    job: int | None = None
    current: bool = False
    order: str = "fastest"
    limit: int = 200
    before: int | None = None
    count: bool = False
    details: bool = False
    directory: str | None = None


class ForgetParams(msgspec.Struct, frozen=True):
    """``forget``: a kernel's trials, all or those of one outcome."""

    kernel: str
    outcome: Outcome | None = None
    directory: str | None = None


class SubscribeParams(msgspec.Struct, frozen=True):
    """``subscribe``: the start, and filters of events."""

    since: list[int] | None = None
    kernels: list[str] | None = None
    jobs: list[int] | None = None
    types: list[str] | None = None


class PauseParams(msgspec.Struct, frozen=True):
    """``pause`` and ``resume``: at most one of these; none means everything."""

    job: int | None = None
    kernel: str | None = None
    device: str | None = None
    directory: str | None = None


class UnpinParams(msgspec.Struct, frozen=True):
    """``unpin``: the pin to remove."""

    pin: str


class AddParams(msgspec.Struct, frozen=True):
    """``add``: a kernel file or a directory to watch, and the interpreter for its kernels."""

    path: str
    python: str | None = None


class UnwatchParams(msgspec.Struct, frozen=True):
    """``unwatch``: the root to watch no longer."""

    path: str


class CaptureParams(msgspec.Struct, frozen=True):
    """``capture``: the problem whose tensors to write; with ``digest``, those written; ``remove`` forgets them."""

    kernel: str
    problem: dict[str, Scalar]
    digest: str | None = None
    remove: bool = False
    directory: str | None = None


class ExportParams(msgspec.Struct, frozen=True):
    """``export``: the document of one kernel on one device model, or without both the list of them."""

    kernel: str | None = None
    device: str | None = None
    directory: str | None = None


class ImportParams(msgspec.Struct, frozen=True):
    """``import``: a document of winners to take in; with ``dry_run``, only to be judged."""

    document: Any
    dry_run: bool = False


class CollectParams(msgspec.Struct, frozen=True):
    """``gc``: ``dry_run`` lists what would be removed; the size to reach in GiB (by default the cap)."""

    dry_run: bool = False
    keep_gib: float | None = None
