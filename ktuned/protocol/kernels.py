"""Kernels and the directories that are watched for them, and captured inputs."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ktuned.model import Scalar
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


KERNELS: Final[Method[KernelsParams, dict[str, Any]]] = Method("kernels", KernelsParams, dict)
ADD: Final[Method[AddParams, dict[str, Any]]] = Method("add", AddParams, dict)
UNWATCH: Final[Method[UnwatchParams, dict[str, Any]]] = Method("unwatch", UnwatchParams, dict)
CAPTURE: Final[Method[CaptureParams, dict[str, Any]]] = Method("capture", CaptureParams, dict)
