"""A real server in a process of its own, whose methods tests control.

The process is forked from one that has imported the modules, because that takes 95 % of a start.
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
from tests.serve.noise import NoiseEvent

START_S = 60.0
"""How long a server may take to serve, on a busy machine."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


class JobStarted(Event, frozen=True, kw_only=True, tag="job_started"):
    """The daemon's event, with the fields of the job that the client reads."""

    job_state: dict[str, Any]


class JobDone(JobStarted, frozen=True, kw_only=True, tag="job_done"):
    """The event of a job's end."""


class StubDaemon:
    """Answers lookups, holds requests until they are released, and ends jobs when a test says so."""

    def __init__(self, path: str, protocol: int) -> None:
        self.path = path
        self.protocol = protocol
        self.table = WinnerTable(os.path.dirname(path), epoch=7)
        self.lookup_count = 0
        self.events = Events(epoch=7, ring_events=16)
        self.released = anyio.Event()
        self.jobs: dict[int, dict[str, Any]] = {}
        methods = {
            "hello": self.answer_hello,
            "count_lookups": lambda params, peer: self.lookup_count,
            "connections": self.count_connections,
            "bump": lambda params, peer: self.table.bump_generation(params["kernel"]),
            "publish_winner": self.publish_winner,
            "lookup": self.lookup,
            "lookup_many": self.lookup_many,
            "hold": self.hold_request,
            "release": self.release_requests,
            "boom": self.raise_error,
            "garble": self.send_garbage,
            "tune": self.start_jobs,
            "jobs": self.list_jobs,
            "end": self.end_job,
            "publish": self.publish_noise,
            "subscribe": self.add_subscription,
        }
        handlers = [Handler[Any, Any](Method[Any, Any](name, dict, dict), answer) for name, answer in methods.items()]
        self.server = Server(handlers)

    def answer_hello(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        return {"protocol": self.protocol, "build": "9.9", "table": self.table.path}

    def publish_winner(self, params: dict[str, Any], peer: Peer) -> None:
        """Publish a winner of ``kernel`` for ``problem``, and the rules by which clients form keys of its winners."""
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

    def count_connections(self, params: dict[str, Any], peer: Peer) -> int:
        return self.server.describe_traffic().connections

    def lookup(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        self.lookup_count += 1
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

    async def hold_request(self, params: dict[str, Any], peer: Peer) -> Any:
        await self.released.wait()
        return params

    def release_requests(self, params: dict[str, Any], peer: Peer) -> None:
        self.released.set()

    def raise_error(self, params: dict[str, Any], peer: Peer) -> None:
        raise RuntimeError("boom")

    def send_garbage(self, params: dict[str, Any], peer: Peer) -> None:
        peer.send(b"\xc1")

    def start_jobs(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        seq = self.events.seq
        for number in range(params.get("trials", 1)):
            self._publish_state(number + 1, params["kernel"], "running")
        return {"jobs": list(self.jobs.values()), "errors": [], "epoch": self.events.epoch, "seq": seq}

    def list_jobs(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        return {"jobs": [self.jobs[job] for job in params["ids"]]}

    def end_job(self, params: dict[str, Any], peer: Peer) -> None:
        self._publish_state(params["job"], "p:k", "done")

    def publish_noise(self, params: dict[str, Any], peer: Peer) -> None:
        for _ in range(params["count"]):
            self.events.publish_event(NoiseEvent(job=params.get("job")))

    def add_subscription(self, params: dict[str, Any], peer: Peer) -> StreamPosition:
        return self.events.add_subscription(peer, msgspec.convert(params, SubscribeParams))

    def _publish_state(self, job: int, kernel: str, state: str) -> None:
        self.jobs[job] = {"id": job, "kernel": kernel, "state": state}
        event = JobDone if state == "done" else JobStarted
        self.events.publish_event(event(kernel=KernelName(kernel), job=job, job_state=self.jobs[job]))

    async def serve_until_terminated(self, ready: multiprocessing.connection.Connection) -> None:
        with bind_socket(self.path) as listening:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self.server.serve_until_cancelled, listening)
                ready.send_bytes(b"ready")
                with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                    async for _ in signals:
                        tasks.cancel_scope.cancel()


def _run_daemon(path: str, protocol: int, ready: multiprocessing.connection.Connection) -> None:
    anyio.run(StubDaemon(path, protocol).serve_until_terminated, ready)


def start_forkserver() -> None:
    """Start the process that forks servers; it ends with this process."""
    multiprocessing.forkserver.ensure_running()


@contextlib.contextmanager
def run_server(path: str | Path, protocol: int = 1) -> Iterator[BaseProcess]:
    """Start the server on ``path``, yield its process once it serves, and end it."""
    reader, writer = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run_daemon, args=(str(path), protocol, writer))
    with reader:
        with writer:
            process.start()
        try:
            assert reader.poll(START_S)
            assert reader.recv_bytes() == b"ready"
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGCONT)
            process.join()
            process.close()
