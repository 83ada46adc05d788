"""Messages between the daemon and the plugin's process that has joined a cluster: in frames.

A worker is named by a number that the daemon chose, and has at most one :class:`Start` or :class:`Exchange` under way,
which one :class:`Answer` ends. A node's :class:`Result` crosses that process as bytes that only the daemon reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from ktuned.ipc import replies
from ktuned.model import FrozenStruct, Phase


class Start(FrozenStruct, tag=True):
    """Start a worker on a node.

    ``lane`` is the device's name on the node, ``compile`` for a compile slot, and empty for a worker that uses neither.
    With a ``limit_bytes`` of 0, the node decides how much memory the worker may use.
    """

    worker: int
    node: str
    lane: str
    role: str
    project: str
    root: str
    env: Mapping[str, str]
    limit_bytes: int
    deadline_s: float


class Exchange(FrozenStruct, tag=True):
    """Make a worker carry out a request: a frame of :mod:`ktuned.ipc`, with a deadline for each phase.

    ``digests`` has the contents of the project's files with which the request was made, by path relative to the root;
    None if the request names no project. ``artifacts`` are those that the worker loads, and ``damaged`` those of them
    that the node must get again.
    """

    worker: int
    request: bytes
    deadlines: Mapping[str, float]
    digests: Mapping[str, str] | None = None
    artifacts: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


class Kill(FrozenStruct, tag=True):
    """Kill a worker; ``why`` becomes the error of its request."""

    worker: int
    why: str = ""


class WatchToolchain(FrozenStruct, tag=True):
    """Watch a node's compilers and packages, instead of those that were watched under the same key.

    ``files`` and ``limits`` are those of :class:`~ktuned.ipc.replies.ProbeDependencies`.
    """

    node: str
    key: str
    files: Mapping[str, str]
    limits: Mapping[str, str]


class Node(FrozenStruct):
    """A node that is alive, with its CPUs and GPUs in the cluster's account."""

    id: str
    name: str
    cpus: int
    gpus: int


class Nodes(FrozenStruct, tag=True):
    """All nodes; sent each second, so that silence means that the process, or the cluster, hangs."""

    version: str
    nodes: tuple[Node, ...]


class Answer(FrozenStruct, tag=True):
    """The end of a start or an exchange: an encoded :class:`Result`, or why the worker is ``lost``.

    ``sealed`` are the artifacts that were compiled, by key, with the bytes that each added to this machine's disk.
    """

    worker: int
    result: bytes = b""
    sealed: Mapping[str, int] = {}
    lost: str = ""


class Gone(FrozenStruct, tag=True):
    """A worker has ended."""

    worker: int
    reason: str


class ToolchainChanged(FrozenStruct, tag=True):
    """A watched toolchain has changed, or cannot be watched any more."""

    node: str
    reason: str


class Item(FrozenStruct):
    """An item of a worker's answer, and what the worker's code printed for it."""

    value: msgspec.Raw
    stdout: str = ""
    stderr: str = ""


class Result(FrozenStruct, omit_defaults=True):
    """What became of a start or an exchange on the node.

    A start has a ``pid``, or an ``error`` with a ``hint``. An exchange has ``items``, and then a reply's ``value``, or
    one of: a ``failure``, the deadline ``expired_s``, the ``returncode`` of a worker that died.
    """

    pid: int = 0
    error: str = ""
    hint: str = ""
    items: tuple[Item, ...] = ()
    value: msgspec.Raw = msgspec.Raw()
    stdout: str = ""
    stderr: str = ""
    phase: Phase = Phase.SPAWN
    phases: Mapping[str, float] = {}
    memory_bytes: int = 0
    failure: replies.Failure | None = None
    expired_s: float | None = None
    returncode: int | None = None
    stopped: str = ""
    fault: str = ""


Command = Start | Exchange | Kill | WatchToolchain
Report = Nodes | Answer | Gone | ToolchainChanged

COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
REPORTS: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


async def read_message(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    """Return the next message.

    Raises:
        asyncio.IncompleteReadError: the other side has ended. msgspec.MsgspecError: it sent something else than a
        message.
    """
    length = int.from_bytes(await reader.readexactly(4), "big")
    return decoder.decode(await reader.readexactly(length))
