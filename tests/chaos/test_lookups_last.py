"""Lookups while much happens: thousands of saves, and new processes on a machine that has no time for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.conftest import TableRow
from tests.e2e.harness import Daemon, make_kernel_text

SAVES = 2_000
CLIENTS = 8
NEW_PROCESSES = 200
LOAD = 20
"""Processes that only compute, on however many cores there are."""

GROWTH_BYTES = 5 * 2**20
FILES = 1_000
"""More files than a daemon has after a few saves; a file for each save would be more."""

SPACE = "space([dict(us={us}, does={does!r}, tag='a'), dict(us=900.0, does='work', tag='b')])"
PROBLEM = {"n": 64}
DEFAULT = {"us": 1.0}

LOOK_UP_UNTIL_TOLD = f"""
import collections, json, os, select, ktuned_client
found = collections.Counter()
client = ktuned_client.Client()
while not select.select([0], [], [], 0)[0]:
    status = client.lookup("project:it", {PROBLEM}, {DEFAULT}).status
    found[status if found or status != "unavailable" else "not yet"] += 1
print(json.dumps(found))
"""
"""Looks the kernel up, as fast as possible, until its input ends; prints how often there was each status."""

LOOK_UP_ONCE = f"""
import sys, ktuned_client
hit = ktuned_client.Client().lookup(sys.argv[1], {PROBLEM}, {DEFAULT})
print(hit.status, hit.config["us"])
"""


def _write_versions(save: int) -> str:
    """Return the kernel file of a save: other code, the code before, a comment, no Python, a config that fails."""
    text = make_kernel_text(SPACE.format(us=300.0, does="work"))
    return (
        text.replace("Build(**c)", f"Build(**{{**c, 'us': c.us + {save % 50 + 1}.0}})"),
        text,
        f"# comment {save}\n{text}",
        text + "\n(",
        make_kernel_text(SPACE.format(us=300.0 + save % 7, does="crash")),
    )[save % 5]


@contextmanager
def _looking_up(daemon: Daemon, count: int) -> Iterator[Counter[str]]:
    """Have clients look up until the block ends; then the counter has what they were answered."""
    told: Counter[str] = Counter()
    command = [sys.executable, "-c", LOOK_UP_UNTIL_TOLD]
    clients = [
        subprocess.Popen(command, env=daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)
    ]
    yield told
    for client in clients:
        answered, _ = client.communicate()
        told.update(json.loads(answered))


def _is_settled(daemon: Daemon) -> bool:
    jobs = daemon.client.call("status")["jobs"]
    return not jobs.get("running") and not jobs.get("queued")


def _count_held(daemon: Daemon) -> tuple[int, int, int]:
    """Return the daemon's resident bytes, its descriptors and its workers."""
    status = daemon.client.call("status")
    return status["rss_bytes"], len(os.listdir(f"/proc/{status['pid']}/fd")), len(status["workers"])


@pytest.mark.timeout(1800)
def test_saves_leave_the_daemon_as_it_was(tmp_path: Path, seed: int, table_row: TableRow) -> None:
    """Its memory, descriptors, workers and files are bounded, and whoever had an answer always has one."""
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(_write_versions(1))
        daemon.tune(path=path)
        with (
            _looking_up(daemon, CLIENTS) as told,
            daemon.client.events(types=["reloaded"]) as seen,
        ):
            for save in range(SAVES):
                path.write_text(_write_versions(save))
                if save % 5 == 4:
                    next(seen)
                    daemon.wait_until(lambda: _is_settled(daemon), "the jobs of some saves")
                if save == 99:
                    before = _count_held(daemon)
            daemon.wait_until(lambda: _is_settled(daemon), "the jobs of the last saves")
            after = _count_held(daemon)
        files = sum(len(names) for _, _, names in os.walk(daemon.home))
    table_row |= {"saves": SAVES, "lookups": told.total(), "statuses": dict(told), "files": files}
    table_row |= {"MiB before and after": [held[0] / 2**20 for held in (before, after)], "descriptors": after[1]}
    assert told["unavailable"] == told["unknown"] == 0
    assert after[0] - before[0] < GROWTH_BYTES
    assert after[1] <= before[1] + 8
    assert after[2] <= before[2] + 4
    assert files < FILES


@contextmanager
def _loaded_machine() -> Iterator[None]:
    """Keep the machine so busy that nobody gets a core for more than a moment."""
    computing = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(LOAD)]
    try:
        yield
    finally:
        for process in computing:
            process.kill()
            process.wait()


def _ask_in_new_processes(daemon: Daemon, directories: list[Path], count: int) -> Counter[str]:
    """Return the answers that new processes get to their first lookup, each with its number."""
    told: Counter[str] = Counter()
    for number in range(count):
        command = [sys.executable, "-c", LOOK_UP_ONCE, "it" if number % 3 else "project:it"]
        place = directories[number % len(directories)]
        told[subprocess.check_output(command, cwd=place, env=daemon.env, text=True).strip()] += 1
    return told


@pytest.mark.timeout(3600)
def test_new_processes_find_the_winner_on_a_loaded_machine(tmp_path: Path, seed: int, table_row: TableRow) -> None:
    """None gets the default instead: not while the daemon waits for its turn, is stopped, or has just begun again."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(make_kernel_text(SPACE.format(us=300.0, does="work")))
        daemon.tune(path=path)
        directories, count = [path.parent, elsewhere], NEW_PROCESSES
        with _loaded_machine():
            table_row["while it runs"] = running = _ask_in_new_processes(daemon, directories, count)
            assert daemon.process is not None
            daemon.process.send_signal(signal.SIGSTOP)
            try:
                table_row["while it is stopped"] = stopped = _ask_in_new_processes(daemon, directories, count)
            finally:
                daemon.process.send_signal(signal.SIGCONT)
            daemon.kill()
            daemon.start()
            table_row["after its restart"] = restarted = _ask_in_new_processes(daemon, directories, count)
    for found in (running, stopped, restarted):
        assert set(found) <= {"fresh 300.0", "stale 300.0"}
