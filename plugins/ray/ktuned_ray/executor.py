"""ktuned's executor on the nodes of a Ray cluster, as the daemon has it; nothing here imports Ray.

 daemon: this ── calls ── ktuned-bridge ── Ray, or a connection ── actor ── keeper ── workers
                          a process with Ray                       one of each on a node

The bridge joins the cluster and reaches the keepers (``service.py``); a keeper runs workers on its node as a daemon
does (``keeper.py``). This side decides what runs where (:class:`~ktuned_ray.cluster.Cluster` knows the nodes), carries
files, and holds leases of the cluster's GPUs and CPUs while they are used.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import ClassVar, Self

import anyio
import anyio.abc
import msgspec
import structlog

from ktuned.bridge import CallFailed
from ktuned.fleet import (
    Bridge,
    BridgeDown,
    BridgeSlow,
    Environment,
    HostEvents,
    HostLost,
    RemoteExecutor,
    Surroundings,
)
from ktuned.ipc import replies
from ktuned.model import Phase, Role, WorkerError
from ktuned.protocol import ExecutorInfo
from ktuned_ray import node_calls
from ktuned_ray.carrier import Carrier
from ktuned_ray.cluster import Cluster
from ktuned_ray.leases import Leases
from ktuned_ray.node_link import CALL_S, NodeLink
from ktuned_ray.worker import GRACE_S, RemoteWorker

_log = structlog.get_logger()


class ClusterSettings(msgspec.Struct, frozen=True):
    """The ``[cluster]`` table: the Ray cluster to join, the interpreter of the bridge to it, and Ray's runtime
    environment (JSON) for what runs on the nodes.
    """

    ray: str = ""
    python: str = ""
    runtime_env: str = ""


class ClusterExecutor(RemoteExecutor):
    """Runs workers on the nodes of the cluster that its settings name."""

    settings: ClassVar = ClusterSettings

    @classmethod
    def check_settings(cls, settings: ClusterSettings) -> str:
        """Return what is wrong with the runtime environment; empty if it is JSON."""
        try:
            json.loads(settings.runtime_env or "{}")
        except ValueError as error:
            return f"runtime_env is not JSON: {error}"
        return ""

    def __init__(self, surroundings: Surroundings, events: HostEvents) -> None:
        self.bridge = Bridge(
            python=sys.executable,
            directory=surroundings.state,
            base_env=surroundings.base_env,
            mark=surroundings.mark,
            known_children=surroundings.known_children,
            hint="set `python` of [cluster] in config.toml to an interpreter that has ktuned-ray installed",
        )
        self.cluster = Cluster(self.bridge, self._on_node_up, self._on_node_down)
        self.leases = Leases(self.bridge, self._end_workers_on)
        self._surroundings = surroundings
        self._events = events
        self._limits_are_given = False
        self._links: dict[str, NodeLink] = {}
        self._carriers: dict[NodeLink, Carrier] = {}
        self._workers: set[RemoteWorker] = set()
        self._watched: dict[Environment, replies.ProbeDependencies] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    def apply_settings(self, settings: ClusterSettings | None, *, has_memory_limits: bool) -> None:
        """Join the cluster of the settings, or leave it if they name none."""
        found = settings or ClusterSettings()
        self._limits_are_given = has_memory_limits
        python = os.path.expanduser(found.python) or sys.executable
        if self.bridge.python != python:
            self.bridge.python = python
            self.bridge.kill("its interpreter is another one now")
        self.cluster.apply_settings(found.ray, found.runtime_env)

    @asynccontextmanager
    async def run_workers(self) -> AsyncIterator[Self]:
        """Stay in the cluster for the length of the block; on leaving, every worker is killed."""
        async with self.bridge.accept_calls(), anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self.leases.return_idle_leases)
            tasks.start_soon(self.cluster.run_until_cancelled)
            try:
                yield self
            finally:
                self._tasks = None
                # This cancels the calls that hold workers; each worker is killed when its call is cancelled.
                tasks.cancel_scope.cancel()

    async def await_hosts(self) -> None:
        """Wait, for a limited time, until each node was tried once, or joining the cluster failed once."""
        await self.cluster.await_nodes()

    def describe_hosts(self) -> ExecutorInfo | None:
        """Return the cluster for a status, if there is one."""
        return self.cluster.describe_cluster()

    @property
    def notices(self) -> list[str]:
        """Why the bridge, the cluster or its nodes cannot be used, one line each."""
        return [*self.bridge.notices, *self.cluster.notices]

    def _on_node_up(self, link: NodeLink) -> None:
        self._links[link.info.name] = link
        self._carriers[link] = Carrier(self.bridge, link, self._surroundings.artifacts)
        self._events.on_up(link.info.name, link.cores)

    def _on_node_down(self, link: NodeLink) -> None:
        """Forget a node that was lost: its workers have ended, and its leases are given back."""
        for lease in self.leases.forget_node(link):
            if self._tasks is not None:
                self._tasks.start_soon(self.leases.release_lease, lease)
        if self._carriers.pop(link, None) is not None and self._links.get(link.info.name) is link:
            del self._links[link.info.name]
            self._events.on_lost(link.info.name)

    def _end_workers_on(self, device: str) -> None:
        """Kill the workers on a device whose lease is given back."""
        for worker in self._workers:
            if worker.device == device:
                worker.kill()

    def get_carrier(self, link: NodeLink) -> Carrier:
        """Return the carrier of files to a node.

        Raises:
            BridgeDown: the node is lost.
        """
        if link not in self._carriers:
            raise BridgeDown(link.reason or "it was left")
        return self._carriers[link]

    @property
    def workers(self) -> Iterable[RemoteWorker]:
        """All workers that have not ended."""
        return list(self._workers)

    async def start_worker(
        self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float
    ) -> RemoteWorker:
        """Start a worker on its environment's node, and wait until it takes requests.

        Raises:
            HostLost: the node is not available now.
            WorkerError: the worker cannot be started, or is not ready within ``deadline_s``.
        """
        link = self._links.get(environment.host)
        if link is None or not link.is_up or self._tasks is None:
            raise HostLost(environment.host, "it is not there now", Phase.SPAWN)
        call = node_calls.Start(
            role,
            environment.project,
            environment.cwd,
            dict(environment.env),
            limit_bytes if self._limits_are_given else 0,
            deadline_s,
        )
        starting = _PendingWorker()
        self._tasks.start_soon(self._hold_worker, call, link, role, environment, starting)
        try:
            with anyio.fail_after(deadline_s + GRACE_S):
                await starting.settled.wait()
        except BaseException as error:
            starting.scope.cancel()
            if isinstance(error, TimeoutError):
                raise WorkerError(f"{environment.host}: no worker after {deadline_s:.3g} s") from error
            raise
        if starting.error is not None:
            raise starting.error
        assert starting.worker is not None
        return starting.worker

    async def _hold_worker(
        self, call: node_calls.Start, link: NodeLink, role: Role, environment: Environment, starting: _PendingWorker
    ) -> None:
        """Hold the call that runs a worker until the worker has ended."""

        def on_started(item: node_calls.Started) -> None:
            starting.worker = RemoteWorker(role, environment, item, self, link)
            self._workers.add(starting.worker)
            starting.settled.set()

        try:
            with starting.scope:
                await link.call_keeper(call, math.inf, on_started)
        except CallFailed as error:
            starting.error = WorkerError(f"{environment.host}: {error.message}", hint=error.hint)
        except (BridgeDown, BridgeSlow) as error:
            starting.error = HostLost(environment.host, error.message, Phase.SPAWN)
        finally:
            if starting.worker is not None:
                self._workers.discard(starting.worker)
                starting.worker.gone.set()
            starting.settled.set()

    def kill_worker(self, link: NodeLink, number: int, why: str) -> None:
        """Make a worker's keeper kill it, in the background."""
        if self._tasks is not None and not link.reason:
            self._tasks.start_soon(self._send_kill, link, number, why)

    async def _send_kill(self, link: NodeLink, number: int, why: str) -> None:
        with contextlib.suppress(BridgeDown, BridgeSlow, CallFailed):
            await link.call_keeper(node_calls.Kill(number, why), CALL_S)

    def watch_toolchain(self, link: NodeLink, environment: Environment, observed: replies.ProbeDependencies) -> None:
        """Make a node's keeper watch the toolchain that a probe found there, in place of an earlier probe's."""
        if self._tasks is not None:
            self._watched[environment] = observed
            self._tasks.start_soon(self._watch_until_changed, link, environment, observed)

    async def _watch_until_changed(
        self, link: NodeLink, environment: Environment, observed: replies.ProbeDependencies
    ) -> None:
        try:
            changed = await link.call_keeper(node_calls.Watch(observed.files, observed.limits), math.inf)
        except (BridgeDown, BridgeSlow, CallFailed) as error:
            _log.debug("toolchain_not_watched", node=environment.host, reason=error.message)
            return
        if self._watched.get(environment) is observed:
            del self._watched[environment]
            self._events.on_changed(environment.host, changed.reason)


class _PendingWorker(msgspec.Struct, eq=False):
    """A worker that is being started; ``settled`` is set when it is ready or has failed."""

    settled: anyio.Event = msgspec.field(default_factory=anyio.Event)
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    worker: RemoteWorker | None = None
    error: WorkerError | None = None
