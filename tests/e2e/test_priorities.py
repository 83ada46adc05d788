"""Jobs that somebody waits for go first; a new toolchain measures five configs again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.harness import UNHURRIED, Daemon, make_kernel_text

MANY = "space([dict(us=50.0 + 100 * n, tag=str(n)) for n in range(12)])"
GATED = "space([dict(us=1.0, does='gate_compile', gate='door')])"


def fetch_job(daemon: Daemon, number: int) -> dict[str, Any]:
    (job,) = daemon.client.call("jobs", job=number)["jobs"]
    described: dict[str, Any] = job
    return described


def test_a_followed_job_goes_first_until_its_command_ends(daemon: Daemon) -> None:
    path = daemon.write_kernel(make_kernel_text(GATED, deadlines=UNHURRIED))
    command = [sys.executable, "-m", "ktuned", "tune", str(path), "--json"]
    with subprocess.Popen(command, env=daemon.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        daemon.make_gate("door").wait_until_reached()
        daemon.wait_until(lambda: fetch_job(daemon, 1)["waiters"] == 1, "somebody to wait")
        assert fetch_job(daemon, 1)["priority"] == 400
        daemon.client.call("tune", kernel="it", problem=dict(n=1), priority=380)
        daemon.wait_until(lambda: fetch_job(daemon, 2)["state"] == "running", "the other job to compile beside it")
        assert fetch_job(daemon, 2)["waits_for"] == "job 1 has the device"
        process.kill()
        process.communicate()
    daemon.wait_until(
        lambda: fetch_job(daemon, 1)["waits_for"] == "job 2 has the device", "the other job to have the device"
    )
    fallen = fetch_job(daemon, 1)
    assert (fallen["state"], fallen["priority"], fallen["waiters"]) == ("running", 350, 0)
    assert fetch_job(daemon, 2)["waits_for"] == ""
    assert "job 2 has the device" in daemon.run_ktuned("jobs").stdout
    daemon.make_gate("door").open()


def test_a_new_toolchain_measures_the_best_five_again(tmp_path: Path) -> None:
    """Afterwards the winner is fresh."""
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(make_kernel_text(MANY, early_stop="100.0"))
        _, (tuned,) = daemon.tune(path=str(path))
        assert tuned["outcomes"] == {"measured": 12}
        before = daemon.client.call("lookup", kernel="it", problem=dict(n=64), tune=False)
        assert before["status"] == "fresh"
    with Daemon(tmp_path, env={"FAKE_VERSION": "2"}) as daemon:
        daemon.wait_until(
            lambda: bool(daemon.client.call("jobs", state="done", limit=1)["jobs"][0]["id"] > 1), "the check"
        )
        (verified, _) = daemon.client.call("jobs")["jobs"]
        assert (verified["reason"], verified["priority"]) == ("a driver or toolchain changed", 50)
        assert verified["done"] == verified["total"] == 5
        after = daemon.client.call("lookup", kernel="it", problem=dict(n=64), tune=False)
        assert after["status"] == "fresh"
