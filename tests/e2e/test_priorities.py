"""A new toolchain measures five configs again."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.harness import Daemon, make_kernel_text

MANY = "space([dict(us=50.0 + 100 * n, tag=str(n)) for n in range(12)])"


def test_a_new_toolchain_measures_the_best_five_again(tmp_path: Path) -> None:
    """Afterwards the winner is fresh."""
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(make_kernel_text(MANY, early_stop="100.0"))
        tuned = daemon.tune_one(path=path)
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
