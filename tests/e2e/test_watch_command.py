"""``ktuned watch --once``, the check for CI."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.e2e.harness import UNHURRIED, Daemon, make_kernel_text

SPACE = (
    "space([dict(us={us}, does='work', tag='a', gate={gate!r}), dict(us=1.0, does='compile_error', tag='b', gate='')])"
)
FIGURE = r"[\d.]+ [µm]s"
"""A latency as it is reported; how large it is on a busy machine is not what is tested here."""


def make_text(us: float = 300.0, gate: str = "", **options: str) -> str:
    """Return a kernel file with a config that works and one that does not compile."""
    return make_kernel_text(SPACE.format(us=us, gate=gate), deadlines=UNHURRIED, **options)


def test_once_is_a_regression_check(tmp_path: Path) -> None:
    """It tunes what is stale alone, and exits with 1 if a winner got slower or an edit does not work.

    Under the policy ``manual`` a save starts no job; the check overrides the policy.
    """
    with Daemon(tmp_path, config='policy = "manual"\n') as daemon:
        path = daemon.write_kernel(make_text(300.0))
        first = daemon.run_ktuned("watch", "--once", str(path))
        assert first.returncode == 0, first.stderr
        assert re.search(rf"project:it +n=64 .* – +{FIGURE} +– +new", first.stdout)
        second = daemon.run_ktuned("watch", "--once", "--json", str(path))
        (compared,) = json.loads(second.stdout.splitlines()[-1])["comparisons"]
        assert (second.returncode, compared["verdict"], compared["ratio"]) == (0, "same", 1.0)
        assert len(daemon.client.call("jobs")["jobs"]) == 1

        path.write_text(make_text(3000.0, body="Build(**{**c, 'us': c.us + 1.0})"))
        daemon.wait_until(lambda: daemon.look_up().status != "fresh", "the save to be seen")
        daemon.wait_until(lambda: bool(daemon.client.call("jobs", state="queued")["jobs"]), "its job")
        status = daemon.run_ktuned("status").stdout
        assert re.search(r"0 running, 1 queued; waiting: 1 because policy is manual: .*; policy manual", status)
        slower = daemon.run_ktuned("watch", "--once", str(path))
        assert slower.returncode == 1
        assert re.search(rf"{FIGURE} +{FIGURE} +0\.\d\d× +slower", slower.stdout)

        path.write_text(make_text(6000.0, body="Build(**{**c, 'us': c.us + 2.0})"))
        tolerated = daemon.run_ktuned("watch", "--once", "--tolerance", "10000%", str(path))
        assert tolerated.returncode == 0, tolerated.stdout

        path.write_text("def broken(:\n")
        broken = daemon.run_ktuned("watch", "--once", str(path))
        assert broken.returncode == 1
        assert "tune_it.py:1" in broken.stderr
        assert daemon.run_ktuned("watch", "--once", "--tolerance", "much", str(path)).returncode == 2
