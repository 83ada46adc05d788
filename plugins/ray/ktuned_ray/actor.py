"""The actor on a node: owns the workers of one lane, of one compile slot, or those that probe the node.

It has a :class:`~ktuned.fleet.LocalExecutor` of its own, and so watches deadlines and memory itself, and removes
everything that a worker leaves behind. Ray's account holds a GPU or CPU for as long as the actor lives.

Its methods run on one event loop, whose thread lives as long as the actor. This matters because Linux ends a worker
with the *thread* that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import ray

from ktuned.backends import cpu
from ktuned.fleet import (
    SET_IN_WORKERS,
    DeadlineExpired,
    Environment,
    LocalExecutor,
    RequestFailed,
    Worker,
    WorkerDied,
    memory,
)
from ktuned.fleet import cluster_messages as messages
from ktuned.ipc import Trust, find_changed_file, frames, locate_artifact, replies, requests
from ktuned.model import Role, WorkerError
from ktuned_ray.files import Tree, lay_out, read_files

WATCH_S: Final = 2.0
"""Interval in seconds at which a toolchain's files are checked; the same as on a daemon's own machine."""

KEPT_COMPILED: Final = 512
"""Most compiled artifacts that stay on a node, in case that another config has the same."""

_OF_RAY = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NVIDIA_VISIBLE_DEVICES", "PYTHONPATH")
"""Variables that Ray sets for actors; workers get the values with which the node was started."""

_OTHER_DAEMONS_VARIABLES = ("KTUNED_HOME", "KTUNED_SOCKET")
_HOME = "ktuned-node-"


class NodeActor:
    """Runs workers on its node; nothing of them outlives it."""

    def __init__(self) -> None:
        self._executor: LocalExecutor
        self._workers: dict[int, tuple[Worker, int]] = {}
        """The workers by number, each with its memory limit."""
        self._killed: set[int] = set()
        self._laid: dict[str, dict[str, str]] = {}
        self._compiled: dict[str, None] = {}
        self._watched: dict[str, object] = {}
        self._laying_out = asyncio.Lock()
        self._ending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, daemon_version: str) -> None:
        """Prepare for workers of a daemon.

        Raises:
            RuntimeError: its ktuned has another version.
        """
        if version("ktuned") != daemon_version:
            raise RuntimeError(f"the node has ktuned {version('ktuned')}, and the daemon {daemon_version}")
        os.umask(0o077)
        self._home, self._lock = make_home()
        cores = sorted(os.sched_getaffinity(0))
        self._limits = memory.choose_default_limits(max(1, len(cores) - 1))
        self._executor = LocalExecutor(
            scratch=self._home / "tmp",
            cache=self._home / "cache",
            artifacts=self._home / "artifacts",
            base_env=build_environment(),
            compile_cores=cores[1:],
            ends_orphans=True,
            trust=Trust((str(self._home),)),
        )
        opened = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._run_workers(opened)))
        await opened.wait()

    async def _run_workers(self, opened: asyncio.Event) -> None:
        raylet = os.getppid()
        async with self._executor.run_workers():
            opened.set()
            while not self._ending.is_set():
                if os.getppid() != raylet:
                    # Ray ends an orphaned actor only if process 1 becomes its parent, and not another subreaper.
                    os._exit(1)
                for worker, limit_bytes in list(self._workers.values()):
                    memory.enforce_limit(worker, limit_bytes)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), memory.CHECK_S)
        shutil.rmtree(self._home, ignore_errors=True)

    async def close(self) -> None:
        """End all workers and remove their files."""
        self._ending.set()
        await asyncio.wait(self._tasks)

    async def start_worker(self, start: messages.Start, directory: str) -> bytes:
        """Start a worker in a project's ``directory``, which is relative to the actor's; return a :class:`Result`."""
        role = Role(start.role)
        root = self._home / directory / start.root[1:]
        root.mkdir(parents=True, exist_ok=True)
        environment = Environment(sys.executable, str(root), tuple(sorted(start.env.items())), start.project)
        limit_bytes = start.limit_bytes or self._limits[role is Role.COMPILE]
        try:
            worker = await self._executor.start_worker(
                role, environment, limit_bytes=limit_bytes, deadline_s=start.deadline_s
            )
        except WorkerError as error:
            return frames.encode(messages.Result(error=error.message, hint=error.hint))
        if start.worker in self._killed:
            worker.kill()
        else:
            self._workers[start.worker] = worker, limit_bytes
        return frames.encode(messages.Result(pid=worker.pid))

    async def kill_worker(self, number: int, why: str) -> None:
        """Kill a worker, also one that is just being started; return when it has ended."""
        self._killed.add(number)
        if number in self._workers:
            worker = self._workers[number][0]
            worker.kill(why)
            await worker.gone.wait()
            self._workers.pop(number, None)

    async def exchange(
        self,
        number: int,
        request: bytes,
        deadlines: Mapping[str, float],
        trees: Mapping[str, Tree],
        holders: Sequence[Any],
        dropped: Sequence[str],
    ) -> tuple[bytes, dict[str, dict[str, bytes]]]:
        """Make a worker carry out a request.

        Args:
            number: The worker.
            request: The request's frame.
            deadlines: Seconds for each phase.
            trees: The files that the request needs and this node lacks, by their directories.
            holders: What holds their contents.
            dropped: Directories of trees that are not needed any more, or damaged.

        Returns:
            An encoded :class:`Result`, and the files of the artifacts that were compiled, by key.

        Raises:
            RuntimeError: the worker has ended.
        """
        await self._lay_out_trees(trees, holders, dropped)
        if number not in self._workers:
            raise RuntimeError("its worker has ended")
        worker = self._workers[number][0]
        (message,) = frames.Decoder().feed(request)
        items: list[Any] = []

        def take_item(value: Any) -> None:
            output = worker.take_output()
            items.append((value, output.stdout, output.stderr))

        result: dict[str, Any]
        try:
            reply, output = await worker.send_request(requests.decode(message), deadlines, on_item=take_item)
        except WorkerDied as error:
            output = error.output
            result = {"returncode": error.returncode, "stopped": error.stopped, "fault": error.fault}
            result["phase"] = error.phase
        except DeadlineExpired as error:
            output, result = error.output, {"expired_s": error.deadline_s, "phase": error.phase}
        except RequestFailed as error:
            output, result = error.output, {"failure": error.failure, "phase": error.phase}
        else:
            worker.measure_memory()
            result = {"value": reply, "phases": worker.read_phase_durations()}
        encoded = messages.Result(
            **result,
            items=tuple(messages.Item(value, *printed) for value, *printed in items),
            stdout=output.stdout,
            stderr=output.stderr,
            memory_bytes=worker.memory_bytes,
        )
        return frames.encode(encoded), await asyncio.to_thread(self._read_compiled, [one[0] for one in items])

    async def _lay_out_trees(self, trees: Mapping[str, Tree], holders: Sequence[Any], dropped: Sequence[str]) -> None:
        if not trees and not dropped:
            return
        contents: dict[str, bytes] = {}
        for holder in holders:
            contents |= holder if isinstance(holder, dict) else await holder

        def lay_out_all() -> None:
            for directory in dropped:
                self._laid.pop(directory, None)
                shutil.rmtree(self._home / directory, ignore_errors=True)
            for directory, tree in trees.items():
                before = self._laid.get(directory, {})
                self._laid[directory] = lay_out(self._home / directory, tree, before, contents)

        async with self._laying_out:
            await asyncio.to_thread(lay_out_all)

    def _read_compiled(self, answers: Sequence[Any]) -> dict[str, dict[str, bytes]]:
        found = {}
        for unit in answers:
            if isinstance(unit, replies.CompiledUnit) and unit.outcome is None:
                key = unit.artifact or unit.key
                found[key] = read_files(locate_artifact(self._home / "artifacts", key))
                self._compiled[key] = None
        while len(self._compiled) > KEPT_COMPILED:
            oldest = next(iter(self._compiled))
            del self._compiled[oldest]
            shutil.rmtree(locate_artifact(self._home / "artifacts", oldest), ignore_errors=True)
        return found

    async def watch_toolchain(self, watch: messages.WatchToolchain) -> str:
        """Wait until one of a toolchain's files has changed, or the set of usable CPUs; return what has.

        Return an empty text if the toolchain is watched anew, after another probe.
        """
        self._watched[watch.key] = watch
        while self._watched[watch.key] is watch:
            if cpu.limits() != watch.limits:
                return "the CPUs that it may use changed"
            if changed := await asyncio.to_thread(find_changed_file, watch.files):
                return f"{changed} changed"
            await asyncio.sleep(WATCH_S)
        return ""


def make_home() -> tuple[Path, int]:
    """Make an actor's private directory and lock it; remove those whose actors were killed."""
    for old in Path(tempfile.gettempdir()).glob(f"{_HOME}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(old, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
            finally:
                os.close(descriptor)
    home = Path(tempfile.mkdtemp(prefix=_HOME))
    lock = os.open(home, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return home, lock


def build_environment() -> dict[str, str]:
    """Return the workers' environment: the actor's, with the node's own values for Ray's, and the lane's GPU."""
    node: dict[str, str] = {}
    with contextlib.suppress(OSError):
        entries = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        node = dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)
    left_out = (*_OF_RAY, *_OTHER_DAEMONS_VARIABLES)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name not in left_out}
    kept |= {name: node[name] for name in _OF_RAY if name in node}
    if gpus := ray.get_gpu_ids():
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    return {**SET_IN_WORKERS, **kept}
