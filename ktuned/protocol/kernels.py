"""Kernels and the directories that are watched for them, and captured inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from ktuned.model import LATENCY, Change, KernelInfo, KernelName, Objective, Problem, Root, Scalar, Status, record
from ktuned.protocol.method import Method


class FileError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error in a kernel file.

    Attributes:
        path: the file, absolute; empty if it is not known.
        line: from 1, or 0 if it is not known.
        message: one line, which may begin with the place.
        hint: the remedy, if one is known.
        excerpt: of a syntax error, the line of source and a caret below it.
    """

    path: str
    line: int
    message: str
    hint: str
    excerpt: str = ""


class RootInfo(msgspec.Struct, frozen=True):
    """A watched root: its directory, its project's name, and its workers' interpreter and environment variables.

    ``polling`` is for file systems that do not report changes.
    """

    path: str
    name: str
    python: str
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    polling: bool = False

    @classmethod
    def from_root(cls, root: Root) -> RootInfo:
        """Return what the protocol tells of a root."""
        return msgspec.convert(root, cls, from_attributes=True)


def find_root(path: str, roots: Iterable[RootInfo]) -> RootInfo | None:
    """Return the innermost of the roots that hold a path; None if none does."""
    holders = [root for root in roots if f"{path}/".startswith(f"{root.path.rstrip('/')}/")]
    return max(holders, key=lambda root: len(root.path), default=None)


class WinnerStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How a winner stands: ``fresh``, or ``stale`` and why.

    Attributes:
        device: the model.
        decided: Unix seconds.
        trial: the id of the trial that measured it.
        changes: since that trial; empty for a winner that is fresh, or whose device is not here.
        message: why the newest job for it failed, with the compiler's first line if no config compiled, or why nothing
            is known; else empty.
        notices: what the newest job that ended well found odd about the kernel file.
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


@record
class KernelEntry(KernelInfo):
    """A kernel with its full name and, where that was asked for, how each of its winners stands."""

    name: KernelName = KernelName("")
    why: tuple[WinnerStanding, ...] | UnsetType = UNSET

    @classmethod
    def from_kernel(cls, kernel: KernelInfo, why: tuple[WinnerStanding, ...] | UnsetType = UNSET) -> KernelEntry:
        """Return a kernel's entry."""
        return cls(**vars(kernel), name=kernel.name, why=why)


class KernelsAnswer(msgspec.Struct, frozen=True):
    """Kernels, the errors in kernel files, and all roots."""

    kernels: tuple[KernelEntry, ...]
    errors: tuple[FileError, ...] = ()
    roots: tuple[RootInfo, ...] = ()


class AddAnswer(msgspec.Struct, frozen=True):
    """The root that is watched, the kernels and errors at or below the path, and what a person should know."""

    root: RootInfo
    kernels: tuple[KernelEntry, ...]
    errors: tuple[FileError, ...]
    notices: tuple[str, ...] = ()


class UnwatchAnswer(msgspec.Struct, frozen=True):
    """The root that is watched no longer, its project's name, and the kernels that are forgotten."""

    path: str
    name: str
    kernels: tuple[KernelName, ...]


class CaptureAnswer(msgspec.Struct, frozen=True):
    """Where to write tensors (``directory`` and ``max_bytes``), or what is captured now (the other fields)."""

    directory: str | UnsetType = UNSET
    max_bytes: int | UnsetType = UNSET
    kernel: KernelName | UnsetType = UNSET
    digest: str | UnsetType | None = UNSET
    bytes: int | UnsetType = UNSET


class KernelsParams(msgspec.Struct, frozen=True):
    """``kernels``: one kernel, or those below a path; all without either. ``why`` adds what made winners stale."""

    kernel: str | None = None
    path: str | None = None
    why: bool = False
    directory: str | None = None


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


KERNELS: Final = Method("kernels", KernelsParams, KernelsAnswer)
ADD: Final = Method("add", AddParams, AddAnswer)
UNWATCH: Final = Method("unwatch", UnwatchParams, UnwatchAnswer)
CAPTURE: Final = Method("capture", CaptureParams, CaptureAnswer)
