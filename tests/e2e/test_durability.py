"""A daemon that is stopped or killed leaves no process, and the next daemon finishes its work.

Many kills at random moments are in tests/chaos/test_kills.py.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from time import monotonic

import psutil

from tests.e2e.harness import UNHURRIED, Daemon, make_kernel_text

DRAIN_S = 30.0
"""How long a daemon that is asked to stop may take for what is under way, which would last longer."""


def list_living(pids: set[int]) -> set[int]:
    return {pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE}


def test_sigterm_ends_cleanly_and_the_next_daemon_finishes_the_job(daemon: Daemon) -> None:
    """The exit status is 0, and no worker stays."""
    space = "space([dict(us=50.0, does='work', tag='a', gate=''), dict(us=60.0, does='work', tag='b', gate='door')])"
    path = daemon.write_kernel(make_kernel_text(space, deadlines=UNHURRIED))
    daemon.client.call("tune", path=str(path))
    daemon.make_gate("door").wait_until_reached()
    workers = set(daemon.list_worker_pids())
    assert workers
    began = monotonic()
    assert daemon.stop() == 0
    assert monotonic() - began < DRAIN_S
    assert not list_living(workers)
    with closing(sqlite3.connect(f"file:{daemon.home}/ktuned.sqlite?mode=ro", uri=True)) as store:
        # The job is neither done nor failed, and no trial is left as if it still ran.
        assert {state for (state,) in store.execute("SELECT state FROM jobs")} <= {"queued", "running"}
        outcomes = {outcome for (outcome,) in store.execute("SELECT outcome FROM trials")}
    assert outcomes <= {"measured", "cancelled", "interrupted"}

    daemon.make_gate("door").open()
    daemon.start()
    daemon.wait_until(lambda: daemon.client.call("jobs")["jobs"][0]["state"] == "done", "the job to be finished")
    assert {trial["outcome"] for trial in daemon.fetch_trials().values()} == {"measured"}
