"""ktuned's executor on the nodes of a Ray cluster, as the daemon has it; nothing here imports Ray.

 daemon: this ── calls ── ktuned-bridge ── Ray, or a connection ── actor ── keeper ── workers
                          a process with Ray                       one of each on a node

The bridge joins the cluster and reaches the keepers (``service.py``); a keeper runs workers on its node as a daemon
does (``keeper.py``). This side says what is to run where (:class:`~ktuned_ray.cluster.Cluster` knows the nodes),
carries files, and holds leases of the cluster's GPUs and CPUs while they are used.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

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
        """Return whether the runtime environment is no JSON."""
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
            kept=surroundings.kept,
            mend="set `python` of [cluster] in config.toml to an interpreter that has ktuned-ray installed",
        )
        self.cluster = Cluster(self.bridge, self._up, self._down)
        self.leases = Leases(self.bridge, self._end_device)
        self._surroundings = surroundings
        self._events = events
        self._limits_are_given = False
        self._links: dict[str, NodeLink] = {}
        self._files: dict[NodeLink, Carrier] = {}
        self._workers: set[RemoteWorker] = set()
        self._watched: dict[Environment, replies.ProbeDependencies] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    def follow(self, settings: ClusterSettings | None, *, limits_are_given: bool) -> None:
        """Be in the cluster of the settings from now on, or in none."""
        found = settings or ClusterSettings()
        self._limits_are_given = limits_are_given
        python = os.path.expanduser(found.python) or sys.executable
        if self.bridge.python != python:
            self.bridge.python = python
            self.bridge.kill("its interpreter is another one now")
        self.cluster.follow(found.ray, found.runtime_env)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Be in the cluster; on leaving, every worker is killed."""
        async with self.bridge.running(), anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self.leases.run)
            tasks.start_soon(self.cluster.run)
            try:
                yield self
            finally:
                self._tasks = None
                # With its call a worker is killed.
                tasks.cancel_scope.cancel()

    async def settled(self) -> None:
        """Wait, not longer than a while, until each node was tried once, or the cluster itself."""
        await self.cluster.settled()

    def describe(self) -> dict[str, Any]:
        """Return the cluster for a status; nothing without one."""
        return self.cluster.describe()

    @property
    def notices(self) -> list[str]:
        """The parts of the cluster that cannot be used, one line each."""
        return [*self.bridge.notices, *self.cluster.notices]

    def _up(self, link: NodeLink) -> None:
        self._links[link.info.name] = link
        self._files[link] = Carrier(self.bridge, link, self._surroundings.artifacts, self._surroundings.captures)
        self._events.on_up(link.info.name, link.cores)

    def _down(self, link: NodeLink) -> None:
        """Forget a node that was lost; all of its workers have ended, and its leases go back."""
        for lease in self.leases.drop(link):
            if self._tasks is not None:
                self._tasks.start_soon(self.leases.release, lease)
        if self._files.pop(link, None) is not None and self._links.get(link.info.name) is link:
            del self._links[link.info.name]
            self._events.on_lost(link.info.name)

    def _end_device(self, device: str) -> None:
        """End the workers on a device that others may have from now on."""
        for worker in self._workers:
            if worker.device == device:
                worker.kill()

    def files(self, link: NodeLink) -> Carrier:
        """Return what carries files to a node.

        Raises:
            BridgeDown: it is lost.
        """
        if link not in self._files:
            raise BridgeDown(link.reason or "it was left")
        return self._files[link]

    @property
    def workers(self) -> Iterable[RemoteWorker]:
        """All workers that have not ended."""
        return list(self._workers)

    async def start(self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float) -> RemoteWorker:
        """Start a worker on its environment's node, and wait until it takes requests.

        Raises:
            HostLost: the node is not there now.
            WorkerError: it cannot be started, or is not ready within ``deadline_s``.
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
        starting = _Starting()
        self._tasks.start_soon(self._hold, call, link, role, environment, starting)
        try:
            with anyio.fail_after(deadline_s + GRACE_S):
                await starting.known.wait()
        except BaseException as error:
            starting.scope.cancel()
            if isinstance(error, TimeoutError):
                raise WorkerError(f"{environment.host}: no worker after {deadline_s:.3g} s") from error
            raise
        if starting.error is not None:
            raise starting.error
        assert starting.worker is not None
        return starting.worker

    async def _hold(
        self, call: node_calls.Start, link: NodeLink, role: Role, environment: Environment, starting: _Starting
    ) -> None:
        """Hold a worker's call until it has ended."""

        def started(item: node_calls.Started) -> None:
            starting.worker = RemoteWorker(role, environment, item, self, link)
            self._workers.add(starting.worker)
            starting.known.set()

        try:
            with starting.scope:
                await link.exchange(call, math.inf, started)
        except CallFailed as error:
            starting.error = WorkerError(f"{environment.host}: {error.message}", hint=error.hint)
        except (BridgeDown, BridgeSlow) as error:
            starting.error = HostLost(environment.host, error.message, Phase.SPAWN)
        finally:
            if starting.worker is not None:
                self._workers.discard(starting.worker)
                starting.worker.gone.set()
            starting.known.set()

    def end(self, link: NodeLink, number: int, why: str) -> None:
        """Have a worker killed, as soon as its keeper hears of it."""
        if self._tasks is not None and not link.reason:
            self._tasks.start_soon(self._kill, link, number, why)

    async def _kill(self, link: NodeLink, number: int, why: str) -> None:
        with contextlib.suppress(BridgeDown, BridgeSlow, CallFailed):
            await link.exchange(node_calls.Kill(number, why), CALL_S)

    def watch_toolchain(self, link: NodeLink, environment: Environment, observed: replies.ProbeDependencies) -> None:
        """Have a node's keeper watch the toolchain that a probe saw there, in place of what an earlier one saw."""
        if self._tasks is not None:
            self._watched[environment] = observed
            self._tasks.start_soon(self._watch, link, environment, observed)

    async def _watch(self, link: NodeLink, environment: Environment, observed: replies.ProbeDependencies) -> None:
        try:
            changed = await link.exchange(node_calls.Watch(observed.files, observed.limits), math.inf)
        except (BridgeDown, BridgeSlow, CallFailed) as error:
            _log.debug("toolchain_not_watched", node=environment.host, reason=error.message)
            return
        if self._watched.get(environment) is observed:
            del self._watched[environment]
            self._events.on_changed(environment.host, changed.reason)


class _Starting(msgspec.Struct, eq=False):
    """A worker on its way: ``known`` is set when it is there, or has failed."""

    known: anyio.Event = msgspec.field(default_factory=anyio.Event)
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    worker: RemoteWorker | None = None
    error: WorkerError | None = None
