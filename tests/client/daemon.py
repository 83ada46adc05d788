"""A real server in a process of its own, with methods that tests can steer.

It is forked from a process that has imported what it needs, which takes twenty times as long as the rest of its start.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import anyio
import msgpack
import msgspec

from ktuned.lookup.winner_table import WinnerTable
from ktuned.model import KernelName
from ktuned.model.errors import NotFound, UsageError
from ktuned.protocol import Event, Method, StreamPosition, SubscribeParams
from ktuned.serve.events import Events
from ktuned.serve.listener import bind_socket
from ktuned.serve.method import Handler, Peer
from ktuned.serve.server import Server
from ktuned_client.table import make_kernel_key, make_winner_prefix
from tests.serve.noise import Noise

START_S = 60.0
"""How long a server may take to serve, on a busy machine."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


class Started(Event, frozen=True, kw_only=True, tag="job_started"):
    """As a daemon's, with as much of the job as the client reads."""

    job_state: dict[str, Any]


class Done(Started, frozen=True, kw_only=True, tag="job_done"):
    """The end of it."""


class Daemon:
    """Answers lookups, holds requests until they are released, and runs jobs that end when reported."""

    def __init__(self, path: str, protocol: int) -> None:
        self.path = path
        self.protocol = protocol
        self.table = WinnerTable(os.path.dirname(path), epoch=7)
        self.asked = 0
        self.events = Events(epoch=7, ring_events=16)
        self.released = anyio.Event()
        self.jobs: dict[int, dict[str, Any]] = {}
        methods = {
            "hello": self.hello,
            "asked": lambda params, peer: self.asked,
            "connections": self.connections,
            "bump": lambda params, peer: self.table.bump_generation(params["kernel"]),
            "publish_winner": self.publish_winner,
            "lookup": self.lookup,
            "lookup_many": self.lookup_many,
            "hold": self.hold,
            "release": self.release,
            "boom": self.boom,
            "garble": self.garble,
            "tune": self.tune,
            "jobs": self.list_jobs,
            "end": self.end,
            "publish": self.publish,
            "subscribe": self.subscribe,
        }
        handlers = [Handler[Any, Any](Method[Any, Any](name, dict, dict), answer) for name, answer in methods.items()]
        self.server = Server(handlers)

    def hello(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        return {"protocol": self.protocol, "build": "9.9", "table": self.table.path}

    def publish_winner(self, params: dict[str, Any], peer: Peer) -> None:
        """Publish a winner of ``kernel`` for ``problem``, and rules by which clients form keys of its winners."""
        kernel, problem, status = params["kernel"], params["problem"], params.get("status", "fresh")
        rules = [kernel, "/tune.py", "latency", {"": "cpu", "cpu:0": "cpu"}, params.get("keys")]
        rules += [params.get("specialize"), params.get("bucket", {})]
        self.table.publish_entry(kernel, make_kernel_key(kernel, None), msgpack.packb(rules))
        winner = [params.get("config", problem), status, "", 1.5, None, 1.0, True, None, params.get("measured")]
        key = make_winner_prefix(kernel, "cpu", "latency") + msgpack.packb(dict(sorted(problem.items())))
        self.table.publish_entry(kernel, key, msgpack.packb(winner), asks_first=params.get("asks_first", False))

    def lookup_many(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        answers = []
        for entry in params["lookups"]:
            if entry["kernel"] == "omitted":
                continue
            try:
                answers.append(self.lookup(entry, peer))
            except (NotFound, UsageError) as error:
                answers.append({"error": error.to_wire()})
        return {"answers": answers}

    def connections(self, params: dict[str, Any], peer: Peer) -> int:
        return self.server.describe_traffic().connections

    def lookup(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        self.asked += 1
        self.table.confirm_watch()
        if params["kernel"] == "missing":
            raise NotFound("there is no kernel 'missing'", hint="see `ktuned kernels`")
        if params["kernel"] == "misspelt":
            raise UsageError("there is no problem key 'm'", hint="there are: M")
        if params["kernel"] == "garbled":
            return {"config": 1}
        config = None if params["kernel"] == "undeclared" else {"BM": params["problem"].get("M", 0)}
        return {
            "kernel": params["kernel"],
            "problem": params["problem"],
            "device": params.get("device", "cpu"),
            "status": "unknown" if config is None else "fresh",
            "config": config,
            "latency_us": 1.5,
            "artifact": None,
            "age_s": 2.0,
            "decided": 1.0,
            "generation": self.table.generation(params["kernel"]),
            "a_newer_field": True,
        }

    async def hold(self, params: dict[str, Any], peer: Peer) -> Any:
        await self.released.wait()
        return params

    def release(self, params: dict[str, Any], peer: Peer) -> None:
        self.released.set()

    def boom(self, params: dict[str, Any], peer: Peer) -> None:
        raise RuntimeError("boom")

    def garble(self, params: dict[str, Any], peer: Peer) -> None:
        peer.send(b"\xc1")

    def tune(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        seq = self.events.seq
        for number in range(params.get("trials", 1)):
            self._note(number + 1, params["kernel"], "running")
        return {"jobs": list(self.jobs.values()), "errors": [], "epoch": self.events.epoch, "seq": seq}

    def list_jobs(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        return {"jobs": [self.jobs[job] for job in params["ids"]]}

    def end(self, params: dict[str, Any], peer: Peer) -> None:
        self._note(params["job"], "p:k", "done")

    def publish(self, params: dict[str, Any], peer: Peer) -> None:
        for _ in range(params["count"]):
            self.events.publish_event(Noise(job=params.get("job")))

    def subscribe(self, params: dict[str, Any], peer: Peer) -> StreamPosition:
        return self.events.add_subscription(peer, msgspec.convert(params, SubscribeParams))

    def _note(self, job: int, kernel: str, state: str) -> None:
        self.jobs[job] = {"id": job, "kernel": kernel, "state": state}
        event = Done if state == "done" else Started
        self.events.publish_event(event(kernel=KernelName(kernel), job=job, job_state=self.jobs[job]))

    async def run(self, ready: multiprocessing.connection.Connection) -> None:
        with bind_socket(self.path) as listening:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self.server.serve_until_cancelled, listening)
                ready.send_bytes(b"ready")
                with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                    async for _ in signals:
                        tasks.cancel_scope.cancel()


def _serve(path: str, protocol: int, ready: multiprocessing.connection.Connection) -> None:
    anyio.run(Daemon(path, protocol).run, ready)


def start_forking() -> None:
    """Start the process from which servers are forked; it ends with this one."""
    multiprocessing.forkserver.ensure_running()


@contextlib.contextmanager
def running(path: str | Path, protocol: int = 1) -> Iterator[BaseProcess]:
    """Start the server on ``path``, yield its process once it serves, and end it."""
    ready, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_serve, args=(str(path), protocol, theirs))
    with ready:
        with theirs:
            process.start()
        try:
            assert ready.poll(START_S)
            assert ready.recv_bytes() == b"ready"
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGCONT)
            process.join()
            process.close()
