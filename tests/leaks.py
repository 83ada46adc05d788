"""What a test left behind: processes, threads, file descriptors, tasks.

Processes are found by a mark in their environment too, not by parentage alone: a daemon that detaches, or a
worker whose daemon was killed, is no one's child any more.
"""

import asyncio
import functools
import gc
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Self
from weakref import WeakKeyDictionary

import psutil

from ktuned.fleet.process import DAEMON_MARK

GRACE_S = 20.0
"""How long what is already ending (a killed process, a joined pool's thread) may take; waited for, never slept."""

HARMLESS_TARGETS = ("/dev/urandom", "/dev/random", "/dev/null", "/dev/nvidia", "/proc/", "/sys/")
"""What libraries open once and keep, by the beginning of the descriptor's target."""

_MARK = f"KTUNED_TEST_RUN={uuid.uuid4().hex}"


def mark_environment() -> None:
    """Put into the environment what reports this run's processes from all others."""
    name, _, value = _MARK.partition("=")
    os.environ[name] = value


@dataclass(frozen=True)
class Snapshot:
    """What this process holds at one moment; ``descriptors`` are (number, target)."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]

    @classmethod
    def take(cls) -> Self:
        """Look now."""
        return cls(_processes(), frozenset(threading.enumerate()), _descriptors())

    def leaked_since(self, grace_s: float = GRACE_S) -> list[str]:
        """Return one line for each thing that is there now, was not there then and does not end within the grace.

        Leaked processes are killed, so that they disturb no other test.
        """
        end = monotonic() + grace_s
        # Looked at anew each time: a worker that was forked just now shows its daemon's mark only after a moment.
        while (new := self._new_processes()) and monotonic() < end:
            psutil.wait_procs(new, timeout=0.05)
        found = [f"process {text}" for text in _kill(new)]
        for thread in set(threading.enumerate()) - self.threads:
            if thread.name in _KEPT_THREADS:
                continue
            thread.join(grace_s)
            if thread.is_alive():
                found.append(f"thread {thread.name}")
        if not _descriptors() - self.descriptors:
            return sorted(found)
        gc.collect()
        end = monotonic() + grace_s
        while monotonic() < end and any(
            target.startswith("anon_inode:") for _, target in _descriptors() - self.descriptors
        ):
            # Watchfiles' own thread closes its inotify instance a moment after it was asked to.
            threading.Event().wait(0.01)
        found += [f"file descriptor {number} -> {target}" for number, target in _descriptors() - self.descriptors]
        return sorted(found)

    def _new_processes(self) -> list[psutil.Process]:
        # What an older process started (a module's daemon replaces a worker) is that one's to end.
        older = {process.pid for process in self.processes}
        new = []
        for process in _processes() - self.processes:
            with suppress(psutil.NoSuchProcess):
                owners = {parent.pid for parent in process.parents()} | _find_daemon(process)
                if process.status() != psutil.STATUS_ZOMBIE and older.isdisjoint(owners):
                    new.append(process)
        return new


_KEPT_THREADS = frozenset({"tqdm_monitor"})
"""Threads that a library keeps until the process ends: one for all progress bars, begun by the first that is slow."""

_kept_processes: set[int] = set()
_kept_descriptors: set[tuple[int, str]] = set()


def keep(pid: int, descriptor: int) -> None:
    """Leave out a process that serves all tests, and the descriptor that it ends with; what it starts is a test's."""
    _kept_processes.add(pid)
    _kept_descriptors.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))


_judged: dict[int, bool] = {}
"""Whether each process of the last look is this run's: reading all environments again takes milliseconds."""


def _processes() -> frozenset[psutil.Process]:
    there = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    for gone in _judged.keys() - there:
        del _judged[gone]
    for pid in there - _judged.keys():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            # It has ended, or is the kernel's or another user's.
            environment = b"none"
        if _MARK.encode() in environment.split(b"\0") or _is_descendant(pid):
            _judged[pid] = True
        elif environment:
            # One that has none yet is about to execute its program.
            _judged[pid] = False
    found = set()
    for pid, is_ours in _judged.items():
        if is_ours and pid != os.getpid() and pid not in _kept_processes:
            with suppress(psutil.NoSuchProcess):
                found.add(psutil.Process(pid))
    return frozenset(found)


def _is_descendant(pid: int) -> bool:
    """Return whether a process is below this one: such a one may have cleared its environment."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            return False
        if pid == os.getpid():
            return True
    return False


def _find_daemon(process: psutil.Process) -> set[int]:
    """Return the id of the daemon whose mark a process has: a forked worker is not its daemon's child."""
    mark = process.environ().get(DAEMON_MARK, "")
    return {int(mark.partition("-")[0])} if mark else set()


def _kill(processes: Sequence[psutil.Process]) -> list[str]:
    """Kill processes, and return a line for each that was there."""
    texts = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            texts.append(f"{process.pid}: {' '.join(process.cmdline())}")
            process.kill()
    psutil.wait_procs(processes, timeout=GRACE_S)
    return texts


def _descriptors() -> frozenset[tuple[int, str]]:
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            if not target.startswith(HARMLESS_TARGETS):
                found.add((int(entry), target))
    return frozenset(found - _kept_descriptors)


_AnyTask = asyncio.Task[Any]
_creators: WeakKeyDictionary[_AnyTask, _AnyTask | None] = WeakKeyDictionary()


def tracking_loop(
    make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> asyncio.AbstractEventLoop:
    """Return an event loop that remembers which task made each task."""
    loop = make_loop()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> _AnyTask:
        task: _AnyTask = asyncio.Task(coroutine, loop=loop, **options)
        _creators[task] = asyncio.current_task(loop)
        return task

    loop.set_task_factory(make)
    return loop


class LeakedTasks(AssertionError):
    """A test ended while tasks that it made still ran."""


def without_leaked_tasks(
    test: Callable[..., Awaitable[None]], grace_s: float = GRACE_S
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Wrap an async test so that it fails when a task that it made outlives it.

    Tasks that fixtures made, before the test or while it ran, are the fixtures' own.
    """

    @functools.wraps(test)
    async def checked(**arguments: Any) -> None:
        current = asyncio.current_task()
        before = asyncio.all_tasks()
        await test(**arguments)
        leaked = {task for task in asyncio.all_tasks() - before if _is_made_by(task, current, before)}
        if leaked:
            _, leaked = await asyncio.wait(leaked, timeout=grace_s)
        for task in leaked:
            task.cancel()
        if leaked:
            raise LeakedTasks("; ".join(sorted(repr(task.get_coro()) for task in leaked)))

    return checked


def _is_made_by(task: _AnyTask, maker: _AnyTask | None, others: set[_AnyTask]) -> bool:
    creator = _creators.get(task)
    while creator is not None and creator is not maker and creator not in others:
        creator = _creators.get(creator)
    return creator is not None and creator is maker
