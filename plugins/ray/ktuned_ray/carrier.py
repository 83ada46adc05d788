"""Carries the files that a request needs to a node of a cluster before the request, and brings artifacts back.

A *project* travels by content: a snapshot lists its files by digest, the node says which of them it lacks, and these
are carried, each once. A snapshot is used for :data:`SNAPSHOT_S`, and only if it has exactly the contents with which
the request's kernel was inspected. If a file is saved meanwhile, the node finds a different digest, and the work is
repeated.

*Artifacts* travel by key, as parcels. Small parcels travel with the request itself, because each
call before it costs a lane a millisecond. The carrier remembers which parcels the node has; a parcel that the node
finds damaged is forgotten, and carried again. An artifact that comes back is checked before it is sealed here.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import structlog
from msgspec.structs import replace

from ktuned.fleet import Bridge, BridgeDown, Environment
from ktuned.ipc import locate_artifact, manifest, replies, requests
from ktuned_ray import cluster_calls, node_calls, parcels
from ktuned_ray.node_link import NodeLink
from ktuned_ray.snapshot import Snapshot, Snapshots, holds_files

_log = structlog.get_logger()

CARRY_S = 120.0
"""Deadline for carrying files, in seconds: enough for a hundred MiB over a slow network."""

SNAPSHOT_S = 1.0
"""How long a snapshot is used, in seconds, if it has the contents that a request names."""

MAX_SEALED = 4096
"""Most parcels that a node is remembered to have; a forgotten parcel is carried again."""


class _Project(msgspec.Struct, eq=False):
    """A project as one node has it."""

    snapshots: Snapshots
    laid_out: Snapshot | None = None
    taken_at: float = -math.inf
    lock: anyio.Lock = msgspec.field(default_factory=anyio.Lock)


class Carrier:
    """Carries files between this machine and one node: projects by content, artifacts by key."""

    def __init__(self, bridge: Bridge, link: NodeLink, artifacts: Path) -> None:
        self._bridge = bridge
        self._link = link
        self._artifacts = artifacts
        self._projects: dict[tuple[str, str], _Project] = {}
        self._parcels: dict[str, None] = {}

    async def provide_files(self, request: requests.Request[Any, Any], environment: Environment) -> Mapping[str, bytes]:
        """Carry the files that a request names to the node; return the small parcels, to send with the request.

        Raises:
            BridgeDown, BridgeSlow, CallFailed: the files cannot be carried there.
        """
        # Decided by the request's fields instead of its type, because a list of types would miss new ones.
        kernel = getattr(request, "kernel", None)
        if isinstance(kernel, requests.KernelRef):
            await self._lay_out_project(environment, kernel.digests)
        elif isinstance(request, requests.Inspect):
            await self._lay_out_project(environment, dict.fromkeys(request.files))
        named = {f"artifact-{key}": str(locate_artifact(self._artifacts, key)) for key in _list_artifact_keys(request)}
        lacking = {name: place for name, place in named.items() if name not in self._parcels}
        if not lacking:
            return {}
        small = await self._give_large(lacking)
        self._remember_parcels(lacking)
        return small

    async def _give_large(self, lacking: Mapping[str, str]) -> dict[str, bytes]:
        """Carry parcels that are too large for a frame; return the others."""
        small = await anyio.to_thread.run_sync(_pack_small_parcels, lacking)
        large = {name: place for name, place in lacking.items() if name not in small}
        if large:
            await self._bridge.call_service(cluster_calls.Give(self._link.info.id, large), CARRY_S)
        return small

    def _remember_parcels(self, parcels: Iterable[str]) -> None:
        self._parcels |= dict.fromkeys(parcels)
        while len(self._parcels) > MAX_SEALED:
            del self._parcels[next(iter(self._parcels))]

    def forget_damaged(self, answer: object, request: requests.Request[Any, Any]) -> None:
        """Forget a request's artifacts if the answer says that one is damaged there, so that they are carried again."""
        is_damaged = isinstance(answer, replies.Measurement) and answer.result.outcome is None
        if not is_damaged and not (isinstance(answer, replies.Opened) and answer.is_damaged):
            return
        for key in _list_artifact_keys(request):
            self._parcels.pop(f"artifact-{key}", None)

    async def bring_artifact(self, unit: replies.CompiledUnit, packed: bytes = b"") -> replies.CompiledUnit:
        """Seal a compiled unit's artifact here; return the unit with the bytes that were added to this disk.

        An artifact that was too large to come with its item is fetched.
        """
        if unit.outcome is not None:
            return unit
        key = unit.artifact or unit.key
        self._parcels[f"artifact-{key}"] = None
        place = locate_artifact(self._artifacts, key)
        if place.exists():
            return replace(unit, bytes=0)
        staging = place.with_name(f".{key}.from-{self._link.info.id[:8]}")
        if not packed:
            await self._bridge.call_service(
                cluster_calls.Fetch(self._link.info.id, f"artifact-{key}", str(staging)), CARRY_S
            )
        size = await anyio.to_thread.run_sync(_seal_carried, staging, place, packed)
        return replace(unit, bytes=size)

    async def _lay_out_project(self, environment: Environment, digests: Mapping[str, str | None]) -> None:
        key = environment.project, environment.cwd
        project = self._projects.get(key)
        if project is None:
            project = self._projects[key] = _Project(Snapshots(environment.cwd))
        async with project.lock:
            listed = {name: digest for name, digest in digests.items() if digest}
            is_recent = monotonic() < project.taken_at + SNAPSHOT_S and None not in digests.values()
            if is_recent and project.laid_out is not None and holds_files(project.laid_out, listed):
                return
            taken = await anyio.to_thread.run_sync(project.snapshots.take_snapshot, tuple(digests))
            if taken != project.laid_out:
                await self._carry_snapshot(environment, taken)
                project.laid_out = taken
            project.taken_at = monotonic()

    async def _carry_snapshot(self, environment: Environment, taken: Snapshot) -> None:
        call = node_calls.LayOut(
            environment.project, environment.cwd, dict(taken.files), taken.executable, taken.directories
        )
        places = {digest: f"{environment.cwd}/{name}" for name, digest in taken.files.items()}
        for _ in range(3):
            lacking = (await self._link.call_keeper(call, CARRY_S)).missing
            if not lacking:
                return
            files = {f"file-{digest}": places[digest] for digest in lacking}
            await self._bridge.call_service(cluster_calls.Give(self._link.info.id, files), CARRY_S)
        # Files kept being saved while others were carried. The request notices it by their digests.
        _log.info("project_not_laid_out", node=self._link.info.name, project=environment.project)


def _list_artifact_keys(request: requests.Request[Any, Any]) -> list[str]:
    """Return the keys of the artifacts that the worker loads for a request."""
    if isinstance(request, requests.Trial):
        return [unit.key for unit in request.units]
    if isinstance(request, requests.Open):
        return [] if request.reference is None else [request.reference.key]
    return [request.unit.key] if isinstance(request, requests.Time | requests.Check) else []


def _pack_small_parcels(lacking: Mapping[str, str]) -> dict[str, bytes]:
    """Return the parcels that are small enough to travel with a request, except unreadable ones."""
    small: dict[str, bytes] = {}
    remaining_bytes = parcels.MAX_ALL_IN_FRAME_BYTES
    for name, place in lacking.items():
        with contextlib.suppress(OSError):
            packed = parcels.pack_small_parcel(Path(place))
            if packed is not None and len(packed) <= remaining_bytes:
                small[name] = packed
                remaining_bytes -= len(packed)
    return small


def _seal_carried(staging: Path, place: Path, packed: bytes) -> int:
    """Check a carried artifact, unpack it if it came ``packed``, and move it into its place; return its size."""
    try:
        if packed:
            parcels.unpack_directory(packed, staging)
        manifest.verify(staging, required=())
        size = 0
        for path in parcels.list_files_below(staging).values():
            state = os.stat(path)
            size += state.st_size
            os.chmod(path, state.st_mode & ~0o222)
        with contextlib.suppress(OSError):
            # An equal artifact may have been sealed meanwhile.
            staging.rename(place)
        return size
    except (manifest.DamagedArtifact, parcels.BadParcel) as error:
        raise BridgeDown(f"an artifact came damaged: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
