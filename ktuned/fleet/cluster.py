"""Workers on the nodes of a cluster. A plugin's process joins the cluster; nothing here knows how.

 daemon: this ── messages ── python -m ktuned_ray ── the cluster ── an actor for each lane or slot ── workers

The process reports the nodes each second, starts workers where it is told, and passes requests on with the files that
they name. It is one child, killed and started again like a worker: libraries of clusters block, and end their process
when the cluster is lost.

A *host* is a node. Its name begins the names of its devices (``rack7/cuda:0``) and is in its workers' environments; the
rest of ktuned does not distinguish it from this machine. A worker that measures is started by its first request, which
names the device, because the device decides which GPU of the cluster is needed.

Every failure between the machines is one error, :class:`~ktuned.fleet.failures.HostLost`: it says nothing about the
work, so the job does the work again. Three things are retried, each after 1 s, 2 s … 60 s: joining the cluster, using a
node on which no probe could be started, and a lane whose GPU another job of the cluster holds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import anyio
import msgspec
import structlog
from msgspec.structs import replace

from ktuned.fleet.cluster_messages import (
    REPORTS,
    Answer,
    Command,
    Exchange,
    Gone,
    Kill,
    Node,
    Nodes,
    Result,
    Start,
    ToolchainChanged,
    WatchToolchain,
    read_message,
)
from ktuned.fleet.executor import Environment, Executor, Worker
from ktuned.fleet.failures import DeadlineExpired, Health, HostLost, Output, RequestFailed, WorkerDied, describe_exit
from ktuned.fleet.process_group import ProcessGroup
from ktuned.fleet.program import Programs
from ktuned.ipc import InvalidMessage, decoding, frames, replies, requests
from ktuned.model import BackendReport, Device, DeviceName, FrozenStruct, Phase, Role, WorkerError
from ktuned.protocol import ClusterInfo, HostInfo

_log = structlog.get_logger()

MODULE = "ktuned_ray"
"""The plugin's module that joins a cluster."""

JOIN_S = 60.0
"""Deadline for the cluster to report its nodes: Ray's client server needs up to half a minute for a new client."""

SILENCE_S = 20.0
"""After so many seconds without a report, the process or the cluster hangs."""

SETTLED_S = 30.0
"""How long a job waits for the cluster if this machine has no device for it, in seconds."""

END_S = 5.0
"""Time that the process gets to give its GPUs and CPUs back."""


class ClusterSettings(FrozenStruct, forbid_unknown_fields=True):
    """The ``[cluster]`` table.

    Attributes:
        ray: The address of a Ray cluster; empty for none.
        python: The interpreter of the process that joins it; empty for the daemon's.
        runtime_env: Ray's runtime environment (JSON) for what runs on the nodes.
    """

    ray: str = ""
    python: str = ""
    runtime_env: str = ""

    def find_fault(self) -> str:
        """Return what is wrong, the field's name first; empty if nothing is."""
        try:
            json.loads(self.runtime_env or "{}")
        except ValueError as error:
            return f"runtime_env is not JSON: {error}"
        return ""


class RemoteWorker(Worker):
    """A worker on a node; made by :class:`ClusterExecutor`."""

    def __init__(
        self,
        role: Role,
        environment: Environment,
        executor: ClusterExecutor,
        number: int,
        limit_bytes: int,
        start_s: float,
    ) -> None:
        super().__init__(role, environment, 0)
        self.number = number
        self._executor = executor
        self._limit_bytes = limit_bytes
        self._start_s = start_s
        self._outputs: list[Output] = []
        self._phases: Mapping[str, float] = {}
        self._damaged: tuple[str, ...] = ()
        self._kill_reason = ""
        self._is_killed = False

    @property
    def is_alive(self) -> bool:
        """True until it has ended, or was killed."""
        return not self.gone.is_set() and not self._is_killed

    async def start(self, lane: str) -> None:
        """Start the process on its node, where ``lane`` is a device's name there, or ``compile``, or empty.

        Raises:
            WorkerError: it cannot be started, or is not ready in time.
            HostLost: the node is lost, or another job of the cluster has what the lane needs.
        """
        place = self.environment
        node = self._executor.find_node(place.host)
        command = Start(
            self.number,
            node.id,
            lane,
            self.role,
            place.project,
            place.cwd,
            dict(place.env),
            self._limit_bytes,
            self._start_s,
        )
        answer, result = await self._executor.send_command(self, command)
        if answer.lost:
            raise HostLost(place.host, answer.lost, Phase.SPAWN)
        if result.error:
            raise WorkerError(f"{place.host}: {result.error}", hint=result.hint)
        self.pid = result.pid

    async def send_request(
        self,
        request: requests.Request[Any, Any],
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[Any], None] | None = None,
        on_computed: Callable[[], None] | None = None,
    ) -> tuple[Any, Output]:
        """Send a request and wait for its reply, as :meth:`Worker.send_request`.

        Items come together with the reply. ``on_computed`` is never called.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: as for :meth:`Worker.send_request`.
            HostLost: the node is lost, or another job of the cluster has the device.
        """
        self.requests += 1
        self._outputs = []
        is_over = False
        try:
            device = getattr(request, "device", None)
            if isinstance(device, Device) and device.host:
                # The lane has one GPU of the node's, whichever that is.
                name = "cuda:0" if device.kind == "cuda" else device.local_name
                request = replace(request, device=replace(device, name=DeviceName(name)))
            if not self.pid:
                await self.start((self.device if device is None else device.name).rpartition("/")[2])
            reply = await self._exchange(request, deadlines, on_item)
            is_over = True
            return reply, self.take_output()
        except RequestFailed:
            is_over = True
            raise
        except InvalidMessage as error:
            raise HostLost(
                self.environment.host, f"it sent an invalid message: {error.message}", request.first_phase
            ) from error
        finally:
            if not is_over:
                self.kill()

    async def _exchange(
        self,
        request: requests.Request[Any, Any],
        deadlines: Mapping[str, float],
        on_item: Callable[[Any], None] | None,
    ) -> Any:
        # By the request's fields rather than its type, because a list of types would miss new ones.
        kernel, digests = getattr(request, "kernel", None), None
        if isinstance(kernel, requests.KernelRef):
            digests = kernel.digests
        keys = list_artifact_keys(request)
        command = Exchange(
            self.number,
            requests.encode(request),
            dict(deadlines),
            digests,
            keys,
            tuple(key for key in self._damaged if key in keys),
        )
        answer, result = await self._executor.send_command(self, command)
        if answer.lost:
            if self._kill_reason:
                raise WorkerDied(-9, request.first_phase, self.take_output(), self._kill_reason)
            raise HostLost(self.environment.host, answer.lost, request.first_phase)
        reply_type, item_type = requests.find_answer_types(type(request))
        answers = []
        for item in result.items:
            assert item_type is not None
            value = decoding.decode(item.value, item_type)
            if isinstance(value, replies.CompiledUnit):
                value = replace(value, bytes=answer.sealed.get(value.artifact or value.key, 0))
            answers.append(value)
            self._outputs.append(Output(item.stdout, item.stderr))
            if on_item is not None:
                on_item(value)
        self._outputs.append(Output(result.stdout, result.stderr))
        self._phases = result.phases
        self.memory_bytes = result.memory_bytes or self.memory_bytes
        self._raise_failure(result)
        reply = decoding.decode(result.value, reply_type)
        self._damaged = keys if any(map(_is_damaged, (*answers, reply))) else ()
        if isinstance(reply, replies.ProbeReport):
            return self._executor.take_probe(self.environment, reply)
        return reply

    def _raise_failure(self, result: Result) -> None:
        if result.failure is not None:
            raise RequestFailed(result.failure, result.phase, self.take_output())
        if result.expired_s is not None:
            raise DeadlineExpired(result.phase, result.expired_s, self.take_output())
        if result.returncode is not None:
            stopped = result.stopped or self._kill_reason
            raise WorkerDied(result.returncode, result.phase, self.take_output(), stopped, result.fault)

    def kill(self, why: str = "") -> None:
        """End the worker and all that it started; :attr:`gone` is set when it has."""
        self._kill_reason = why or self._kill_reason
        if self.is_alive:
            self._is_killed = True
            self._executor.kill_worker(self, self._kill_reason)

    def measure_memory(self) -> None:
        """Leave :attr:`memory_bytes` as in the last answer, because the node watches the limit."""

    def take_output(self) -> Output:
        """Return the output of the worker's code since the last call, and forget it."""
        outputs, self._outputs = self._outputs, []
        return Output("".join(output.stdout for output in outputs), "".join(output.stderr for output in outputs))

    def read_phase_durations(self) -> Mapping[str, float]:
        """Return the seconds of each phase of the last request."""
        return self._phases


class ClusterExecutor(Executor):
    """Runs workers on the nodes of the cluster that its settings name.

    Args:
        settings: Name the cluster; without an address there is none.
        has_memory_limits: Whether the settings limit the workers' memory; otherwise each node chooses its own limits.
        artifacts: The directory of sealed artifacts.
        state: The working directory of the plugin's process.
        programs: Has the environment of the plugin's process, and gets the process's id.
        on_up: Called as ``on_up(host, cores)`` when workers can be started on a host.
        on_lost: Called as ``on_lost(host)`` when none can be started there any more.
        on_changed: Called as ``on_changed(host, reason)`` when the host's compilers or packages were replaced.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        has_memory_limits: bool,
        artifacts: Path,
        state: Path,
        programs: Programs,
        on_up: Callable[[str, int], None],
        on_lost: Callable[[str], None],
        on_changed: Callable[[str, str], None],
        module: str = MODULE,
    ) -> None:
        self._artifacts = artifacts
        self._state = state
        self._programs = programs
        self._on_up, self._on_lost, self._on_changed = on_up, on_lost, on_changed
        self._module = module
        self._settings = settings
        self._has_memory_limits = has_memory_limits
        self._health = Health()
        self._settled = anyio.Event()
        """Set when the nodes are known, or joining has failed."""
        self._version = ""
        self._nodes: dict[str, Node] = {}
        """The nodes that the cluster lists, by host name."""
        self._hosts: set[str] = set()
        """The hosts that are reported as up."""
        self._sick: dict[str, Health] = {}
        self._notes: dict[str, str] = {}
        """Why some of a host's devices are left out."""
        self._numbers = itertools.count(1)
        self._workers: dict[int, RemoteWorker] = {}
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._writer: asyncio.StreamWriter | None = None

    @asynccontextmanager
    async def run_workers(self) -> AsyncIterator[Self]:
        """Stay in the cluster for the length of the block; on leaving, every worker is killed."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stay_joined)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    async def _stay_joined(self) -> None:
        while self._settings.ray:
            reason = await self._run_process()
            self._health.record_failure(reason)
            self._settled.set()
            _log.warning("cluster_lost", address=self._settings.ray, reason=reason)
            await anyio.sleep(self._health.pause_s)

    async def _run_process(self) -> str:
        """Run the process that joins the cluster until it ends; return why it did."""
        python = os.path.expanduser(self._settings.python) or sys.executable
        ours, theirs = socket.socketpair()
        arguments = (str(theirs.fileno()), self._settings.ray, self._settings.runtime_env, str(self._artifacts))
        try:
            with theirs:
                # -P: a module in the working directory must not shadow a module that the process needs.
                process = subprocess.Popen(  # noqa: ASYNC220 - as workers are started: in a millisecond, on this thread
                    [python, "-P", "-m", self._module, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    cwd=self._state,
                    env=self._programs.env,
                )
        except OSError as error:
            ours.close()
            return f"{python} cannot be started: {error.strerror}"
        ended, reason = anyio.Event(), ""
        self._programs.pids.add(process.pid)
        group = ProcessGroup(process, ended.set)
        try:
            reader, self._writer = await asyncio.open_connection(sock=ours)
            reason = await self._receive_reports(reader)
        finally:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(0 if reason else END_S):
                    await ended.wait()
                group.kill()
                await ended.wait()
            self._programs.pids.discard(process.pid)
            lines = group.tails[0].take_text().strip().splitlines()
            reason = reason or (lines[-1][:400] if lines else f"its process {describe_exit(group.returncode or 0)}")
            self._lose_everything(reason)
        return reason

    async def _receive_reports(self, reader: asyncio.StreamReader) -> str:
        while True:
            deadline_s = SILENCE_S if self._version else JOIN_S
            try:
                with anyio.fail_after(deadline_s):
                    report = await read_message(reader, REPORTS)
            except TimeoutError:
                return f"it did not answer for {deadline_s:.0f} s"
            except msgspec.MsgspecError as error:
                return f"its process sent an invalid report: {error}"
            except (asyncio.IncompleteReadError, OSError):
                return ""
            match report:
                case Nodes():
                    self._take_nodes(report)
                case Answer():
                    answer = self._answers.pop(report.worker, None)
                    if answer is not None and not answer.done():
                        answer.set_result(report)
                case Gone():
                    self._lose_worker(report.worker, report.reason)
                case ToolchainChanged():
                    host = next((name for name, node in self._nodes.items() if node.id == report.node), None)
                    if host in self._hosts:
                        self._on_changed(host, report.reason)

    def _take_nodes(self, report: Nodes) -> None:
        self._version = report.version
        self._health.record_success()
        self._nodes = {node.name: node for node in report.nodes}
        for host in self._hosts - self._nodes.keys():
            self._lose_host(host)
        for host, node in self._nodes.items():
            if host not in self._hosts and not (host in self._sick and self._sick[host].pause_s):
                self._hosts.add(host)
                self._on_up(host, max(1, node.cpus))
        self._settled.set()

    def _lose_host(self, host: str) -> None:
        self._hosts.discard(host)
        self._on_lost(host)

    def _lose_worker(self, number: int, reason: str) -> None:
        answer = self._answers.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(Answer(number, lost=reason))
        worker = self._workers.pop(number, None)
        if worker is not None:
            worker.gone.set()

    def _lose_everything(self, reason: str) -> None:
        for number in list(self._workers):
            self._lose_worker(number, reason)
        for host in list(self._hosts):
            self._lose_host(host)
        self._nodes, self._version = {}, ""
        self._sick.clear()
        self._notes.clear()

    @property
    def workers(self) -> Iterable[RemoteWorker]:
        """All workers that have not ended."""
        return list(self._workers.values())

    def leave_cores(self, lanes: int) -> None:
        """Do nothing, because only the lanes of this machine are counted."""

    def find_node(self, host: str) -> Node:
        """Return a host's node.

        Raises:
            HostLost: the host is not there now.
        """
        if host not in self._hosts:
            raise HostLost(host, "it is not connected now", Phase.SPAWN)
        return self._nodes[host]

    async def start_worker(
        self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float
    ) -> RemoteWorker:
        """Start a worker on its environment's node; one that measures is started by its first request.

        Raises:
            HostLost: the node is not available now.
            WorkerError: the worker cannot be started, or is not ready within ``deadline_s``.
        """
        host = environment.host
        self.find_node(host)
        limit_bytes = limit_bytes if self._has_memory_limits else 0
        worker = RemoteWorker(role, environment, self, next(self._numbers), limit_bytes, deadline_s)
        self._workers[worker.number] = worker
        if role is Role.BENCH:
            return worker
        try:
            await worker.start("compile" if role is Role.COMPILE else "")
        except BaseException as error:
            worker.kill()
            if isinstance(error, WorkerError) and role is Role.INSPECT and host in self._hosts:
                # The node cannot even be probed: leave it out for a while.
                self._sick.setdefault(host, Health()).record_failure(error.message)
                self._lose_host(host)
            raise
        if role is Role.INSPECT:
            self._sick.pop(host, None)
        return worker

    async def send_command(self, worker: RemoteWorker, command: Start | Exchange) -> tuple[Answer, Result]:
        """Send a worker's command and wait for its answer."""
        if worker.number not in self._workers:
            return Answer(worker.number, lost="its worker has ended"), Result()
        answer = self._answers[worker.number] = asyncio.get_running_loop().create_future()
        self._send(command)
        found = await answer
        for body in frames.Decoder().feed(found.result):
            return found, decoding.decode(body, Result)
        return found, Result()

    def _send(self, command: Command) -> None:
        if self._writer is not None:
            self._writer.write(frames.encode(command))

    def kill_worker(self, worker: RemoteWorker, why: str) -> None:
        """Have a worker killed. One that no request has started is gone at once."""
        if worker.pid or worker.number in self._answers:
            self._send(Kill(worker.number, why))
        else:
            self._lose_worker(worker.number, why)

    def take_probe(self, environment: Environment, report: replies.ProbeReport) -> replies.ProbeReport:
        """Watch the toolchain that a probe has found on a node; return the report with the devices that are usable."""
        node = self.find_node(environment.host)
        if report.observed is not None:
            observed = report.observed
            self._send(WatchToolchain(node.id, repr(environment.env), observed.files, observed.limits))
        backends = {
            name: replace(found, devices=tuple(list_usable_devices(found, node)))
            for name, found in report.backends.items()
        }
        gpus = {device.model for found in report.backends.values() for device in found.devices if device.kind == "cuda"}
        self._notes.pop(node.name, None)
        if any(
            len({one.model for one in found.devices if one.kind == "cuda"}) > 1 for found in report.backends.values()
        ):
            self._notes[node.name] = f"its GPUs are left out, because they differ: {', '.join(sorted(gpus))}"
        return replace(report, backends=backends)

    async def await_hosts(self) -> None:
        """Wait until the nodes are known, or joining the cluster has failed; at most :data:`SETTLED_S`."""
        if self._settings.ray:
            with anyio.move_on_after(SETTLED_S):
                await self._settled.wait()

    def describe_cluster(self) -> ClusterInfo | None:
        """Return the cluster for a status, if there is one."""
        if not self._settings.ray:
            return None
        return ClusterInfo(self._settings.ray, self._version, tuple(map(self._describe_host, self._nodes.values())))

    def _describe_host(self, node: Node) -> HostInfo:
        sick = self._sick.get(node.name)
        reason = self._notes.get(node.name, "") if sick is None else sick.reason
        return HostInfo(node.name, node.cpus, node.gpus, "failed" if sick is not None else "ready", reason)

    @property
    def notices(self) -> Iterator[str]:
        """Why the cluster or its nodes cannot be used, one line each."""
        if self._health.is_sick:
            yield (
                f"the cluster {self._settings.ray} cannot be used, tried again in {self._health.pause_s:.0f} s: "
                f"{self._health.reason}"
            )
        for host, health in self._sick.items():
            yield f"the node {host} cannot be used, tried again in {health.pause_s:.0f} s: {health.reason}"
        for host, note in self._notes.items():
            yield f"the node {host}: {note}"


def list_artifact_keys(request: requests.Request[Any, Any]) -> tuple[str, ...]:
    """Return the keys of the artifacts that the worker loads for a request."""
    if isinstance(request, requests.Trial):
        return tuple(unit.key for unit in request.units)
    if isinstance(request, requests.Open):
        return () if request.reference is None else (request.reference.key,)
    return (request.unit.key,) if isinstance(request, requests.Time | requests.Check) else ()


def _is_damaged(answer: object) -> bool:
    """Return whether an answer says that an artifact is damaged on the node."""
    if isinstance(answer, replies.Opened):
        return answer.is_damaged
    return isinstance(answer, replies.Measurement) and answer.result.outcome is None


def list_usable_devices(backend: BackendReport, node: Node) -> Iterator[Device]:
    """Yield the devices that lanes can have. The cluster chooses a lane's GPU, so GPUs that differ cannot be used."""
    models: Collection[str] = {device.model for device in backend.devices if device.kind == "cuda"}
    for device in backend.devices:
        if device.kind != "cuda":
            if node.cpus:
                yield device
        elif len(models) == 1 and int(device.local_name.partition(":")[2]) < node.gpus:
            yield device
