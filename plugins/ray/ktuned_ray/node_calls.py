"""Calls of a node's keeper: start workers, send them requests, kill them, lay out a project's files.

The daemon sends them over the bridge, which relays their bytes. A worker is named by a number; its requests and answers
are those of :mod:`ktuned.ipc`, as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Never

import msgspec

from ktuned.bridge import Call
from ktuned.ipc import replies


class NodeReport(msgspec.Struct, frozen=True):
    """A node's keeper: its interpreter, ktuned's version there, its cores, and the distributions installed.

    ``gpus`` are the ids that ``CUDA_VISIBLE_DEVICES`` lists, in its order; empty if it is not set.
    """

    pid: int
    python: str
    python_version: str
    ktuned: str
    cores: int
    gpus: tuple[str, ...]
    distributions: Mapping[str, str]


class Describe(Call[NodeReport, Never], frozen=True):
    """Request a keeper's report on its node."""

    operation: ClassVar = "node.describe"


class Layout(msgspec.Struct, frozen=True):
    """The files of a project that a node lacks, by their digests."""

    missing: tuple[str, ...]


class LayOut(Call[Layout, Never], frozen=True):
    """Make the directory of a project's files, given by path with the SHA-256 of their bytes (empty: no such file).

    Paths are relative to the project's root, ``root``, and may lead out of it. Files of an earlier layout that are not
    among these are removed. If the bytes of some files are not on the node yet, nothing changes.
    """

    operation: ClassVar = "node.lay_out"

    project: str
    root: str
    files: Mapping[str, str]
    executable: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()


class Started(msgspec.Struct, frozen=True):
    """A worker takes requests."""

    worker: int
    pid: int


class Ended(msgspec.Struct, frozen=True):
    """A worker has ended, with all processes that it started."""


class Changed(msgspec.Struct, frozen=True):
    """A toolchain has changed; ``reason`` says how."""

    reason: str


class Watch(Call[Changed, Never], frozen=True):
    """Watch a toolchain: the reply comes when one of its files has changed, or the set of usable CPUs.

    The fields are those of :class:`~ktuned.ipc.replies.ProbeDependencies`.
    """

    operation: ClassVar = "node.watch"

    files: Mapping[str, str]
    limits: Mapping[str, str]


class Start(Call[Ended, Started], frozen=True):
    """Start a worker; the reply comes when it has ended. It is killed when the call is cancelled.

    It may use ``limit_bytes`` of memory; with 0, the keeper decides.
    """

    operation: ClassVar = "node.start"

    role: str
    project: str
    root: str
    env: Mapping[str, str]
    limit_bytes: int
    deadline_s: float


class Item(msgspec.Struct, frozen=True):
    """An item of a worker's answer, and what its code printed for it.

    ``artifact`` is a compiled unit's packed artifact, unless it is too large to travel in a frame.
    """

    value: Any
    stdout: str = ""
    stderr: str = ""
    artifact: bytes = b""


class Exchanged(msgspec.Struct, frozen=True):
    """The end of an exchange: a reply's ``value``, or a failure.

    It took ``seconds`` at the keeper. ``phase`` is the phase in which it ended, ``phases`` the seconds of each phase.
    If the worker died, there is a ``returncode``, and the reason why it was ``stopped`` or the ``fault`` that it
    reported. If a phase took too long, ``expired_s`` is its deadline.
    """

    value: Any = None
    stdout: str = ""
    stderr: str = ""
    phase: str = ""
    phases: Mapping[str, float] | None = None
    memory_bytes: int = 0
    failure: replies.Failure | None = None
    returncode: int | None = None
    stopped: str = ""
    fault: str = ""
    expired_s: float | None = None
    seconds: float = 0.0


class Exchange(Call[Exchanged, Item], frozen=True):
    """Make a worker carry out a request (``message``: its MessagePack), with a deadline for each phase.

    ``parcels`` are the small parcels that the request names and the node lacks. They travel with the request, because
    each call of an actor before it costs a lane a millisecond.
    """

    operation: ClassVar = "node.exchange"

    worker: int
    message: bytes
    deadlines: Mapping[str, float]
    parcels: Mapping[str, bytes] | None = None


class Kill(Call[replies.Empty, Never], frozen=True):
    """Kill a worker; ``why`` becomes the error of its request, if the request is the reason for the kill."""

    operation: ClassVar = "node.kill"

    worker: int
    why: str = ""
