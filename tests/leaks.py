"""Finds what a test left behind: processes, threads, file descriptors, tasks.

A process belongs to the test run if it descends from this process, or if its environment has the run's mark: a daemon
that detaches, or a worker whose daemon was killed, is not a descendant any more.
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

from ktuned.observer import DAEMON_MARK

GRACE_S = 20.0
"""How long a killed process or a finished pool's thread may take to end."""

HARMLESS_TARGETS = ("/dev/urandom", "/dev/random", "/dev/null", "/dev/nvidia", "/proc/", "/sys/")
"""Beginnings of the targets of descriptors that libraries open once and keep."""

_MARK = f"KTUNED_TEST_RUN={uuid.uuid4().hex}"


def mark_environment() -> None:
    """Put the run's mark into the environment, which all processes of the tests inherit."""
    name, _, value = _MARK.partition("=")
    os.environ[name] = value


@dataclass(frozen=True)
class Snapshot:
    """The processes, threads and descriptors (number, target) at one moment."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]

    @classmethod
    def take(cls) -> Self:
        """Return a snapshot of this moment."""
        return cls(_find_own_processes(), frozenset(threading.enumerate()), _list_descriptors())

    def find_leaks(self, grace_s: float = GRACE_S) -> list[str]:
        """Return one line for each resource that is new since the snapshot and does not end within ``grace_s``.

        Kills leaked processes, so that they disturb no other test.
        """
        end = monotonic() + grace_s
        # The processes are listed again: a worker that was just forked shows its daemon's mark a moment later.
        while (new := self._new_processes()) and monotonic() < end:
            psutil.wait_procs(new, timeout=0.05)
        found = [f"process {text}" for text in _kill_processes(new)]
        for thread in set(threading.enumerate()) - self.threads:
            if thread.name in _KEPT_THREADS:
                continue
            thread.join(grace_s)
            if thread.is_alive():
                found.append(f"thread {thread.name}")
        if not _list_descriptors() - self.descriptors:
            return sorted(found)
        gc.collect()
        end = monotonic() + grace_s
        while monotonic() < end and any(
            target.startswith("anon_inode:") for _, target in _list_descriptors() - self.descriptors
        ):
            # watchfiles' thread closes its inotify instance a moment after it was told to.
            threading.Event().wait(0.01)
        found += [f"file descriptor {number} -> {target}" for number, target in _list_descriptors() - self.descriptors]
        return sorted(found)

    def _new_processes(self) -> list[psutil.Process]:
        # A process that an older process started (a module's daemon replaces a worker) is no leak of this test.
        older = {process.pid for process in self.processes}
        new = []
        for process in _find_own_processes() - self.processes:
            with suppress(psutil.NoSuchProcess):
                owners = {parent.pid for parent in process.parents()} | _find_daemon(process)
                if process.status() != psutil.STATUS_ZOMBIE and older.isdisjoint(owners):
                    new.append(process)
        return new


_KEPT_THREADS = frozenset({"tqdm_monitor"})
"""Threads that a library keeps until the process ends: tqdm has one for all slow progress bars."""

_exempt_processes: set[int] = set()
_exempt_descriptors: set[tuple[int, str]] = set()


def exempt_process(pid: int, descriptor: int) -> None:
    """Ignore a process that serves all tests, and the descriptor that keeps it alive, but not its children."""
    _exempt_processes.add(pid)
    _exempt_descriptors.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))


_are_own_processes: dict[int, bool] = {}
"""Whether each listed process belongs to this run, by process id: reading all environments takes milliseconds."""


def _find_own_processes() -> frozenset[psutil.Process]:
    listed = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    for ended in _are_own_processes.keys() - listed:
        del _are_own_processes[ended]
    for pid in listed - _are_own_processes.keys():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            # The process has ended, or belongs to the kernel or to another user.
            environment = b"none"
        if _MARK.encode() in environment.split(b"\0") or _is_descendant(pid):
            _are_own_processes[pid] = True
        elif environment:
            # A process without an environment is about to execute its program: it is read again next time.
            _are_own_processes[pid] = False
    own = set()
    for pid, is_own in _are_own_processes.items():
        if is_own and pid != os.getpid() and pid not in _exempt_processes:
            with suppress(psutil.NoSuchProcess):
                own.add(psutil.Process(pid))
    return frozenset(own)


def _is_descendant(pid: int) -> bool:
    """Return whether a process descends from this one: a descendant may have cleared its environment."""
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


def _kill_processes(processes: Sequence[psutil.Process]) -> list[str]:
    """Kill processes, and return a line for each that still ran."""
    texts = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            texts.append(f"{process.pid}: {' '.join(process.cmdline())}")
            process.kill()
    psutil.wait_procs(processes, timeout=GRACE_S)
    return texts


def _list_descriptors() -> frozenset[tuple[int, str]]:
    descriptors = set()
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            if not target.startswith(HARMLESS_TARGETS):
                descriptors.add((int(entry), target))
    return frozenset(descriptors - _exempt_descriptors)


_AnyTask = asyncio.Task[Any]
_creators: WeakKeyDictionary[_AnyTask, _AnyTask | None] = WeakKeyDictionary()


def make_tracking_loop(
    make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> asyncio.AbstractEventLoop:
    """Return an event loop that remembers which task made each task."""
    loop = make_loop()

    def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> _AnyTask:
        task: _AnyTask = asyncio.Task(coroutine, loop=loop, **options)
        _creators[task] = asyncio.current_task(loop)
        return task

    loop.set_task_factory(make_task)
    return loop


class LeakedTasks(AssertionError):
    """A test left tasks behind; the message names their coroutines."""


def fail_on_leaked_tasks(
    test: Callable[..., Awaitable[None]], grace_s: float = GRACE_S
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Wrap an async test so that it fails if a task that it made outlives it; tasks of fixtures may stay."""

    @functools.wraps(test)
    async def run_checked(**arguments: Any) -> None:
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

    return run_checked


def _is_made_by(task: _AnyTask, maker: _AnyTask | None, others: set[_AnyTask]) -> bool:
    creator = _creators.get(task)
    while creator is not None and creator is not maker and creator not in others:
        creator = _creators.get(creator)
    return creator is not None and creator is maker
