"""Calls of a node's keeper: start workers, exchange requests with them, kill them, lay out a project's files.

The daemon sends them over the bridge, which relays their bytes. A worker is known by a number; its requests and answers
are those of :mod:`ktuned.ipc`, as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Never

from ktuned.bridge import Call
from ktuned.ipc import replies
from ktuned.model import Record, record


@record
class NodeReport(Record):
    """A node's keeper: its interpreter, ktuned's version there, its cores, and the distributions installed.

    ``gpus`` are the ids of those that ``CUDA_VISIBLE_DEVICES`` leaves, in its order; none where it leaves all.
    """

    pid: int
    python: str
    python_version: str
    ktuned: str
    cores: int
    gpus: tuple[str, ...]
    distributions: Mapping[str, str]


@record
class Describe(Call[NodeReport, Never]):
    """Ask a keeper what it is."""

    operation: ClassVar = "node.describe"


@record
class Layout(Record):
    """The files of a project that a node lacks, by their digests."""

    missing: tuple[str, ...]


@record
class LayOut(Call[Layout, Never]):
    """Make the directory of a project's files: paths with the SHA-256 of their bytes, empty for absent ones.

    Paths are relative to the project's root, ``root``, and may lead out of it. Files of an earlier layout that are not
    among these are removed. Where the bytes of some are not on the node yet nothing changes.
    """

    operation: ClassVar = "node.lay_out"

    project: str
    root: str
    files: Mapping[str, str]
    executable: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()


@record
class Started(Record):
    """A worker takes requests."""

    worker: int
    pid: int


@record
class Ended(Record):
    """A worker has ended, and all that it started is gone."""


@record
class Changed(Record):
    """The reason why a toolchain is not what it was."""

    reason: str


@record
class Watch(Call[Changed, Never]):
    """Answer when one of the files by which a toolchain is known is no longer as it was seen, or the CPUs that may be
    used are others: the fields of :class:`~ktuned.ipc.replies.ProbeDependencies`.
    """

    operation: ClassVar = "node.watch"

    files: Mapping[str, str]
    limits: Mapping[str, str]


@record
class Start(Call[Ended, Started]):
    """Start a worker; the reply comes when it has ended. One whose call is taken back is killed.

    It may use ``limit_bytes`` of memory; 0 is what the keeper grants on that machine.
    """

    operation: ClassVar = "node.start"

    role: str
    project: str
    root: str
    env: Mapping[str, str]
    limit_bytes: int
    deadline_s: float


@record
class Item(Record):
    """An item of a worker's answer, and what its code printed for it.

    Of a compiled unit ``artifact`` is the packed artifact, unless that is too large to travel in a frame.
    """

    value: Any
    stdout: str = ""
    stderr: str = ""
    artifact: bytes = b""


@record
class Exchanged(Record):
    """The end of an exchange: a reply's ``value``, or a failure; ``last`` are the items that were not sent before it.

    It took ``seconds`` at the keeper. ``phase`` is where it ended, ``phases`` the seconds of each. Of a worker that
    died ``returncode`` is given, and why it was ``stopped``, or the ``fault`` that it reported; of a phase that took
    too long ``expired_s``, its deadline.
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
    last: tuple[Item, ...] = ()
    seconds: float = 0.0


@record
class Exchange(Call[Exchanged, Item]):
    """Have a worker carry a request out (the frame's map, as plain data), with a deadline for each phase.

    ``parcels`` are those that it names and that the node lacks, as far as they are small: each call of an actor that
    does not go before a request saves a lane a millisecond.
    """

    operation: ClassVar = "node.exchange"

    worker: int
    message: Any
    deadlines: Mapping[str, float]
    parcels: Mapping[str, bytes] | None = None


@record
class Kill(Call[replies.Empty, Never]):
    """Kill a worker; with ``why`` it is stopped for what it does."""

    operation: ClassVar = "node.kill"

    worker: int
    why: str = ""


@record
class LeaveCores(Call[replies.Empty, Never]):
    """Keep compilers and explorers of the node off so many cores."""

    operation: ClassVar = "node.leave_cores"

    lanes: int
