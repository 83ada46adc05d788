"""The process that joins a Ray cluster for a daemon.

``python -m ktuned_ray FD ADDRESS RUNTIME_ENV ARTIFACTS`` reads commands from the socket ``FD`` and writes
reports to it (:mod:`ktuned.fleet.cluster_messages`). When the socket closes, it gives everything back and ends. When
the cluster is lost, it ends with the reason as the last line of stderr.

Ray decides where there is room. Each lane and each compile slot is an actor with one GPU or one CPU, bound to its node,
and is created by its first worker; probes have an actor that takes neither. An actor that has nothing to do for
:data:`IDLE_S` ends, with its idle workers. An actor that is lost takes its workers with it, and nothing else.

Some functions of Ray block, and hang when the cluster's head is gone. They run in threads, each with a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import platform
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterator
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec
import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ktuned.fleet import cluster_messages as messages
from ktuned.ipc import frames, locate_artifact, manifest
from ktuned_ray.actor import NodeActor
from ktuned_ray.failures import describe_error
from ktuned_ray.files import Files, Tree

T = TypeVar("T")

JOIN_S: Final = 45.0
"""Deadline for joining: the client server starts a process for each client, which takes up to half a minute."""

ANSWER_S: Final = 10.0
"""Deadline for the head's answers."""

NODES_S: Final = 1.0
"""Interval in seconds at which the nodes are listed."""

MAX_NODES: Final = 256
"""Most nodes that are used."""

START_S: Final = 100.0
"""Deadline for the first actor on a node: Ray may have to install the runtime environment there."""

WAIT_S: Final = 20.0
"""How long a lane or slot waits for a GPU or CPU that another job of the cluster has, in seconds."""

IDLE_S: Final = 30.0
"""How long an actor without work keeps its GPU or CPU, in seconds: the next job often follows at once."""

END_S: Final = 3.0
"""Time for an actor to remove its files, and for the cluster to be left."""

KEPT_BYTES: Final = 4 << 30
"""Most bytes of artifacts at one actor: enough for a large job, and little for the disk of a machine with GPUs."""


class Lane(msgspec.Struct, eq=False):
    """An actor, and what is known of it."""

    node: str
    name: str
    actor: Any = None
    opening: asyncio.Task[None] | None = None
    is_open: bool = False
    uses: int = 0
    idle_since: float = 0.0
    workers: set[int] = msgspec.field(default_factory=set)
    laid: dict[str, Tree] = msgspec.field(default_factory=dict)
    """The trees that it has, by directory, those used last at the end."""


class WorkerLost(Exception):
    """A worker's actor is lost, or cannot be had."""


class Member:
    """A member of the cluster, for one daemon."""

    def __init__(self, writer: asyncio.StreamWriter, artifacts: Path) -> None:
        self._writer = writer
        self._files = Files(artifacts)
        self._kind = ray.remote(max_restarts=0, max_task_retries=0)(NodeActor)
        self._lanes: list[Lane] = []
        self._workers: dict[int, tuple[Lane, messages.Start]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _send(self, report: messages.Report) -> None:
        self._writer.write(frames.encode(report))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run_commands(self, reader: asyncio.StreamReader) -> None:
        """Carry out commands until the daemon closes the socket."""
        while True:
            try:
                command = await messages.read_message(reader, messages.COMMANDS)
            except (asyncio.IncompleteReadError, OSError):
                return
            match command:
                case messages.Start():
                    self._start_task(self._answer(command.worker, self._start_worker(command)))
                case messages.Exchange():
                    self._start_task(self._answer(command.worker, self._exchange(command)))
                case messages.Kill():
                    self._start_task(self._kill_worker(command))
                case messages.WatchToolchain():
                    self._start_task(self._watch_toolchain(command))

    async def report_nodes(self) -> None:
        """Report the nodes each second, and end idle actors; until the cluster is lost.

        Raises:
            WorkerLost: the head does not answer.
        """
        ray_version = f"Ray {ray.__version__} and Python {platform.python_version()}"
        while True:
            self._send(
                messages.Nodes(ray_version, await run_blocking(lambda: tuple(list_nodes()), ANSWER_S, "did not answer"))
            )
            for lane in list(self._lanes):
                if not lane.uses and lane.idle_since + IDLE_S < monotonic():
                    self._start_task(self._end_lane(lane, "its lane had nothing to do"))
            await asyncio.sleep(NODES_S)

    async def _answer(self, worker: int, work: Coroutine[Any, Any, messages.Answer]) -> None:
        try:
            answer = await work
        except (WorkerLost, OSError, manifest.DamagedArtifact) as error:
            answer = messages.Answer(worker, lost=str(error))
        self._send(answer)
        if answer.lost:
            self._forget_worker(worker, answer.lost)

    def _forget_worker(self, worker: int, reason: str) -> None:
        lane, _ = self._workers.pop(worker, (None, None))
        if lane is not None:
            lane.workers.discard(worker)
        self._send(messages.Gone(worker, reason))

    def _find_lane(self, node: str, name: str) -> Lane:
        """Return the lane of a device; for a compile, a slot that has nothing to do; or a new one."""
        for lane in self._lanes:
            if (lane.node, lane.name) == (node, name) and not (name == "compile" and lane.uses):
                return lane
        lane = Lane(node, name)
        self._lanes.append(lane)
        return lane

    @contextlib.asynccontextmanager
    async def _use_lane(self, lane: Lane) -> Any:
        """Keep a lane's actor for the block.

        Raises:
            WorkerLost: the actor is lost, or cannot be had.
        """
        lane.uses += 1
        try:
            if lane.opening is None:
                lane.opening = asyncio.create_task(self._open_lane(lane))
            await asyncio.shield(lane.opening)
            yield lane.actor
        except (ray.exceptions.RayError, RuntimeError) as error:
            # An error in one of the actor's calls says nothing about the actor, unless it cannot even be opened.
            if not lane.is_open or not isinstance(error, ray.exceptions.RayTaskError):
                await self._end_lane(lane, describe_error(error))
            self._files.forget_objects()
            raise WorkerLost(describe_error(error)) from error
        except WorkerLost as error:
            await self._end_lane(lane, str(error))
            raise
        finally:
            lane.uses -= 1
            lane.idle_since = monotonic()

    async def _open_lane(self, lane: Lane) -> None:
        is_gpu = lane.name.startswith("cuda")
        create = self._kind.options(
            num_gpus=int(is_gpu),
            num_cpus=int(bool(lane.name) and not is_gpu),
            scheduling_strategy=NodeAffinitySchedulingStrategy(lane.node, soft=False),
            max_concurrency=100,
        ).remote
        lane.actor = await run_blocking(create, ANSWER_S, "started no actor")
        try:
            await asyncio.wait_for(_await(lane.actor.open.remote(version("ktuned"))), WAIT_S if lane.name else START_S)
        except TimeoutError:
            what = "GPU" if is_gpu else "CPU"
            reason = (
                f"other jobs of the cluster have it: no {what} came free" if lane.name else "its actor did not start"
            )
            raise WorkerLost(reason) from None
        lane.is_open = True

    async def _end_lane(self, lane: Lane, reason: str) -> None:
        if lane not in self._lanes:
            return
        self._lanes.remove(lane)
        for worker in list(lane.workers):
            self._forget_worker(worker, reason)
        if lane.actor is None:
            return
        with contextlib.suppress(Exception):
            # One that waits for a GPU, or is dead, has no files to remove.
            if lane.is_open:
                await asyncio.wait_for(_await(lane.actor.close.remote()), END_S)
        with contextlib.suppress(Exception):
            await run_blocking(functools.partial(ray.kill, lane.actor), END_S, "killed no actor")

    async def end_all_lanes(self) -> None:
        """Give all GPUs and CPUs back."""
        await asyncio.gather(*(self._end_lane(lane, "the daemon has left the cluster") for lane in list(self._lanes)))

    async def _start_worker(self, start: messages.Start) -> messages.Answer:
        lane = self._find_lane(start.node, start.lane)
        self._workers[start.worker] = lane, start
        lane.workers.add(start.worker)
        async with self._use_lane(lane) as actor:
            result = await actor.start_worker.remote(start, make_directory_name(start))
        return messages.Answer(start.worker, result)

    async def _exchange(self, command: messages.Exchange) -> messages.Answer:
        if command.worker not in self._workers:
            raise WorkerLost("its worker has ended")
        lane, start = self._workers[command.worker]
        async with self._use_lane(lane) as actor:
            trees, holders, missing = await asyncio.to_thread(self._prepare_trees, lane, start, command)
            dropped = [str(locate_artifact(Path("artifacts"), key)) for key in command.damaged]
            dropped += self._list_surplus(lane)
            for directory in dropped:
                lane.laid.pop(directory, None)
            result, compiled = await actor.exchange.remote(
                command.worker, command.request, command.deadlines, trees, holders, dropped
            )
            lane.laid |= {place: tree for place, tree in trees.items() if missing.isdisjoint(tree.files.values())}
        sealed = {}
        for key, files in compiled.items():
            sealed[key] = await asyncio.to_thread(self._files.seal_artifact, key, files)
        return messages.Answer(command.worker, result, sealed)

    def _prepare_trees(
        self, lane: Lane, start: messages.Start, command: messages.Exchange
    ) -> tuple[dict[str, Tree], list[Any], set[str]]:
        """Return the trees that an actor lacks for a request, what holds their contents, and which are missing."""
        project = make_directory_name(start), start.root
        found = self._files.list_trees(project, command.digests, command.artifacts)
        damaged = {str(locate_artifact(Path("artifacts"), key)) for key in command.damaged}
        trees, changes = {}, []
        for directory, tree in found.items():
            known = None if directory in damaged else lane.laid.get(directory)
            if known is None or known.files != tree.files:
                trees[directory] = tree
                before = {} if known is None else known.files
                changes += [
                    (f"{tree.top}/{name}", digest) for name, digest in tree.files.items() if before.get(name) != digest
                ]
            elif directory in lane.laid:
                lane.laid[directory] = lane.laid.pop(directory)
        return trees, *self._files.provide_contents(changes)

    def _list_surplus(self, lane: Lane) -> list[str]:
        """Return the directories of an actor's oldest artifacts, so that the others are within the limit."""
        artifacts = {place: tree.bytes for place, tree in lane.laid.items() if place.startswith("artifacts/")}
        surplus = []
        total = sum(artifacts.values())
        for place, size in artifacts.items():
            if total <= KEPT_BYTES:
                break
            total -= size
            surplus.append(place)
        return surplus

    async def _kill_worker(self, kill: messages.Kill) -> None:
        lane, _ = self._workers.get(kill.worker, (None, None))
        if lane is not None and lane.actor is not None:
            with contextlib.suppress(ray.exceptions.RayError, RuntimeError):
                await lane.actor.kill_worker.remote(kill.worker, kill.why)
        self._forget_worker(kill.worker, kill.why or "it was killed")

    async def _watch_toolchain(self, command: messages.WatchToolchain) -> None:
        try:
            async with self._use_lane(self._find_lane(command.node, "")) as actor:
                reason = await actor.watch_toolchain.remote(command)
        except WorkerLost as error:
            reason = str(error)
        if reason:
            self._send(messages.ToolchainChanged(command.node, reason))


async def _await(ref: Any) -> Any:
    return await ref


async def run_blocking(work: Callable[[], T], deadline_s: float, failure: str) -> T:
    """Run what blocks in a thread; ``failure`` says what the cluster did not do, for the error.

    Raises:
        WorkerLost: it raised an error, or took too long.
    """
    try:
        return await asyncio.wait_for(asyncio.to_thread(work), deadline_s)
    except TimeoutError:
        raise WorkerLost(f"the cluster {failure} within {deadline_s:.0f} s") from None
    except Exception as error:
        raise WorkerLost(f"the cluster {failure}: {describe_error(error)}") from error


def make_directory_name(start: messages.Start) -> str:
    """Return the directory that stands for ``/`` in a project's paths on a node."""
    return "projects/" + hashlib.sha256(f"{start.project}\0{start.root}".encode()).hexdigest()[:16]


def list_nodes() -> Iterator[messages.Node]:
    """Yield the nodes that are alive and have something to give, each with a name of its own."""
    names: set[str] = set()
    alive = [entry for entry in ray.nodes() if entry["Alive"]]
    for entry in sorted(alive, key=lambda entry: str(entry["NodeID"]))[:MAX_NODES]:
        host = str(entry.get("NodeManagerHostname") or entry["NodeManagerAddress"])
        given = str(entry.get("NodeName") or "")
        # Ray names a node without a given name by its address; the host's name is more helpful.
        name = host if given in ("", entry["NodeManagerAddress"]) else given
        name = name.replace("/", "-").replace(":", "-")
        if name in names:
            name = f"{name}-{entry['NodeID'][:6]}"
        names.add(name)
        cpus, gpus = (int(entry["Resources"].get(kind, 0)) for kind in ("CPU", "GPU"))
        if cpus or gpus:
            yield messages.Node(str(entry["NodeID"]), name, cpus, gpus)


async def take_part(descriptor: int, address: str, runtime_env: str, artifacts: str) -> str:
    """Take part in the cluster until the socket closes, or the cluster is lost; return why."""
    # The daemon ends it by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    join = functools.partial(
        ray.init,
        address=address,
        namespace=f"ktuned-{uuid.uuid4().hex[:8]}",
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env=json.loads(runtime_env or "{}") or None,
    )
    try:
        await run_blocking(join, JOIN_S, "did not let the daemon join")
        member = Member(writer, Path(artifacts))
        work = [asyncio.create_task(member.run_commands(reader)), asyncio.create_task(member.report_nodes())]
        done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        if work[0] in done:
            await member.end_all_lanes()
        for task in done:
            task.result()
    except WorkerLost as error:
        return str(error)
    with contextlib.suppress(WorkerLost):
        await run_blocking(ray.shutdown, END_S, "was not left")
    return ""


def main() -> None:
    """Take part in the cluster that the arguments name."""
    descriptor, *others = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)
    reason = asyncio.run(take_part(int(descriptor), *others))
    sys.stderr.write(f"{reason}\n" if reason else "")
    sys.stderr.flush()
    # Threads may hang in calls of a cluster that is lost.
    os._exit(1 if reason else 0)


if __name__ == "__main__":
    main()
