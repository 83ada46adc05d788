"""A node's keeper: a process that runs workers there as a daemon does, for a daemon on another machine.

``python -m ktuned_ray.keeper SOCKET_FD DIRECTORY``. It has an executor and a warden of its own, and watches deadlines
and memory itself, so that the network does not affect them. When its socket closes, it ends with everything that it
started. ``DIRECTORY`` is private, and is removed at the end.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import math
import os
import platform
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Final

import anyio
import anyio.to_thread
import msgspec
from msgspec.structs import replace

from ktuned.backends import cpu
from ktuned.bridge import Call, CallFailed, CallServer, Send, Service
from ktuned.fleet import DeadlineExpired, Environment, LocalExecutor, Output, RequestFailed, Worker, WorkerDied, memory
from ktuned.ipc import Trust, find_changed_file, replies, requests
from ktuned.model import Role, WorkerError
from ktuned_ray import node_calls
from ktuned_ray.node_artifacts import NodeArtifacts
from ktuned_ray.node_layout import NodeLayouts

WATCH_S: Final = 2.0
"""Interval in seconds at which a toolchain's files are checked; the same as on a daemon's own machine."""

_OTHER_DAEMONS_VARIABLES = ("KTUNED_HOME", "KTUNED_SOCKET")


class _LimitedWorker(msgspec.Struct, frozen=True, eq=False):
    """A worker and its memory limit."""

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
    )

    def __init__(self, executor: LocalExecutor, home: Path, *, watch_s: float = WATCH_S) -> None:
        self._watch_s = watch_s
        self.artifacts = NodeArtifacts(home)
        self._executor = executor
        self._layouts = NodeLayouts(home)
        self._laying_out = anyio.Lock()
        self._workers: dict[int, _LimitedWorker] = {}
        self._numbers = itertools.count(1)
        self._cores = sorted(os.sched_getaffinity(0))
        self._default_limits = memory.choose_default_limits(max(1, len(self._cores) - 1))

    async def carry_out(self, call: Call[Any, Any], send: Send) -> msgspec.Struct:
        """Carry one call out."""
        match call:
            case node_calls.Describe():
                return await anyio.to_thread.run_sync(self._describe_node)
            case node_calls.LayOut():
                async with self._laying_out:
                    return node_calls.Layout(await anyio.to_thread.run_sync(self._layouts.lay_out, call))
            case node_calls.Watch():
                return await self._watch_toolchain(call)
            case node_calls.Start():
                return await self._run_worker(call, send)
            case node_calls.Exchange():
                return await self._pass_request(call, send)
            case node_calls.Kill():
                self._kill_worker(call)
                return replies.Empty()
        raise AssertionError(call)

    async def _watch_toolchain(self, call: node_calls.Watch) -> node_calls.Changed:
        # Only files and CPUs can change; the environment of this process, and thus of its workers, cannot.
        while cpu.limits() == call.limits:
            if changed := await anyio.to_thread.run_sync(find_changed_file, call.files):
                return node_calls.Changed(f"{changed} changed")
            await anyio.sleep(self._watch_s)
        return node_calls.Changed("the CPUs that it may use changed")

    def _describe_node(self) -> node_calls.NodeReport:
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

    async def _run_worker(self, call: node_calls.Start, send: Send) -> node_calls.Ended:
        """Run a worker until it has ended, or the call is cancelled."""
        role = Role(call.role)
        root = self._layouts.root_path(call.project, call.root)
        root.mkdir(parents=True, exist_ok=True)
        environment = Environment(sys.executable, str(root), tuple(sorted(call.env.items())), call.project)
        limit = call.limit_bytes or self._default_limits[role is Role.COMPILE]
        try:
            worker = await self._executor.start_worker(role, environment, limit_bytes=limit, deadline_s=call.deadline_s)
        except WorkerError as error:
            raise CallFailed("worker", error.message, hint=error.hint) from error
        number = next(self._numbers)
        self._workers[number] = _LimitedWorker(worker, limit)
        try:
            await send(node_calls.Started(number, worker.pid))
            await worker.gone.wait()
        finally:
            worker.kill()
            del self._workers[number]
        return node_calls.Ended()

    def _kill_worker(self, call: node_calls.Kill) -> None:
        limited = self._workers.get(call.worker)
        if limited is not None:
            limited.worker.kill(call.why)

    async def _pass_request(self, call: node_calls.Exchange, send: Send) -> node_calls.Exchanged:
        limited = self._workers.get(call.worker)
        if limited is None:
            raise CallFailed("no_worker", "the worker has ended")
        began = monotonic()
        worker = limited.worker
        if call.parcels:
            await self.artifacts.take_parcels(call.parcels)
        request = requests.decode(call.message)
        # The buffer needs no limit, because at most the items of one batch wait in it.
        arriving, waiting = anyio.create_memory_object_stream[tuple[Any, Output]](math.inf)

        async def pass_items_on() -> None:
            async with waiting:
                async for value, output in waiting:
                    artifact = await self.artifacts.pack_artifact(value)
                    await send(node_calls.Item(value, output.stdout, output.stderr, artifact))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_items_on)
            with arriving:
                ended = await _run_request(
                    worker,
                    request,
                    call.deadlines,
                    lambda value: arriving.send_nowait((value, worker.take_output())),
                )
        return replace(ended, seconds=monotonic() - began)

    async def watch_memory(self) -> None:
        """Kill workers that outgrow their limits, until cancelled."""
        while True:
            for limited in list(self._workers.values()):
                memory.enforce_limit(limited.worker, limited.limit_bytes)
            await anyio.sleep(memory.CHECK_S)


async def _run_request(
    worker: Worker, request: requests.Request[Any, Any], deadlines: Mapping[str, float], on_item: Any
) -> node_calls.Exchanged:
    """Make a worker carry out a request; return its reply or its failure as data."""
    try:
        reply, output = await worker.send_request(request, deadlines, on_item=on_item)
    except WorkerDied as error:
        return _describe_failure(
            error, error.output, returncode=error.returncode, stopped=error.stopped, fault=error.fault
        )
    except DeadlineExpired as error:
        return _describe_failure(error, error.output, expired_s=error.deadline_s)
    except RequestFailed as error:
        return _describe_failure(error, error.output, failure=error.failure)
    worker.measure_memory()
    return node_calls.Exchanged(
        reply,
        output.stdout,
        output.stderr,
        phases=worker.read_phase_durations(),
        memory_bytes=worker.memory_bytes,
    )


def _describe_failure(
    error: WorkerDied | DeadlineExpired | RequestFailed, output: Output, **fields: Any
) -> node_calls.Exchanged:
    return node_calls.Exchanged(None, output.stdout, output.stderr, phase=error.phase, **fields)


async def keep_workers(descriptor: int, home: Path) -> None:
    """Keep workers until the socket closes, or a signal asks for the end."""
    cores = sorted(os.sched_getaffinity(0))
    executor = LocalExecutor(
        scratch=home / "tmp",
        cache=home / "cache",
        artifacts=home / "artifacts",
        base_env={name: value for name, value in os.environ.items() if name not in _OTHER_DAEMONS_VARIABLES},
        compile_cores=cores[1:],
        ends_orphans=True,
        trust=Trust((str(home),)),
        # Ray kills the children of an actor that it ends, so the warden removes the whole directory.
        private_directory=home,
    )
    async with executor.run_workers(), anyio.create_task_group() as tasks:
        keeper = Keeper(executor, home)
        tasks.start_soon(keeper.watch_memory)
        tasks.start_soon(keeper.artifacts.run_until_cancelled)
        # The transport closes it.
        connection = socket.socket(fileno=descriptor)
        loop = asyncio.get_running_loop()
        _, server = await loop.create_connection(lambda: CallServer(lambda name: keeper), sock=connection)
        loop.add_signal_handler(signal.SIGTERM, server.connection_lost, None)
        await server.closed
        await server.close()
        tasks.cancel_scope.cancel()


def main(argv: list[str]) -> int:
    """Be a keeper: ``argv`` is the socket's descriptor and a private directory."""
    descriptor, home = int(argv[0]), Path(argv[1])
    os.set_inheritable(descriptor, False)
    os.umask(0o077)
    try:
        anyio.run(keep_workers, descriptor, home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
