"""Facts about a process, seen from another one."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ktuned.judging.process_watch import (
    continue_process,
    describe_changes,
    read_cpu_time,
    read_facts,
    stop_process,
)

WATCHED = """
import ctypes, os, signal, subprocess, sys, threading, time
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Watched:
    """A process that runs the lines that it is told."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.pid = process.pid
        self._process = process

    def run(self, line: str) -> None:
        """Run a line of Python and wait until it has."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n"


@contextmanager
def start_watched() -> Iterator[Watched]:
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Watched(process)
        process.kill()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("pass", []),
        ("threading.Thread(target=signal.pause, daemon=True).start()", ["it started a thread"]),
        ("[threading.Thread(target=signal.pause, daemon=True).start() for _ in range(3)]", ["it started 3 threads"]),
        ("child = subprocess.Popen(['sleep', '60'])", ["it started a process"]),
        ("signal.signal(signal.SIGUSR1, print)", ["it installed a handler for SIGUSR1"]),
        ("signal.signal(40, print)", ["it installed a handler for signal 40"]),
        (
            "assert ctypes.CDLL(None).timer_create(1, None, ctypes.byref(ctypes.c_long())) == 0",
            ["it started a timer"],
        ),
    ],
)
def test_what_came_into_being_is_told(line: str, sentence: list[str]) -> None:
    with start_watched() as watched:
        before = read_facts(watched.pid)
        watched.run(line)
        assert describe_changes(before, read_facts(watched.pid)) == sentence
        watched.run("'child' in globals() and child.kill()")


def test_what_was_there_before_is_not_told() -> None:
    with start_watched() as watched:
        watched.run("threading.Thread(target=signal.pause, daemon=True).start(); signal.signal(10, print)")
        facts = read_facts(watched.pid)
        assert describe_changes(facts, read_facts(watched.pid)) == []


def test_cpu_time_is_that_of_all_threads() -> None:
    with start_watched() as watched:
        before = read_cpu_time(watched.pid)
        watched.run("thread = threading.Thread(target=sum, args=(range(10**6),)); thread.start(); thread.join()")
        assert read_cpu_time(watched.pid) - before > 0.001


def test_a_stopped_process_uses_no_cpu_time() -> None:
    """All its threads stop, also those that are busy."""
    with start_watched() as watched:
        watched.run(
            "[threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start() for _ in '12']"
        )
        assert stop_process(watched.pid, within_s=20)
        used = read_cpu_time(watched.pid)
        # Whatever would still run has time for it.
        subprocess.run([sys.executable, "-c", ""], check=True)
        assert read_cpu_time(watched.pid) == used
        continue_process(watched.pid)
        while read_cpu_time(watched.pid) == used:
            pass


def test_an_ended_process_has_no_facts() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    facts = read_facts(process.pid)
    assert facts == (frozenset(), frozenset(), frozenset(), frozenset(), 0.0)
    assert not stop_process(process.pid, within_s=20)
    continue_process(process.pid)


def test_a_process_that_ends_instead_has_not_stopped() -> None:
    with start_watched() as watched:
        assert stop_process(watched.pid, within_s=20)
        continue_process(watched.pid)
        with pytest.raises(AssertionError):
            watched.run(f"os.kill(os.getpid(), {signal.SIGKILL})")
        assert not stop_process(watched.pid, within_s=20)
