"""Workers on the nodes of a cluster: the same requests and replies, by way of the bridge and each node's keeper.

Before a request that names files of a project, or artifacts, they are put there; after a compile its artifacts are
brought here. All under way on a node that is lost fails with :class:`~ktuned.fleet.failures.NodeLost`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Self

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import structlog

from ktuned.bridge import CallFailed, node
from ktuned.fleet.bridge import Bridge
from ktuned.fleet.calls import BridgeDown, BridgeSlow
from ktuned.fleet.carrier import Carrier
from ktuned.fleet.executor import Environment, Executor, I, R, Worker
from ktuned.fleet.failures import DeadlineExpired, NodeAbsent, NodeLost, Output, RequestFailed, WorkerDied
from ktuned.fleet.leases import Leases
from ktuned.fleet.node_link import CALL_S, NodeLink
from ktuned.fleet.sent_ahead import Answers, SentAhead
from ktuned.ipc import from_plain, replies, requests
from ktuned.model import Device, DeviceName, KtunedError, Phase, Role, WorkerError

_log = structlog.get_logger()

GRACE_S = 10.0
"""Time that an answer may take beyond its phases' deadlines, which the keeper watches."""


class RemoteWorker(Worker):
    """A worker on a node; made by :class:`RemoteExecutor`."""

    def __init__(
        self, role: Role, environment: Environment, started: node.Started, executor: RemoteExecutor, link: NodeLink
    ) -> None:
        super().__init__(role, environment, started.pid)
        self._number = started.worker
        self._executor = executor
        self._link = link
        self._answers = Answers()
        self._ahead: SentAhead | None = None
        self._owed_s = 0.0
        self._trials = 0
        self._phases: Mapping[str, float] = {}
        self._stopped = ""
        self._is_killed = False

    @property
    def is_alive(self) -> bool:
        """True until it has ended, or was killed."""
        return not self.gone.is_set() and not self._is_killed

    async def exchange(
        self,
        request: requests.Request[R, I],
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[I], None] | None = None,
        on_computed: Callable[[], None] | None = None,
    ) -> tuple[R, Output]:
        """Send a request; return its reply, and what the worker's code printed meanwhile. Its keeper passes no
        ``on_computed`` on.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: as :meth:`Worker.exchange`; :class:`NodeLost` with the node.
        """
        self.requests += 1
        ahead = self._claimed(request)
        done = False
        try:
            try:
                reply = None if ahead is None else await self._follow(ahead, on_item)
                if reply is None:
                    self._answers = Answers(on_item)
                    reply = await self._exchange(request, deadlines, self._answers)
            except (BridgeDown, BridgeSlow, CallFailed) as error:
                await self._settle_end()
                raise self._death(error, request.first_phase) from error
            done = True
            return reply, self.output()
        except RequestFailed:
            done = True
            raise
        finally:
            if not done:
                self.kill()

    async def expect(self, request: requests.Trial, deadlines: Mapping[str, float]) -> None:
        """Have the artifacts brought to the node, and the request begun there as soon as the trials under way are over.

        At most one request waits there. It is not sent where nothing would come before it.
        """
        with contextlib.suppress(BridgeDown, BridgeSlow, CallFailed):
            await self._executor.files(self._link).send_ahead(unit.key for unit in request.units)
        if self._ahead is None and self.is_alive and self._trials:
            self._ahead = SentAhead(request)
            self._executor.begin(partial(self._carry_out, self._ahead, deadlines))

    async def finish_expected(self) -> None:
        """Wait for the end of the request that was sent ahead, if there is one; its answers are kept."""
        if self._ahead is not None:
            await self._ahead.ended.wait()

    async def _carry_out(self, ahead: SentAhead, deadlines: Mapping[str, float]) -> None:
        """Have a request carried out before its :meth:`exchange`."""
        try:
            ahead.reply = await self._exchange(ahead.request, deadlines, ahead.answers, is_ahead=True)
        except KtunedError as error:
            ahead.error = error
        finally:
            ahead.ended.set()

    def _claimed(self, request: requests.Request[Any, Any]) -> SentAhead | None:
        """Return the request that was sent ahead if it is this one; any but other trials make it void."""
        ahead = self._ahead
        is_other = isinstance(request, requests.Trial) and ahead is not None and ahead.request.units != request.units
        if not is_other:
            self._ahead = None
        return ahead if isinstance(request, requests.Trial) and not is_other else None

    async def _follow(self, ahead: SentAhead, on_item: Callable[[Any], None] | None) -> Any:
        """Wait for the reply to a request that was sent ahead; return nothing if it was put off."""
        self._answers = ahead.answers
        ahead.answers.pass_on(on_item)
        await ahead.ended.wait()
        if ahead.error is not None:
            raise ahead.error
        return ahead.reply

    async def _settle_end(self) -> None:
        """Wait a moment for the reason why a call failed: the worker's end, or its node's."""
        with anyio.move_on_after(CALL_S if self._link.reason else 1.0):
            await self.gone.wait()

    def _death(self, error: KtunedError, phase: Phase) -> WorkerDied:
        if self._stopped:
            return WorkerDied(-9, phase, self.output(), self._stopped)
        return NodeLost(self.environment.node, self._link.reason or error.message, phase)

    async def _exchange(
        self,
        request: requests.Request[R, I],
        deadlines: Mapping[str, float],
        answers: Answers,
        *,
        is_ahead: bool = False,
    ) -> Any:
        """Have the worker carry a request out; return its reply, or nothing if it was sent ahead and put off."""
        began = monotonic()
        files = self._executor.files(self._link)
        small = await files.provide(request, self.environment)
        provided_at = monotonic()
        sent = _local(request)
        reply_type, item_type = requests.answer_types(type(request))
        brought: list[tuple[replies.CompiledUnit, bytes]] = []

        def take(item: node.Item) -> None:
            assert item_type is not None
            value = from_plain(item_type, item.value)
            output = Output(item.stdout, item.stderr)
            if isinstance(value, replies.CompiledUnit):
                answers.said.append(output)
                brought.append((value, item.artifact))
                return
            files.note(value, request)
            answers.take(value, output)

        call = node.Exchange(self._number, requests.plain(sent), dict(deadlines), small or None, is_ahead)
        ended = await self._send(call, request, take)
        if ended.is_put_off:
            return None
        for item in ended.last:
            take(item)
        ended_at = monotonic()
        for value, packed in brought:
            # Bounded by the group that was compiled.
            answers.take(await files.bring(value, packed), Output())
        answers.said.append(Output(ended.stdout, ended.stderr))
        self._phases = ended.phases or {}
        self.memory_bytes = ended.memory_bytes or self.memory_bytes
        _raise_failure(ended, answers, self._stopped)
        reply: R = from_plain(reply_type, ended.value)
        files.note(reply, request)
        _log.debug(
            "node_exchanged",
            node=self.environment.node,
            operation=request.operation,
            provide_ms=_ms(provided_at - began),
            way_ms=_ms(ended_at - provided_at - ended.seconds - ended.waited_s),
            waited_ms=_ms(ended.waited_s),
            keeper_ms=_ms(ended.seconds - sum(self._phases.values())),
            bring_ms=_ms(monotonic() - ended_at),
            **{f"{phase}_ms": _ms(seconds) for phase, seconds in self._phases.items()},
        )
        return reply

    async def _send(
        self, call: node.Exchange, request: requests.Request[Any, Any], take: Callable[[node.Item], None]
    ) -> node.Exchanged:
        """Send a call; its deadline is begun again by each item, as a phase is, and comes after all before it."""
        own_s = sum(call.deadlines.values())
        deadline_s = self._owed_s + own_s + GRACE_S
        is_trial = isinstance(request, requests.Trial)
        owed_s = own_s * (len(request.units) if isinstance(request, requests.Trial) else 1)
        self._owed_s += owed_s
        self._trials += is_trial
        try:
            return await self._link.exchange(call, deadline_s, take)
        finally:
            self._owed_s -= owed_s
            self._trials -= is_trial

    def kill(self) -> None:
        """End the worker and all that it started; :attr:`gone` is set when it has."""
        self._ahead = None
        if self.is_alive:
            self._is_killed = True
            self._executor.end(self._link, self._number, "")

    def stop(self, why: str) -> None:
        """Kill the worker for what it does."""
        self._stopped = why
        if self.is_alive:
            self._is_killed = True
            self._executor.end(self._link, self._number, why)

    def measure_memory(self) -> None:
        """Leave :attr:`memory_bytes` as its last answer said: the keeper watches the limit."""

    def output(self) -> Output:
        """Return what was printed since this was last asked."""
        return self._answers.output()

    def timeline(self) -> Mapping[str, float]:
        """Return the seconds of each phase of the last request."""
        return self._phases


def _raise_failure(ended: node.Exchanged, answers: Answers, stopped: str) -> None:
    if ended.failure is not None:
        raise RequestFailed(ended.failure, Phase(ended.phase), answers.output())
    if ended.expired_s is not None:
        raise DeadlineExpired(Phase(ended.phase), ended.expired_s, answers.output())
    if ended.returncode is not None:
        raise WorkerDied(ended.returncode, Phase(ended.phase), answers.output(), ended.stopped or stopped, ended.fault)


class RemoteExecutor(Executor):
    """Runs workers on nodes whose links it is given; ``artifacts`` and ``captures`` are the directories here.

    Workers get ``limits`` of memory only where the settings give them; else their node's own.
    """

    def __init__(self, bridge: Bridge, *, artifacts: Path, captures: Path, limits_are_given: bool = False) -> None:
        self._bridge = bridge
        self._artifacts = artifacts
        self._captures = captures
        self._limits_are_given = limits_are_given
        self._links: dict[str, NodeLink] = {}
        self._files: dict[NodeLink, Carrier] = {}
        self._workers: set[RemoteWorker] = set()
        self.leases = Leases(bridge)
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Hold the calls under way; on leaving, every worker is killed."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self.leases.run)
            try:
                yield self
            finally:
                self._tasks = None
                # With its call a worker is killed.
                tasks.cancel_scope.cancel()

    def attach(self, link: NodeLink) -> None:
        """Let workers be started on a node."""
        self._links[link.info.name] = link
        self._files[link] = Carrier(self._bridge, link, self._artifacts, self._captures)

    def detach(self, link: NodeLink) -> None:
        """Forget a node that was lost; all of its workers have ended, and its leases go back."""
        for lease in self.leases.drop(link):
            if self._tasks is not None:
                self._tasks.start_soon(self.leases.release, lease)
        self._files.pop(link, None)
        if self._links.get(link.info.name) is link:
            del self._links[link.info.name]

    def _link(self, node: str) -> NodeLink:
        link = self._links.get(node)
        if link is None or not link.is_up or self._tasks is None:
            raise NodeAbsent(f"the node {node} is not there now")
        return link

    async def take_device(self, device: Device) -> None:
        """Hold a node's device for a lane.

        Raises:
            NodeAbsent: its node is not there, or another job of the cluster has it.
        """
        await self.leases.take_device(self._link(device.node), device.name)

    async def take_slot(self, node: str) -> str:
        """Hold a CPU of a node for a compile.

        Raises:
            NodeAbsent: it is not there, or other jobs have all.
        """
        return await self.leases.take_slot(self._link(node))

    def watch_toolchain(self, node: str, observed: replies.Observed, ended: Callable[[str], None]) -> None:
        """Have a node's keeper watch its toolchain; ``ended`` is called once, with the reason or with nothing."""
        if self._tasks is None or node not in self._links:
            ended("")
            return
        self._tasks.start_soon(self._watch, self._links[node], observed, ended)

    async def _watch(self, link: NodeLink, observed: replies.Observed, ended: Callable[[str], None]) -> None:
        reason = ""
        try:
            reason = (await link.exchange(node.Watch(observed.files, observed.limits), math.inf)).reason
        except (BridgeDown, BridgeSlow, CallFailed) as error:
            _log.debug("toolchain_not_watched", node=link.info.name, reason=error.message)
        finally:
            ended(reason)

    def give(self, name: str) -> None:
        """Let a lease go back when it is not used again soon."""
        self.leases.give(name)

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

    def leave_cores(self, lanes: int) -> None:
        """Do nothing: each node keeps one core for its lane."""

    async def start(self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float) -> RemoteWorker:
        """Start a worker on its environment's node, and wait until it takes requests.

        Raises:
            NodeAbsent: the node is not there now.
            WorkerError: it cannot be started, or is not ready within ``deadline_s``.
        """
        link = self._link(environment.node)
        assert self._tasks is not None
        call = node.Start(
            role,
            environment.project,
            environment.cwd,
            dict(environment.env),
            limit_bytes if self._limits_are_given else 0,
            deadline_s,
        )
        starting = _Starting()
        self._tasks.start_soon(self._run, call, link, role, environment, starting)
        try:
            with anyio.fail_after(deadline_s + GRACE_S):
                await starting.known.wait()
        except BaseException as error:
            starting.scope.cancel()
            if isinstance(error, TimeoutError):
                raise WorkerError(f"{environment.node}: no worker after {deadline_s:.3g} s") from error
            raise
        if starting.error is not None:
            raise starting.error
        assert starting.worker is not None
        return starting.worker

    async def _run(
        self, call: node.Start, link: NodeLink, role: Role, environment: Environment, starting: _Starting
    ) -> None:
        """Hold a worker's call until it has ended."""

        def started(item: node.Started) -> None:
            starting.worker = RemoteWorker(role, environment, item, self, link)
            self._workers.add(starting.worker)
            starting.known.set()

        try:
            with starting.scope:
                await link.exchange(call, math.inf, started)
        except CallFailed as error:
            starting.error = WorkerError(f"{environment.node}: {error.message}", hint=error.hint)
        except (BridgeDown, BridgeSlow) as error:
            starting.error = NodeAbsent(f"the node {environment.node} was lost: {error.message}")
        finally:
            if starting.worker is not None:
                self._workers.discard(starting.worker)
                starting.worker.gone.set()
            starting.known.set()

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something done for a worker beside what its callers wait for."""
        if self._tasks is not None:
            self._tasks.start_soon(work)

    def end(self, link: NodeLink, number: int, why: str) -> None:
        """Have a worker killed, as soon as its keeper hears of it."""
        if self._tasks is not None and not link.reason:
            self._tasks.start_soon(self._kill, link, number, why)

    async def _kill(self, link: NodeLink, number: int, why: str) -> None:
        with contextlib.suppress(BridgeDown, BridgeSlow, CallFailed):
            await link.exchange(node.Kill(number, why), CALL_S)


class _Starting(msgspec.Struct, eq=False):
    """A worker on its way: ``known`` is set when it is there, or has failed."""

    known: anyio.Event = msgspec.field(default_factory=anyio.Event)
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    worker: RemoteWorker | None = None
    error: WorkerError | None = None


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


def _local(request: requests.Request[R, I]) -> requests.Request[R, I]:
    """Return a request with its device's name on the node."""
    device = getattr(request, "device", None)
    if not isinstance(device, Device) or not device.node:
        return request
    local = replace(device, name=DeviceName(device.local_name))
    return replace(request, device=local)
