"""What a candidate's process does, seen from another process, which it cannot deceive.

The judge stops the candidate, reads :func:`read_facts`, lets it launch, stops it and reads the facts again.
:func:`describe_changes` says what came into being in between that could work while no launch runs, or instead of one:
threads, processes, signal handlers, timers.

Linux shows no timers of ``setitimer`` and ``alarm`` outside a process; the sandbox refuses them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

_POLL_S = 0.0002
"""How long to wait before asking again whether a process has stopped. Most stop within 50 µs."""

_PROCESS_CLOCK = 2
"""The clock of CPU time in a clock's number (``clock_getcpuclockid(3)``)."""


class ProcessFacts(NamedTuple):
    """A process at one moment; empty if it has ended.

    Attributes:
        threads: the ids of its threads.
        children: its child processes.
        handlers: the signals that it has handlers for.
        timers: its POSIX timers, by id.
        cpu_s: the CPU time of all its threads, in seconds.
    """

    threads: frozenset[int]
    children: frozenset[int]
    handlers: frozenset[int]
    timers: frozenset[str]
    cpu_s: float


def read_facts(pid: int) -> ProcessFacts:
    """Return the facts about a process. They agree with each other only if it is stopped."""
    return ProcessFacts(
        threads=frozenset(_list_threads(pid)),
        children=frozenset(_list_children(pid)),
        handlers=_read_handlers(pid),
        timers=frozenset(line for line in _read(f"/proc/{pid}/timers").splitlines() if line.startswith("ID:")),
        cpu_s=read_cpu_time(pid),
    )


def read_cpu_time(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds; 0.0 if it has ended."""
    try:
        return time.clock_gettime_ns((~pid << 3) | _PROCESS_CLOCK) * 1e-9
    except OSError:
        return 0.0


def describe_changes(before: ProcessFacts, after: ProcessFacts) -> list[str]:
    """Return a sentence for each kind of thing that ``after`` has and ``before`` had not."""
    found = [
        _count(after.threads - before.threads, "started", "thread"),
        _count(after.children - before.children, "started", "process"),
        _count(after.timers - before.timers, "started", "timer"),
    ]
    if new := sorted(after.handlers - before.handlers):
        found.append(f"it installed a handler for {', '.join(map(_name_signal, new))}")
    return [sentence for sentence in found if sentence]


def stop_process(pid: int, within_s: float) -> bool:
    """Stop all threads of a process; return whether all have stopped. False if it has ended."""
    end = time.monotonic() + within_s
    with suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
        while time.monotonic() < end:
            states = {_read_state(f"/proc/{pid}/task/{thread}") for thread in _list_threads(pid)}
            # A thread that has just ended has no state.
            if states <= {"T", ""}:
                return "T" in states
            if states <= {"Z", "X", ""}:
                return False
            # Nothing tells a process that is not the parent of another when that has stopped.
            time.sleep(_POLL_S)  # noqa: TID251
    return False


def continue_process(pid: int) -> None:
    """Let a stopped process go on."""
    with suppress(OSError):
        os.kill(pid, signal.SIGCONT)


def _count(new: frozenset[int] | frozenset[str], verb: str, noun: str) -> str:
    if not new:
        return ""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"it {verb} a {noun}" if len(new) == 1 else f"it {verb} {len(new)} {plural}"


def _name_signal(number: int) -> str:
    # Real-time signals between the first and the last have no name.
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


def _list_threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _list_children(pid: int) -> Iterator[int]:
    for thread in _list_threads(pid):
        yield from map(int, _read(f"/proc/{pid}/task/{thread}/children").split())


def _read_handlers(pid: int) -> frozenset[int]:
    for line in _read(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(":")
        if name == "SigCgt":
            mask = int(value, 16)
            return frozenset(number for number in signal.valid_signals() if mask >> (number - 1) & 1)
    return frozenset()


def _read_state(directory: str) -> str:
    # The state follows the command's name, which may contain anything (proc(5)).
    return (_read(f"{directory}/stat").rpartition(")")[2].split() or [""])[0]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""
