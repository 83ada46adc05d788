"""Calls of the bridge's service ``cluster``: join a cluster, reach the keeper on a node, hold resources, carry files.

The daemon calls a node's keeper itself (:mod:`ktuned_ray.node_calls`): the bridge only relays those frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Never

import msgspec

from ktuned.bridge import Call
from ktuned.ipc import replies


class NodeInfo(msgspec.Struct, frozen=True):
    """A node that is alive: its id in the cluster, its name there (unique), its host, CPUs and GPUs."""

    id: str
    name: str
    host: str
    cpus: int
    gpus: int


class ClusterNews(msgspec.Struct, frozen=True):
    """The cluster as it is now; sent when it was joined, and whenever its nodes change."""

    nodes: tuple[NodeInfo, ...]
    ray: str
    python: str


class Join(Call[replies.Empty, ClusterNews], frozen=True):
    """Join the cluster at an address (``ray://host:port``, or that of a local node), and stay until it is lost.

    ``runtime_env`` is Ray's, as JSON, for the keepers: it may bring an interpreter's packages. The call fails when the
    cluster cannot be reached, has another version of Ray or Python, or has ended.
    """

    operation: ClassVar = "cluster.join"

    address: str
    runtime_env: str = ""


class Chunk(msgspec.Struct, frozen=True):
    """Bytes of a keeper's answers."""

    data: bytes


class Attach(Call[replies.Empty, Chunk], frozen=True):
    """Start a keeper on a node, and relay its answers until it ends; then the call fails with the reason.

    The first item is empty and means that the keeper takes calls. The keeper is killed when the call is cancelled.
    """

    operation: ClassVar = "cluster.attach"

    node: str


class Relay(Call[replies.Empty, Never], frozen=True):
    """Send bytes to the keeper of a node, in the order of the calls."""

    operation: ClassVar = "cluster.relay"

    node: str
    data: bytes


class Give(Call[replies.Empty, Never], frozen=True):
    """Put parcels onto a node; ``parcels`` has the paths on this machine by the parcels' names."""

    operation: ClassVar = "cluster.give"

    node: str
    parcels: Mapping[str, str]


class Fetch(Call[replies.Empty, Never], frozen=True):
    """Bring a parcel of a node here, into a new directory ``place``."""

    operation: ClassVar = "cluster.fetch"

    node: str
    name: str
    place: str


class Leased(msgspec.Struct, frozen=True):
    """A resource that is held; ``gpu`` is the id that Ray gave, empty for CPUs."""

    lease: str
    gpu: str = ""


class Lease(Call[Leased, Never], frozen=True):
    """Hold a GPU, or CPUs, of a node until the lease is released; waits for them at most ``wait_s`` seconds.

    Fails with code ``not_leased`` if other jobs of the cluster have it.
    """

    operation: ClassVar = "cluster.lease"

    node: str
    gpus: int = 0
    cpus: int = 0
    wait_s: float = 5.0


class Release(Call[replies.Empty, Never], frozen=True):
    """Give a lease back."""

    operation: ClassVar = "cluster.release"

    lease: str
