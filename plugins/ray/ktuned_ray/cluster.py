"""A cluster: it is joined in the background, and again after it is lost, with growing pauses.

Two loops, one inside the other, each with failures and pauses of its own:

- *The cluster.* Join it and receive news of its nodes until it is lost. A join that brings no news within
  :data:`JOIN_S` hangs, and only killing the bridge ends it.
- *Each node*, for as long as the news list it: start a keeper there and keep the link to it until it is lost.

Tuning on this machine continues meanwhile. A job without a device here waits until each node was tried once, or joining
the cluster failed once, but not longer than :data:`SETTLED_S`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import anyio
import anyio.abc
import structlog

from ktuned.bridge import CallFailed
from ktuned.fleet import Bridge, BridgeDown, BridgeSlow, Health
from ktuned.model import find_first_error
from ktuned.protocol import ExecutorInfo, HostInfo
from ktuned_ray import cluster_calls
from ktuned_ray.node_link import NodeLink

_log = structlog.get_logger()

JOIN_S: Final = 60.0
"""Deadline for a cluster to report its nodes; after it, the join counts as hung."""

SETTLED_S: Final = 30.0
"""How long a job waits for the cluster if this machine has no device for it, in seconds."""

MAX_NODES: Final = 256
"""Most nodes that are used; each has its own keeper and lanes."""


class Cluster:
    """The nodes of one cluster; ``on_up`` is called when a node's keeper takes calls, ``on_down`` when it stops."""

    def __init__(
        self,
        bridge: Bridge,
        on_up: Callable[[NodeLink], None],
        on_down: Callable[[NodeLink], None],
        *,
        health: Health | None = None,
    ) -> None:
        self.news: cluster_calls.ClusterNews | None = None
        self.address = ""
        self._bridge = bridge
        self._on_up = on_up
        self._on_down = on_down
        self._settled = anyio.Event()
        self._health = health or Health()
        self._links: dict[str, NodeLink] = {}
        self._failures: dict[str, tuple[str, Health]] = {}
        self._changed = anyio.Event()
        self._settings = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._runtime_env = ""

    async def await_nodes(self) -> None:
        """Wait until each node was tried once, or joining the cluster failed once; at most :data:`SETTLED_S`."""
        if self.address:
            with anyio.move_on_after(SETTLED_S):
                await self._settled.wait()

    def _mark_settled_if_complete(self) -> None:
        nodes = () if self.news is None else self.news.nodes
        if all(node.id in self._links or node.id in self._failures for node in nodes):
            self._settled.set()

    def apply_settings(self, address: str, runtime_env: str = "") -> None:
        """Leave the cluster and join the one at an address; none if it is empty."""
        if (address, runtime_env) == (self.address, self._runtime_env):
            return
        self.address, self._runtime_env = address, runtime_env
        self._health.record_success()
        self._settings.set()
        if self._scope is not None:
            self._scope.cancel()

    async def run_until_cancelled(self) -> None:
        """Stay in the cluster that the settings name, until cancelled."""
        while True:
            self._settings = anyio.Event()
            if self.address:
                with anyio.CancelScope() as self._scope:
                    await self._stay_joined()
            else:
                await self._settings.wait()

    async def _stay_joined(self) -> None:
        while True:
            reason, hint = "", ""
            try:
                await self._join_until_lost()
            except* (BridgeDown, BridgeSlow, CallFailed) as group:
                error = find_first_error(group)
                assert isinstance(error, BridgeDown | BridgeSlow | CallFailed)
                reason, hint = error.message, error.hint
            finally:
                self.news = None
            self._settled.set()
            self._health.record_failure(f"{reason} ({hint})" if hint else reason)
            pause_s = max(self._health.pause_s, self._bridge.pause_s)
            _log.warning("cluster_lost", address=self.address, reason=reason, again_in_s=round(pause_s, 1))
            await anyio.sleep(pause_s)

    async def _join_until_lost(self) -> None:
        """Join the cluster and keep its nodes until it is lost."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive_news, tasks)
            known: set[str] = set()
            while True:
                await self._changed.wait()
                self._changed = anyio.Event()
                for info in self.news.nodes[:MAX_NODES] if self.news is not None else ():
                    if info.id not in known:
                        known.add(info.id)
                        tasks.start_soon(self._keep_node, info)

    async def _receive_news(self, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(self._expect_news)
        await self._bridge.call_service(
            cluster_calls.Join(self.address, self._runtime_env), math.inf, on_item=self._take_news
        )

    async def _expect_news(self) -> None:
        with anyio.move_on_after(JOIN_S):
            while self.news is None:
                await self._changed.wait()
        if self.news is None:
            self._bridge.kill(f"it did not join {self.address} within {JOIN_S:.0f} s")

    def _take_news(self, news: cluster_calls.ClusterNews) -> None:
        if self.news is None:
            _log.info("cluster_joined", address=self.address, ray=news.ray, nodes=len(news.nodes))
        self.news = news
        self._health.record_success()
        self._changed.set()

    def _is_listed(self, info: cluster_calls.NodeInfo) -> bool:
        return self.news is not None and any(node.id == info.id for node in self.news.nodes)

    async def _keep_node(self, info: cluster_calls.NodeInfo) -> None:
        """Keep a link to a node for as long as the cluster lists it."""
        health = Health()
        while self._is_listed(info):
            link = NodeLink(self._bridge, info)
            try:
                reason = await link.run_until_lost(self._on_node_up)
            finally:
                self._on_node_down(link)
            health.record_failure(reason)
            self._failures[info.id] = (info.name, health)
            self._mark_settled_if_complete()
            _log.warning("node_lost", node=info.name, reason=reason, again_in_s=round(health.pause_s, 1))
            await anyio.sleep(max(health.pause_s, self._bridge.pause_s))
        self._failures.pop(info.id, None)

    def _on_node_up(self, link: NodeLink) -> None:
        self._failures.pop(link.info.id, None)
        self._links[link.info.id] = link
        _log.info("node_joined", node=link.info.name, cpus=link.info.cpus, gpus=link.info.gpus)
        self._on_up(link)
        self._mark_settled_if_complete()

    def _on_node_down(self, link: NodeLink) -> None:
        if self._links.pop(link.info.id, None) is not None:
            self._on_down(link)

    @property
    def links(self) -> list[NodeLink]:
        """The nodes whose keepers take calls."""
        return [link for link in self._links.values() if link.is_up]

    def describe_cluster(self) -> ExecutorInfo | None:
        """Return the cluster for a status, if there is one."""
        if not self.address:
            return None
        news = self.news
        return ExecutorInfo(
            name=self.address,
            version="" if news is None else f"Ray {news.ray} and Python {news.python}",
            mend="the bridge's interpreter ([cluster] python) needs ktuned-ray, and the cluster's Ray and Python",
            hosts=() if news is None else tuple(map(self._describe_node, news.nodes)),
        )

    def _describe_node(self, info: cluster_calls.NodeInfo) -> HostInfo:
        link = self._links.get(info.id)
        report = None if link is None else link.report
        failure = self._failures.get(info.id)
        mend = f"install the same on {info.host}" if report is not None else "install ktuned-ray on the node"
        return HostInfo(
            name=info.name,
            cpus=info.cpus,
            gpus=info.gpus,
            state="ready" if report is not None else "starting" if failure is None else "failed",
            reason="" if failure is None else failure[1].reason,
            interpreter="" if report is None else report.python,
            python="" if report is None else report.python_version,
            ktuned="" if report is None else report.ktuned,
            mend=f"{mend}, or bring it by [cluster] runtime_env",
        )

    @property
    def notices(self) -> Iterator[str]:
        """Why the cluster or its nodes cannot be used, one line each."""
        if self._health.is_sick:
            yield (
                f"the cluster {self.address} cannot be used, tried again in {self._health.pause_s:.0f} s: "
                f"{self._health.reason}"
            )
        for name, health in self._failures.values():
            yield f"the node {name} cannot be used, tried again in {health.pause_s:.0f} s: {health.reason}"
