"""What a config may leave at work in its process: threads, processes, timers, signal handlers.

Each would go on while later configs are measured. A process is ended with its config. The others cannot be undone for
certain, so whoever finds one takes a fresh worker. A config that leaves one whenever it is timed is not measured,
because its launches may return before their work is done.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Set
from contextlib import suppress

from ktuned.dependencies import ACCESSES
from ktuned.worker.fault_reporter import FATAL_SIGNALS
from ktuned.worker.process_settings import TASKS, list_running_interval_timers, list_threads

_libc = ctypes.CDLL(None, use_errno=True)

_SIGACTION_WORDS = 32
"""More than any ``struct sigaction``, which begins with the handler's address (sigaction(2))."""

_SIGNALS = sorted(signal.valid_signals() - {*FATAL_SIGNALS})

_DRIVER_THREADS = ("cuda", "nv", "pt_")
"""Prefixes of the names of threads that a GPU's driver, or torch on its behalf, starts on demand in every worker."""

_SEARCHES = 20
"""How often processes are searched for, because those that end may leave children of their own."""


def list_children() -> frozenset[int]:
    """Return this process's children that run, adopted ones included."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            found.update(map(int, _read(f"/proc/self/task/{thread}/children").split()))
    return frozenset(filter(_runs, found))


def end_processes(but: Set[object]) -> bool:
    """Kill and reap all children except some, and those that they leave; return whether there were any."""
    has_found = False
    for _ in range(_SEARCHES):
        children = list_children() - but
        if not children:
            break
        has_found = True
        for pid in children:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with suppress(OSError):
                os.waitpid(pid, 0)
    return has_found


def list_timers() -> frozenset[object]:
    """Return the running interval timers of this process, and its POSIX timers' ids if Linux lists them."""
    found: set[object] = {*list_running_interval_timers()}
    with suppress(OSError):
        found.update(line for line in _read("/proc/self/timers").splitlines() if line.startswith(b"ID:"))
    return frozenset(found)


def list_signal_handlers() -> frozenset[tuple[int, int]]:
    """Return each signal with the address of its handler."""
    action = (ctypes.c_size_t * _SIGACTION_WORDS)()
    return frozenset((number, action[0]) for number in _SIGNALS if _libc.sigaction(number, None, action) == 0)


RESIDUES: Mapping[str, Callable[[], frozenset[object]]] = {
    "thread": lambda: frozenset(list_threads()),
    "process": list_children,
    "timer": list_timers,
    "signal handler": list_signal_handlers,
}
"""Residues by their name in messages."""


def read_residues() -> dict[str, frozenset[object]]:
    """Return what this process has of each kind now."""
    return {name: read() for name, read in RESIDUES.items()}


def find_new_residues(before: Mapping[str, frozenset[object]]) -> list[str]:
    """Return the names of the kinds of which this process has more than before. A driver's threads do not count."""
    new = {name: found - before[name] for name, found in read_residues().items()}
    new["thread"] = frozenset(thread for thread in new["thread"] if not _is_drivers_thread(thread))
    return [name for name, found in new.items() if found]


def find_grown_residues(before: Mapping[str, frozenset[object]]) -> list[str]:
    """Return the names of the kinds of which this process has new ones, and more: a pool may have been started anew."""
    now = read_residues()
    return [name for name in find_new_residues(before) if len(now[name]) > len(before[name])]


def _is_drivers_thread(thread: object) -> bool:
    """Return whether a thread is a GPU driver's, or has ended."""
    try:
        return _read(f"{TASKS}/{thread}/comm").decode(errors="replace").startswith(_DRIVER_THREADS)
    except OSError:
        return True


def _runs(pid: int) -> bool:
    with suppress(OSError):
        # The state follows the command's name, which may contain anything (proc(5)).
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] != [b"Z"]
    return False


def _read(path: str) -> bytes:
    with ACCESSES.pause_recording(), open(path, "rb") as stream:
        return stream.read()
