"""A clock that steps back delays nothing, makes no age negative, and changes no order."""

from __future__ import annotations

import re
from pathlib import Path

from tests.daemon_parts import FAKE_BACKEND
from tests.e2e.harness import UNHURRIED, Daemon, make_kernel_text

DAY_S = 86_400

SHIM = """\
import os, sys, time

_real = time.time
_step = os.environ["CLOCK_STEP"]

def _stepped():
    try:
        with open(_step) as stream:
            return _real() + float(stream.read())
    except FileNotFoundError:
        return _real()

# Not in workers: there the file would be one that decides the kernel's results.
if "ktuned.worker" not in sys.orig_argv:
    time.time = _stepped
"""
"""Imported by each interpreter at its start: the time of day is what a file says beside the real one."""


def test_a_clock_that_steps_back_changes_no_order(tmp_path: Path) -> None:
    """Jobs under way and later jobs end, and are listed in order, also after a restart."""
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(SHIM)
    step = tmp_path / "step"
    env = {"PYTHONPATH": f"{shim}:{FAKE_BACKEND}", "CLOCK_STEP": str(step)}
    with Daemon(tmp_path, env=env, forked=False) as daemon:
        space = (
            "space([dict(us=50.0, does='work', tag='a', gate=''), dict(us=60.0, does='work', tag='b', gate='door')])"
        )
        path = daemon.write_kernel(make_kernel_text(space, deadlines=UNHURRIED))
        daemon.client.call("tune", path=str(path))
        daemon.make_gate("door").wait_until_reached()
        before = daemon.client.call("jobs")["jobs"][0]["created"]
        (step.with_suffix(".part")).write_text(str(-DAY_S))
        step.with_suffix(".part").rename(step)
        daemon.make_gate("door").open()
        daemon.wait_until(lambda: daemon.client.call("jobs")["jobs"][0]["state"] == "done", "the job to be finished")
        second = daemon.tune_one(path=path)
        assert second["state"] == "done"
        assert second["created"] < before - DAY_S / 2

        check_latest_job(daemon, [second["id"], 1])
        assert daemon.stop() == 0
        daemon.start()
        check_latest_job(daemon, [second["id"], 1])


def check_latest_job(daemon: Daemon, jobs: list[int]) -> None:
    """Check that the latest job is listed first, the winner is fresh, and no age is negative."""
    assert [job["id"] for job in daemon.client.call("jobs")["jobs"]] == jobs
    assert {trial["outcome"] for trial in daemon.fetch_trials().values()} == {"measured"}
    answer = daemon.client.call("lookup", kernel="it", problem={"n": 64})
    assert answer["status"] == "fresh"
    assert answer["age_s"] >= 0.0
    listed = daemon.run_ktuned("jobs")
    assert listed.returncode == 0, listed.stderr
    assert not re.search(r"-\d", listed.stdout), listed.stdout
