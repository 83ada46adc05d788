"""Kernels, and the directories that are watched for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ktuned.model import (
    ALL_VARIABLES,
    LATENCY,
    Config,
    FrozenStruct,
    KernelInfo,
    KernelName,
    Objective,
    Plan,
    PlanDefaults,
    Problem,
    ProjectName,
    SpaceInfo,
)
from ktuned.protocol.method import Method, Params
from ktuned.protocol.winners import Status


class RootSettings(FrozenStruct):
    """Settings of a root that ``config.toml`` or a request gives explicitly; they override all others."""

    name: str = ""
    python: str = ""
    env: Mapping[str, str] = {}


SPACE = "space"
"""Kind of a change that only concerns the space; its ``name`` is a sentence about the config."""


class Change(FrozenStruct):
    """One difference between two contexts.

    Attributes:
        kind: ``source``, ``argument`` (of ``@kernel``), ``environment`` (a variable), ``toolchain``, ``driver``,
            ``measuring`` or ``unknown``.
        where: a file, relative to the kernel file's directory, or a tool.
        name: the part of it that changed.
        before: a version, a value or a short digest; empty if absent.
        after: likewise, now.
    """

    kind: str
    where: str
    name: str
    before: str
    after: str


def describe_change(change: Change) -> str:
    """Return a change as a sentence."""
    kind, where, name, before, after = change.kind, change.where, change.name, change.before, change.after
    if kind in ("toolchain", "driver", "measuring"):
        what = f"{where} {name}".rstrip()
        return f"{kind}: {what} was {before or 'absent'}, is {after or 'absent'}"
    if kind == SPACE:
        return f"{where}: {name}"
    if kind == "environment":
        where, name = "an environment variable" if name == ALL_VARIABLES else f"${name}", ""
    verb = "changed" if before and after else "is new" if after else "is gone"
    what = f"{where}: `{name}`" if name else where
    if kind == "unknown":
        return f"{where} changed; its parts were not recorded"
    return f"{what} {verb}"


class FileError(FrozenStruct, omit_defaults=True):
    """An error in a kernel file.

    Attributes:
        path: the file, absolute; empty if it is not known.
        line: the line's number from 1, or 0 if it is not known.
        message: one line, which may begin with file and line.
        hint: the remedy, if one is known.
        excerpt: for a syntax error, the line of source and a caret below it.
    """

    path: str
    line: int
    message: str
    hint: str
    excerpt: str = ""


class RootInfo(FrozenStruct):
    """A watched root: its directory, its project's name, and its workers' interpreter and environment variables.

    With ``polling`` it is polled, because its file system does not report changes.
    """

    path: str
    name: str
    python: str
    env: Mapping[str, str] = {}
    polling: bool = False

    @classmethod
    def from_root(cls, root: RootInfo) -> RootInfo:
        """Return the fields of a root that the protocol has."""
        return msgspec.convert(root, cls, from_attributes=True)


class Root(RootInfo):
    """A watched root, and where its settings come from.

    Attributes:
        asked: the settings that were given explicitly.
        project_digest: SHA-256 of the ``ktuned.toml`` from which the root was made.
        defaults: that file's budgets, for kernel files that set none.
        workers: a directory above it whose projects share their workers with it; empty if it has its own workers.
    """

    asked: RootSettings = RootSettings()
    project_digest: str = ""
    defaults: PlanDefaults = PlanDefaults()
    workers: str = ""


def find_root(path: str, roots: Iterable[RootInfo]) -> RootInfo | None:
    """Return the innermost root that contains a path; None if no root does."""
    holders = [root for root in roots if f"{path}/".startswith(f"{root.path.rstrip('/')}/")]
    return max(holders, key=lambda root: len(root.path), default=None)


class WinnerStanding(FrozenStruct, kw_only=True):
    """The standing of a winner: ``fresh``, or ``stale`` with the reasons.

    Attributes:
        problem: the problem.
        device: the device's model.
        objective: the objective by which it won.
        status: ``fresh`` or ``stale``.
        decided: the Unix time at which it was decided.
        trial: the id of the trial that measured it.
        changes: the changes since that trial; empty if the winner is fresh, or its device is not on this machine.
        message: why the newest job for it failed, with the compiler's first line if no config compiled, or why nothing
            is known; else empty.
        notices: oddities of the kernel file that the newest successful job found.
    """

    problem: Problem
    device: str
    objective: Objective = LATENCY
    status: Status
    decided: float
    trial: int
    changes: tuple[Change, ...]
    message: str
    notices: tuple[str, ...] = ()


class KernelEntry(FrozenStruct, kw_only=True):
    """A kernel as its file declares it (:class:`~ktuned.model.KernelInfo`), with its full name.

    If ``why`` was set, it has its winners' standings, when its winner was made again, and its configs that are
    quarantined because daemons died.
    """

    name: KernelName = msgspec.field(name="kernel")
    project: ProjectName
    file: str
    line: int
    backend: str
    digest: str
    sources: tuple[str, ...]
    problems: tuple[Problem, ...]
    default: Config | None
    specialize: tuple[str, ...] | None
    space: SpaceInfo
    plan: Plan
    bucket: Mapping[str, Any] = {}
    metrics: tuple[str, ...] = ()
    unobserved: str = ""
    why: tuple[WinnerStanding, ...] | UnsetType = UNSET
    repeated: str = ""
    quarantined: tuple[str, ...] = ()

    @classmethod
    def from_kernel(cls, kernel: KernelInfo, why: tuple[WinnerStanding, ...] | UnsetType = UNSET) -> KernelEntry:
        """Return a kernel's entry."""
        shown = {name: getattr(kernel, name) for name in cls.__struct_fields__ if hasattr(kernel, name)}
        return cls(**shown, why=why)


class KernelsAnswer(FrozenStruct):
    """Kernels, the errors in kernel files, and all roots."""

    kernels: tuple[KernelEntry, ...]
    errors: tuple[FileError, ...] = ()
    roots: tuple[RootInfo, ...] = ()


class AddAnswer(FrozenStruct):
    """The watched root, the kernels and errors at or below the path, and notices for the person who asked."""

    root: RootInfo
    kernels: tuple[KernelEntry, ...]
    errors: tuple[FileError, ...]
    notices: tuple[str, ...] = ()


class UnwatchAnswer(FrozenStruct):
    """The root that is no longer watched, its project's name, and the kernels that are forgotten with it."""

    path: str
    name: str
    kernels: tuple[KernelName, ...]


class KernelsParams(Params):
    """``kernels``: one kernel, or the kernels below a path, or all. ``why`` adds each winner's standing."""

    kernel: str | None = None
    path: str | None = None
    why: bool = False
    directory: str | None = None


class AddParams(Params):
    """``add``: a kernel file or a directory to watch, and the interpreter for its kernels."""

    path: str
    python: str | None = None


class UnwatchParams(Params):
    """``unwatch``: the root to watch no longer."""

    path: str


KERNELS = Method("kernels", KernelsParams, KernelsAnswer)
ADD = Method("add", AddParams, AddAnswer)
UNWATCH = Method("unwatch", UnwatchParams, UnwatchAnswer)
