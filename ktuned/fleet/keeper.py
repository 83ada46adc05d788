"""A node's keeper: a process that runs workers there as a daemon does, for one that is on another machine.

``python -m ktuned.fleet.keeper SOCKET_FD DIRECTORY``. It has its own executor and warden, watches deadlines and
memory itself, and ends with everything that it started when its socket closes. ``DIRECTORY`` is private, and removed.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import os
import platform
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Final

import anyio
import anyio.to_thread

from ktuned.backends import cpu
from ktuned.bridge import Call, CallFailed, Host, Send, Service, node, parcels
from ktuned.fleet import memory
from ktuned.fleet.executor import Environment, Worker
from ktuned.fleet.failures import DeadlineExpired, Output, RequestFailed, WorkerDied
from ktuned.fleet.local_executor import LocalExecutor
from ktuned.fleet.node_artifacts import NodeArtifacts
from ktuned.fleet.node_layout import NodeLayouts
from ktuned.ipc import Trust, first_changed, replies, requests, to_message
from ktuned.model import Outcome, Record, Role, WorkerError

MEMORY_S: Final = 0.2
"""Interval between two looks at workers' memory, as in a daemon."""

WATCH_S: Final = 2.0
"""Interval between two looks at a toolchain's files, as at those in use on a daemon's own machine."""

_OTHERS = ("KTUNED_HOME", "KTUNED_SOCKET")


class _Seat:
    """A worker with its limit of memory: requests take turns, and one sent ahead counts on those before it.

    ``went_through`` says that the last ones were trials, each was measured, and none left the worker in doubt.
    """

    def __init__(self, worker: Worker, limit_bytes: int) -> None:
        self.worker = worker
        self.limit_bytes = limit_bytes
        self.turn = asyncio.Lock()
        self.went_through = False


class Keeper(Service):
    """Carries out a daemon's calls on this node."""

    calls: ClassVar = (
        node.Describe,
        node.LayOut,
        node.Watch,
        node.Start,
        node.Exchange,
        node.Keep,
        node.Kill,
        node.LeaveCores,
    )

    def __init__(self, executor: LocalExecutor, home: Path, *, watch_s: float = WATCH_S) -> None:
        self._watch_s = watch_s
        self.artifacts = NodeArtifacts(home)
        self._executor = executor
        self._layouts = NodeLayouts(home)
        self._laying_out = anyio.Lock()
        self._seats: dict[int, _Seat] = {}
        self._numbers = itertools.count(1)
        self._cores = sorted(os.sched_getaffinity(0))
        self._granted = memory.default_limits(max(1, len(self._cores) - 1))

    async def carry_out(self, call: Call[Any, Any], send: Send) -> Record:
        """Carry one call out."""
        match call:
            case node.Describe():
                return await anyio.to_thread.run_sync(self._describe)
            case node.LayOut():
                async with self._laying_out:
                    return node.Layout(await anyio.to_thread.run_sync(self._layouts.lay_out, call))
            case node.Watch():
                return await self._watch(call)
            case node.Start():
                return await self._run(call, send)
            case node.Exchange():
                return await self._exchange(call, send)
            case node.Keep():
                await self.artifacts.take(call.parcels)
                return replies.Empty()
            case node.Kill():
                self._kill(call)
                return replies.Empty()
            case node.LeaveCores():
                self._executor.leave_cores(call.lanes)
                return replies.Empty()
        raise AssertionError(call)

    async def _watch(self, call: node.Watch) -> node.Changed:
        # The environment of this process, and so of its workers, stays what it is.
        while cpu.limits() == call.limits:
            if changed := await anyio.to_thread.run_sync(first_changed, call.files):
                return node.Changed(f"{changed} changed")
            await anyio.sleep(self._watch_s)
        return node.Changed("the CPUs that it may use changed")

    def _describe(self) -> node.NodeReport:
        found = importlib.metadata.distributions()
        return node.NodeReport(
            os.getpid(),
            sys.executable,
            platform.python_version(),
            importlib.metadata.version("ktuned"),
            len(self._cores),
            tuple(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))),
            {entry.metadata["Name"]: entry.version for entry in found if entry.metadata["Name"]},
        )

    async def _run(self, call: node.Start, send: Send) -> node.Ended:
        """Run a worker until it has ended, or is not wanted any more."""
        role = Role(call.role)
        root = self._layouts.root(call.project, call.root)
        root.mkdir(parents=True, exist_ok=True)
        environment = Environment(sys.executable, str(root), tuple(sorted(call.env.items())), call.project)
        limit = call.limit_bytes or self._granted[role is Role.COMPILE]
        try:
            worker = await self._executor.start(role, environment, limit_bytes=limit, deadline_s=call.deadline_s)
        except WorkerError as error:
            raise CallFailed("worker", error.message, hint=error.hint) from error
        number = next(self._numbers)
        self._seats[number] = _Seat(worker, limit)
        try:
            await send(node.Started(number, worker.pid))
            await worker.gone.wait()
        finally:
            worker.kill()
            del self._seats[number]
        return node.Ended()

    def _kill(self, call: node.Kill) -> None:
        seat = self._seats.get(call.worker)
        if seat is None:
            return
        if call.why:
            seat.worker.stop(call.why)
        else:
            seat.worker.kill()

    async def _exchange(self, call: node.Exchange, send: Send) -> node.Exchanged:
        seat = self._seats.get(call.worker)
        if seat is None:
            raise CallFailed("no_worker", "the worker has ended")
        came = monotonic()
        # First of all, so that they are carried out in the order in which they came.
        async with seat.turn:
            began = monotonic()
            if call.is_ahead and not seat.went_through:
                return node.Exchanged(is_put_off=True)
            seat.went_through = False
            ended = await self._exchange_now(call, seat, send)
            return replace(ended, seconds=monotonic() - began, waited_s=began - came)

    async def _exchange_now(self, call: node.Exchange, seat: _Seat, send: Send) -> node.Exchanged:
        worker = seat.worker
        if call.parcels:
            await self.artifacts.take(call.parcels)
        request = requests.decode(call.message)
        waiting: deque[tuple[Any, Output]] = deque()
        news = asyncio.Event()
        items = 0

        def on_item(value: Any) -> None:
            nonlocal items
            items += 1
            waiting.append((value, worker.output()))
            news.set()

        async def pass_on() -> None:
            while True:
                await news.wait()
                news.clear()
                while waiting:
                    await send(await self._item(*waiting[0]))
                    # Not before: it is still to be sent where this is cancelled.
                    waiting.popleft()

        passing = asyncio.ensure_future(pass_on())
        try:
            ended, reply = await _ended(worker, request, call.deadlines, on_item)
        finally:
            passing.cancel()
        seat.went_through = _went_through(request, items, reply)
        left = [await self._item(*one) for one in waiting]
        if sum(len(item.artifact) for item in left) > parcels.MAX_ALL_IN_FRAME_BYTES:
            for item in left:
                await send(item)
            left = []
        # Results that come together travel as one answer: each costs a call of an actor.
        return replace(ended, last=tuple(left))

    async def _item(self, value: Any, output: Output) -> node.Item:
        artifact = await self.artifacts.packed(value)
        return node.Item(to_message(value), output.stdout, output.stderr, artifact)

    async def watch_memory(self) -> None:
        """Stop workers that outgrow their limits, until cancelled."""
        while True:
            for seat in list(self._seats.values()):
                seat.worker.measure_memory()
                if seat.worker.memory_bytes > seat.limit_bytes:
                    seat.worker.stop(memory.exceeded(seat.worker.memory_bytes, seat.limit_bytes))
            await anyio.sleep(MEMORY_S)


async def _ended(
    worker: Worker, request: requests.Request[Any, Any], deadlines: Mapping[str, float], on_item: Any
) -> tuple[node.Exchanged, Any]:
    """Have a worker carry a request out; return how that ended as data, and its reply if there is one."""
    try:
        reply, output = await worker.exchange(request, deadlines, on_item=on_item)
    except WorkerDied as error:
        failed = _failed(error, error.output, returncode=error.returncode, stopped=error.stopped, fault=error.fault)
        return failed, None
    except DeadlineExpired as error:
        return _failed(error, error.output, expired_s=error.deadline_s), None
    except RequestFailed as error:
        return _failed(error, error.output, failure=error.failure), None
    worker.measure_memory()
    ended = node.Exchanged(
        to_message(reply),
        output.stdout,
        output.stderr,
        phases=worker.timeline(),
        memory_bytes=worker.memory_bytes,
    )
    return ended, reply


def _went_through(request: requests.Request[Any, Any], items: int, reply: Any) -> bool:
    """Return whether trials went through to the last one, after which the next may follow in the same worker."""
    if not isinstance(request, requests.Trial) or not isinstance(reply, replies.Measurement):
        return False
    is_well = reply.outcome not in (None, Outcome.LAUNCH_ERROR) and not reply.is_guilty and not reply.is_unsound
    is_well = is_well and not reply.leftover
    return is_well and items == len(request.units) - 1


def _failed(error: WorkerDied | DeadlineExpired | RequestFailed, output: Output, **fields: Any) -> node.Exchanged:
    return node.Exchanged(None, output.stdout, output.stderr, phase=error.phase, **fields)


async def keep(descriptor: int, home: Path) -> None:
    """Keep workers until the socket closes, or a signal asks for the end."""
    cores = sorted(os.sched_getaffinity(0))
    executor = LocalExecutor(
        scratch=home / "tmp",
        cache=home / "cache",
        artifacts=home / "artifacts",
        captures=home / "captures",
        base_env={name: value for name, value in os.environ.items() if name not in _OTHERS},
        compile_cores=cores[1:],
        adopts=True,
        trust=Trust((str(home),)),
        # Ray kills the children of an actor that it ends.
        private=home,
    )
    async with executor.running(), anyio.create_task_group() as tasks:
        keeper = Keeper(executor, home)
        tasks.start_soon(keeper.watch_memory)
        tasks.start_soon(keeper.artifacts.run)
        # Closed by the transport.
        connection = socket.socket(fileno=descriptor)
        loop = asyncio.get_running_loop()
        _, host = await loop.create_connection(lambda: Host(lambda name: keeper), sock=connection)
        loop.add_signal_handler(signal.SIGTERM, host.connection_lost, None)
        await host.closed
        await host.close()
        tasks.cancel_scope.cancel()


def main(argv: list[str]) -> int:
    """Be a keeper: ``argv`` is the socket's descriptor and a private directory."""
    descriptor, home = int(argv[0]), Path(argv[1])
    os.set_inheritable(descriptor, False)
    os.umask(0o077)
    try:
        anyio.run(keep, descriptor, home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
