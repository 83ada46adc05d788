"""The bridge's service ``cluster``: joins a Ray cluster, and reaches the keepers on its nodes.

Ray's functions block, and hang when the cluster's head is gone, so they run in threads, and each wait has a deadline.
When the head is lost, Ray may end this process; the daemon then starts it again. Keepers and leases are actors: each
ends with the call that holds it, and all end with the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import secrets
import sys
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ktuned.bridge import Call, CallFailed, Send, Service
from ktuned.ipc import replies
from ktuned_ray import cluster_calls, direct, parcels
from ktuned_ray.failures import find_hint, format_error
from ktuned_ray.keeper_actor import KeeperActor
from ktuned_ray.keeper_calls import ANSWER_S, KeeperCalls, await_answer
from ktuned_ray.lease_actor import LeaseActor

T = TypeVar("T")

JOIN_S: Final = 45.0
"""Deadline for joining; the client server starts a process for each client, which takes up to half a minute."""

NODES_S: Final = 1.0
"""Interval at which the cluster's nodes are listed."""

START_S: Final = 100.0
"""Deadline for an actor's start; its runtime environment may have to be installed first."""

TRANSFER_S: Final = 110.0
"""Deadline for transferring parcels."""

KEPT_PARCELS: Final = 64
"""Most parcels that stay in Ray's object store for the next node that needs them."""


class Cluster(Service):
    """One cluster at a time; keepers by node, leases by name."""

    calls: ClassVar = (
        cluster_calls.Join,
        cluster_calls.Attach,
        cluster_calls.Relay,
        cluster_calls.Give,
        cluster_calls.Fetch,
        cluster_calls.Lease,
        cluster_calls.Release,
    )

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(8, "ktuned-ray")
        self._joined = False
        self._runtime_env: dict[str, Any] = {}
        self._keepers: dict[str, KeeperCalls] = {}
        self._leases: dict[str, Any] = {}
        self._parcels: dict[str, Any] = {}
        self._kinds: dict[type, Any] = {}

    async def carry_out(self, call: Call[Any, Any], send: Send) -> msgspec.Struct:
        """Carry one call out."""
        match call:
            case cluster_calls.Join():
                return await self._join_cluster(call, send)
            case cluster_calls.Attach():
                return await self._attach_keeper(call, send)
            case cluster_calls.Relay():
                return await self._relay_bytes(call)
            case cluster_calls.Give():
                return await self._give_parcels(call)
            case cluster_calls.Fetch():
                return await self._fetch_parcel(call)
            case cluster_calls.Lease():
                return await self._lease_resource(call)
            case cluster_calls.Release():
                return self._release_lease(call)
        raise AssertionError(call)

    async def _join_cluster(self, call: cluster_calls.Join, send: Send) -> msgspec.Struct:
        if self._joined:
            raise CallFailed("joined", "a cluster is joined already")
        self._runtime_env = json.loads(call.runtime_env or "{}")
        self._joined = True
        try:
            await self._run_blocking(
                lambda: _connect_to_cluster(call.address, self._runtime_env), JOIN_S, "did not let us join"
            )
            known: tuple[cluster_calls.NodeInfo, ...] | None = None
            while True:
                found = await self._run_blocking(_list_nodes, ANSWER_S, "did not answer")
                if found != known:
                    known = found
                    await send(cluster_calls.ClusterNews(found, ray.__version__, platform.python_version()))
                await asyncio.sleep(NODES_S)
        finally:
            self._leave_cluster()

    def _leave_cluster(self) -> None:
        self._joined = False
        self._keepers.clear()
        self._leases.clear()
        self._parcels.clear()
        self._kinds.clear()
        # In a thread that nobody waits for, because it sends a request to a head that may be gone.
        self._threads.submit(ray.shutdown)

    async def _run_blocking(self, work: Callable[[], T], deadline_s: float, failure: str) -> T:
        """Run what blocks in a thread; ``failure`` says what the cluster did not do, for the error.

        Raises:
            CallFailed: the work raised an error, or took too long.
        """
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._threads, work), deadline_s)
        except TimeoutError:
            raise CallFailed("cluster_lost", f"the cluster {failure} within {deadline_s:.0f} s") from None
        except Exception as error:
            raise CallFailed(
                "cluster_lost", f"the cluster {failure}: {format_error(error)}", hint=find_hint(error)
            ) from error

    async def _attach_keeper(self, call: cluster_calls.Attach, send: Send) -> msgspec.Struct:
        node = call.node
        if node in self._keepers:
            raise CallFailed("attached", "it has a keeper already")
        actor = await self._run_blocking(
            lambda: self._start_actor(KeeperActor, node, 0, 0), ANSWER_S, "started no keeper"
        )
        calls = self._keepers[node] = KeeperCalls(actor, send)
        try:
            await await_answer(actor.start_keeper.remote(), START_S)
            calls.streams = await _connect_streams(actor)
            await send(cluster_calls.Chunk(b""))
            await calls.run_until_lost()
        finally:
            self._keepers.pop(node, None)
            self._threads.submit(_kill_actor, actor)

    async def _relay_bytes(self, call: cluster_calls.Relay) -> msgspec.Struct:
        await self._get_keeper(call.node).relay_bytes(call.data)
        return replies.Empty()

    def _get_keeper(self, node: str) -> KeeperCalls:
        if node not in self._keepers:
            raise CallFailed("no_keeper", "the node has no keeper now")
        return self._keepers[node]

    async def _give_parcels(self, call: cluster_calls.Give) -> msgspec.Struct:
        actor = self._get_keeper(call.node).actor
        small: dict[str, bytes] = {}
        waiting = []
        for name, place in call.parcels.items():
            ref = self._parcels.get(name)
            if ref is None:
                try:
                    data = await asyncio.to_thread(parcels.pack_parcel, Path(place))
                except (OSError, parcels.BadParcel) as error:
                    raise CallFailed("parcel", f"{place} cannot be carried: {error}") from error
                if len(data) <= _INLINE_BYTES or name.startswith("file-"):
                    small[name] = data
                    continue
                ref = self._keep_parcel(
                    name, await self._run_blocking(lambda data=data: ray.put(data), TRANSFER_S, "took no file")
                )
            waiting.append(actor.take_parcel.remote(name, ref))
        for group in _group_parcels(small):
            waiting.append(actor.take_parcels.remote(group))
        for one in waiting:
            await await_answer(one, TRANSFER_S)
        return replies.Empty()

    def _keep_parcel(self, name: str, ref: Any) -> Any:
        self._parcels[name] = ref
        while len(self._parcels) > KEPT_PARCELS:
            del self._parcels[next(iter(self._parcels))]
        return ref

    async def _fetch_parcel(self, call: cluster_calls.Fetch) -> msgspec.Struct:
        data = await await_answer(self._get_keeper(call.node).actor.pack_parcel.remote(call.name), TRANSFER_S)
        try:
            await asyncio.to_thread(parcels.unpack_directory, data, Path(call.place))
        except (OSError, parcels.BadParcel) as error:
            raise CallFailed("parcel", f"{call.name} cannot be kept: {error}") from error
        return replies.Empty()

    async def _lease_resource(self, call: cluster_calls.Lease) -> msgspec.Struct:
        actor = await self._run_blocking(
            lambda: self._start_actor(LeaseActor, call.node, call.cpus, call.gpus), ANSWER_S, "gave no lease"
        )
        try:
            ids = await await_answer(actor.list_gpus.remote(), call.wait_s)
        except BaseException as error:
            self._threads.submit(_kill_actor, actor)
            if isinstance(error, CallFailed) and error.code == "slow":
                what = f"{call.gpus} GPU" if call.gpus else f"{call.cpus} CPU"
                raise CallFailed("not_leased", f"other jobs of the cluster have it: no {what} came free") from error
            raise
        name = uuid.uuid4().hex
        self._leases[name] = actor
        return cluster_calls.Leased(name, ids[0] if ids else "")

    def _release_lease(self, call: cluster_calls.Release) -> msgspec.Struct:
        actor = self._leases.pop(call.lease, None)
        if actor is not None:
            self._threads.submit(_kill_actor, actor)
        return replies.Empty()

    def _start_actor(self, kind: type, node: str, cpus: int, gpus: int) -> Any:
        """Start an actor on a node and on no other. Neither it nor its calls are ever repeated."""
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        if kind not in self._kinds:
            # Once for a cluster: Ray pickles the class, in a tenth of a second of CPU, and there are many leases.
            self._kinds[kind] = ray.remote(max_restarts=0, max_task_retries=0)(kind)
        remote = self._kinds[kind].options(
            num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy, max_concurrency=100
        )
        return remote.remote()

    async def close(self) -> None:
        """Kill our actors and leave the cluster, if it answers.

        Otherwise the client server would keep the actors, and the GPUs that they hold, for half a minute.
        """
        loop = asyncio.get_running_loop()
        actors = [*(calls.actor for calls in self._keepers.values()), *self._leases.values()]
        await asyncio.gather(*(loop.run_in_executor(self._threads, _kill_actor, actor) for actor in actors))
        await loop.run_in_executor(self._threads, ray.shutdown)


_INLINE_BYTES = 64 << 10
"""A parcel up to this size travels with its call; Ray would do the same with an object."""

_GROUP_BYTES = 4 << 20


def _group_parcels(small: dict[str, bytes]) -> Iterable[dict[str, bytes]]:
    """Return parcels in groups, each of which travels with one call."""
    group: dict[str, bytes] = {}
    size = 0
    for name, data in small.items():
        if group and size + len(data) > _GROUP_BYTES:
            yield group
            group, size = {}, 0
        group[name] = data
        size += len(data)
    if group:
        yield group


async def _connect_streams(actor: Any) -> direct.Streams | None:
    """Return a direct connection to a keeper's actor, or None if there can be none."""
    if not direct.is_allowed(os.environ):
        return None
    secret = secrets.token_bytes(direct.SECRET_BYTES)
    host, port = await await_answer(actor.listen_for_bridge.remote(secret), ANSWER_S)
    try:
        return await direct.connect_to_actor(host, port, secret)
    except direct.NoDirectConnection as error:
        sys.stderr.write(f"ktuned-bridge: calls of Ray carry what is sent to a node: {error}\n")
        return None


def _connect_to_cluster(address: str, runtime_env: dict[str, Any]) -> None:
    ray.init(
        address=address,
        namespace=f"ktuned-{uuid.uuid4().hex[:8]}",
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env=runtime_env or None,
    )


def _list_nodes() -> tuple[cluster_calls.NodeInfo, ...]:
    found = []
    names: set[str] = set()
    for entry in sorted(ray.nodes(), key=lambda entry: str(entry["NodeID"])):
        if not entry["Alive"]:
            continue
        host = str(entry.get("NodeManagerHostname") or entry["NodeManagerAddress"])
        given = str(entry.get("NodeName") or "")
        # Ray names a node without a given name by its address; the host's name is more helpful.
        name = host if given in ("", entry["NodeManagerAddress"]) else given
        name = name.replace("/", "-").replace(":", "-")
        if name in names:
            name = f"{name}-{entry['NodeID'][:6]}"
        names.add(name)
        resources = entry["Resources"]
        found.append(
            cluster_calls.NodeInfo(
                str(entry["NodeID"]), name, host, int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
            )
        )
    return tuple(found)


def _kill_actor(actor: Any) -> None:
    with contextlib.suppress(Exception):
        ray.kill(actor, no_restart=True)
