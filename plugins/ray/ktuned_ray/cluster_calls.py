"""Calls of the bridge's service ``cluster``: join a cluster, reach the keeper on a node, hold resources, carry files.

The daemon calls a node's keeper itself (:mod:`ktuned_ray.node_calls`): the bridge only relays those frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Never

from ktuned.bridge import Call
from ktuned.ipc import replies
from ktuned.model import Record, record


@record
class NodeInfo(Record):
    """A node that is alive: its id in the cluster, its name there (unique), its host, CPUs and GPUs."""

    id: str
    name: str
    host: str
    cpus: int
    gpus: int


@record
class ClusterNews(Record):
    """The cluster as it is now; sent when it was joined, and whenever its nodes change."""

    nodes: tuple[NodeInfo, ...]
    ray: str
    python: str


@record
class Join(Call[replies.Empty, ClusterNews]):
    """Join the cluster at an address (``ray://host:port``, or that of a local node), and stay until it is lost.

    ``runtime_env`` is Ray's, as JSON, for the keepers: it may bring an interpreter's packages. The call fails when the
    cluster cannot be reached, has another version of Ray or Python, or has ended.
    """

    operation: ClassVar = "cluster.join"

    address: str
    runtime_env: str = ""


@record
class Chunk(Record):
    """Bytes of a keeper's answers."""

    data: bytes


@record
class Attach(Call[replies.Empty, Chunk]):
    """Start a keeper on a node, and relay its answers until it ends; then the call fails with the reason.

    The first item is empty and means that the keeper takes calls. The keeper is killed when the call is cancelled.
    """

    operation: ClassVar = "cluster.attach"

    node: str


@record
class Relay(Call[replies.Empty, Never]):
    """Send bytes to the keeper of a node, in the order of the calls."""

    operation: ClassVar = "cluster.relay"

    node: str
    data: bytes


@record
class Give(Call[replies.Empty, Never]):
    """Put parcels onto a node; ``parcels`` has the paths on this machine by the parcels' names."""

    operation: ClassVar = "cluster.give"

    node: str
    parcels: Mapping[str, str]


@record
class Fetch(Call[replies.Empty, Never]):
    """Bring a parcel of a node here, into a new directory ``place``."""

    operation: ClassVar = "cluster.fetch"

    node: str
    name: str
    place: str


@record
class Leased(Record):
    """A resource that is held; ``gpu`` is the id that Ray gave, empty for CPUs."""

    lease: str
    gpu: str = ""


@record
class Lease(Call[Leased, Never]):
    """Hold a GPU, or CPUs, of a node until the lease is released; waits for them at most ``wait_s`` seconds.

    Fails with code ``not_leased`` if other jobs of the cluster have it.
    """

    operation: ClassVar = "cluster.lease"

    node: str
    gpus: int = 0
    cpus: int = 0
    wait_s: float = 5.0


@record
class Release(Call[replies.Empty, Never]):
    """Give a lease back."""

    operation: ClassVar = "cluster.release"

    lease: str
