"""Applications and the daemon are killed at random moments: each complete record is tuned once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from ktuned.spool import RECORD_SUFFIX, CallRecord, spool_directory
from ktuned_client.answers import ENDED_STATES
from tests.chaos.conftest import TableRow
from tests.e2e.harness import Daemon

PLUGINS = Path(__file__).parent.parent / "plugins"
ROUNDS, KEYS_A_ROUND = 80, 5

WRITER = """
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from ktuned.spool import CallRecord, leave_record
record, spool, first, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
made = CallRecord.from_bytes(record.read_bytes())
# A function of its own: of very many keys of one function not all are tuned.
made = replace(made, function=f"scale_{first}", identity=f"{first:016x}")
for size in range(first, first + count):
    leave_record(spool, replace(made, problem={**made.problem, "size": size}))
    print(size, flush=True)
"""
"""An application that leaves calls and says which ones it has left."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Yield a daemon, not started, whose triton backend uses the CPU as a GPU."""
    path = os.pathsep.join([str(PLUGINS / "triton_stand_in"), *filter(None, sys.path)])
    daemon = Daemon(tmp_path, tensors="torch", env={"PYTHONPATH": path})
    yield daemon
    daemon.__exit__(None, None, None)


def record_call(daemon: Daemon, directory: Path) -> Path:
    """Let an application record a call, and return a copy of its record."""
    program = PLUGINS / "triton_app" / "application.py"
    subprocess.run([sys.executable, str(program), "4096"], env=daemon.env, check=True, capture_output=True, timeout=120)
    (record,) = spool_directory(daemon.home).glob(f"*{RECORD_SUFFIX}")
    CallRecord.from_bytes(record.read_bytes())
    record.rename(directory)
    return directory


@pytest.mark.timeout(3600)
def test_records_survive_kills_of_writer_and_daemon(
    daemon: Daemon, tmp_path: Path, seed: int, table_row: TableRow
) -> None:
    """The writer is killed while it writes, the daemon while it reads records and tunes."""
    dice, pause = random.Random(seed), Event()
    record, spool = record_call(daemon, tmp_path / "one.record"), spool_directory(daemon.home)
    complete: set[int] = set()
    kills = 0
    daemon.start()
    for number in range(ROUNDS):
        first = 10_000 + number * KEYS_A_ROUND
        words = [sys.executable, "-c", WRITER, str(record), str(spool), str(first), str(KEYS_A_ROUND)]
        with subprocess.Popen(words, env=daemon.env, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            complete.add(int(writer.stdout.readline()))
            pause.wait(dice.random() * 0.002)
            writer.kill()
            complete.update(int(line) for line in writer.stdout.read().splitlines())
        if dice.random() < 0.5:
            pause.wait(dice.random() * 0.5)
            daemon.kill()
            kills += 1
            daemon.start()
    daemon.wait_until(lambda: not list(spool.glob(f"*{RECORD_SUFFIX}")), "the records to be taken in")

    def to_end() -> int:
        jobs = daemon.client.call("jobs", limit=2000)["jobs"]
        return sum(job["state"] not in ENDED_STATES for job in jobs)

    # A hundred take minutes on a busy machine: what has a deadline is the next one.
    while (remaining := to_end()) > 0:
        daemon.wait_until(partial(lambda left: to_end() < left, remaining), "the next job to end")
    jobs = daemon.client.call("jobs", limit=2000)["jobs"]
    tuned = Counter(job["problem"]["size"] for job in jobs)
    table_row.update(daemons_killed=kills, complete=len(complete), jobs=len(jobs))
    assert {job["state"] for job in jobs} == {"done"}, [job for job in jobs if job["state"] != "done"][:3]
    assert complete <= set(tuned)
    assert max(tuned.values()) == 1
