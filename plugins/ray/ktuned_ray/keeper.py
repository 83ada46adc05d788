"""A node's keeper: a process that runs workers there as a daemon does, for one that is on another machine.

``python -m ktuned_ray.keeper SOCKET_FD DIRECTORY``. It has its own executor and warden, watches deadlines and
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
import msgspec

from ktuned.backends import cpu
from ktuned.bridge import Call, CallFailed, Host, Send, Service
from ktuned.fleet import DeadlineExpired, Environment, LocalExecutor, Output, RequestFailed, Worker, WorkerDied, memory
from ktuned.ipc import Trust, find_changed_file, replies, requests, to_message
from ktuned.model import Record, Role, WorkerError
from ktuned_ray import node_calls, parcels
from ktuned_ray.node_artifacts import NodeArtifacts
from ktuned_ray.node_layout import NodeLayouts

MEMORY_S: Final = 0.2
"""Interval between two looks at workers' memory, as in a daemon."""

WATCH_S: Final = 2.0
"""Interval between two looks at a toolchain's files, as at those in use on a daemon's own machine."""

_OTHERS = ("KTUNED_HOME", "KTUNED_SOCKET")


class _Seat(msgspec.Struct, frozen=True, eq=False):
    """A worker with its limit of memory."""

    worker: Worker
    limit_bytes: int


class Keeper(Service):
    """Carries out a daemon's calls on this node."""

    calls: ClassVar = (
        node_calls.Describe,
        node_calls.LayOut,
        node_calls.Watch,
        node_calls.Start,
        node_calls.Exchange,
        node_calls.Kill,
        node_calls.LeaveCores,
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
            case node_calls.Describe():
                return await anyio.to_thread.run_sync(self._describe)
            case node_calls.LayOut():
                async with self._laying_out:
                    return node_calls.Layout(await anyio.to_thread.run_sync(self._layouts.lay_out, call))
            case node_calls.Watch():
                return await self._watch(call)
            case node_calls.Start():
                return await self._run(call, send)
            case node_calls.Exchange():
                return await self._exchange(call, send)
            case node_calls.Kill():
                self._kill(call)
                return replies.Empty()
            case node_calls.LeaveCores():
                self._executor.leave_cores(call.lanes)
                return replies.Empty()
        raise AssertionError(call)

    async def _watch(self, call: node_calls.Watch) -> node_calls.Changed:
        # The environment of this process, and so of its workers, stays what it is.
        while cpu.limits() == call.limits:
            if changed := await anyio.to_thread.run_sync(find_changed_file, call.files):
                return node_calls.Changed(f"{changed} changed")
            await anyio.sleep(self._watch_s)
        return node_calls.Changed("the CPUs that it may use changed")

    def _describe(self) -> node_calls.NodeReport:
        found = importlib.metadata.distributions()
        return node_calls.NodeReport(
            os.getpid(),
            sys.executable,
            platform.python_version(),
            importlib.metadata.version("ktuned"),
            len(self._cores),
            tuple(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))),
            {entry.metadata["Name"]: entry.version for entry in found if entry.metadata["Name"]},
        )

    async def _run(self, call: node_calls.Start, send: Send) -> node_calls.Ended:
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
            await send(node_calls.Started(number, worker.pid))
            await worker.gone.wait()
        finally:
            worker.kill()
            del self._seats[number]
        return node_calls.Ended()

    def _kill(self, call: node_calls.Kill) -> None:
        seat = self._seats.get(call.worker)
        if seat is None:
            return
        if call.why:
            seat.worker.stop(call.why)
        else:
            seat.worker.kill()

    async def _exchange(self, call: node_calls.Exchange, send: Send) -> node_calls.Exchanged:
        seat = self._seats.get(call.worker)
        if seat is None:
            raise CallFailed("no_worker", "the worker has ended")
        began = monotonic()
        worker = seat.worker
        if call.parcels:
            await self.artifacts.take(call.parcels)
        request = requests.decode(call.message)
        waiting: deque[tuple[Any, Output]] = deque()
        news = asyncio.Event()

        def on_item(value: Any) -> None:
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
            ended = await _ended(worker, request, call.deadlines, on_item)
        finally:
            passing.cancel()
        left = [await self._item(*one) for one in waiting]
        if sum(len(item.artifact) for item in left) > parcels.MAX_ALL_IN_FRAME_BYTES:
            for item in left:
                await send(item)
            left = []
        # Results that come together travel as one answer: each costs a call of an actor.
        return replace(ended, last=tuple(left), seconds=monotonic() - began)

    async def _item(self, value: Any, output: Output) -> node_calls.Item:
        artifact = await self.artifacts.packed(value)
        return node_calls.Item(to_message(value), output.stdout, output.stderr, artifact)

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
) -> node_calls.Exchanged:
    """Have a worker carry a request out; return how that ended as data."""
    try:
        reply, output = await worker.exchange(request, deadlines, on_item=on_item)
    except WorkerDied as error:
        return _failed(error, error.output, returncode=error.returncode, stopped=error.stopped, fault=error.fault)
    except DeadlineExpired as error:
        return _failed(error, error.output, expired_s=error.deadline_s)
    except RequestFailed as error:
        return _failed(error, error.output, failure=error.failure)
    worker.measure_memory()
    return node_calls.Exchanged(
        to_message(reply),
        output.stdout,
        output.stderr,
        phases=worker.timeline(),
        memory_bytes=worker.memory_bytes,
    )


def _failed(error: WorkerDied | DeadlineExpired | RequestFailed, output: Output, **fields: Any) -> node_calls.Exchanged:
    return node_calls.Exchanged(None, output.stdout, output.stderr, phase=error.phase, **fields)


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
