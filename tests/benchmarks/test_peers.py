"""A comparison with a peer shows what it has, however it ends."""

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import compared
from benchmarks.sides import Comparison, Goal, Script, Side, Unavailable

WAITING = """
import json, os, signal
print("a line that is no result", flush=True)
print(json.dumps({"pid": os.getpid()}), flush=True)
signal.pause()
"""


def limited(seconds: float) -> argparse.Namespace:
    """Return the options of a run with a limit."""
    return argparse.Namespace(limit=seconds)


def begun() -> Comparison:
    """Return a comparison of which the peer's cold start is known."""
    return Comparison("a kernel", Side("ktuned"), Side("the peer", cold_s=8.0), cold_goal=0.5)


def is_running(pid: int) -> bool:
    """Return whether there is a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def rows_by_tool(rows: Any) -> dict[str, Any]:
    """Return the rows by what stands behind the kernel."""
    return {row["what"].partition(": ")[2].partition(" (")[0]: row for row in rows}


def test_a_run_at_its_limit_shows_what_it_has_and_leaves_no_process(tmp_path: Path) -> None:
    """The figures so far, the step that it was in, and why it ended."""
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    pids = []

    def compare(_: argparse.Namespace) -> Iterator[Comparison]:
        yield (found := begun())
        with found.step("the slow step"), Script(script) as running:
            _took_s, said = running.result()
            pids.append(said["pid"])
            found.ours.cold_s = 2.0
            running.result()

    rows = compared("kernel", compare, limited(0.5))
    found = rows_by_tool(rows)
    assert (found["the peer"]["cold_s"], found["ktuned"]["cold_s"]) == (8.0, 2.0)
    assert found["ktuned"]["warm_s"] is None
    assert rows[2]["what"] == "a kernel: ktuned / peer (unfinished)"
    assert rows[2]["cold_s"] == 0.25
    assert rows[2]["config"].endswith("stopped: after 0.5 s")
    assert rows[3]["config"].startswith("the slow step ")
    (pid,) = pids
    assert not is_running(pid)


def test_a_terminated_run_shows_what_it_has() -> None:
    """A time limit of its caller's ends it like its own."""

    def compare(_: argparse.Namespace) -> Iterator[Comparison]:
        yield begun()
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    rows = compared("kernel", compare, limited(0.0))
    assert rows[2]["config"].endswith("stopped: by SIGTERM")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_failure_is_shown_with_the_figures_before_it(tmp_path: Path) -> None:
    """A script that ends without a result is named."""
    script = tmp_path / "ending.py"
    script.write_text("raise SystemExit(3)\n")

    def compare(_: argparse.Namespace) -> Iterator[Comparison]:
        yield begun()
        with Script(script, "tune") as running:
            running.result()

    rows = compared("kernel", compare, limited(60.0))
    assert rows[0]["cold_s"] == 8.0
    assert rows[2]["config"].endswith("failed: RuntimeError: ending.py tune ended with status 3")


def test_what_cannot_be_compared_is_skipped() -> None:
    """With the reason."""

    def compare(_: argparse.Namespace) -> Iterator[Comparison]:
        raise Unavailable("the peer is not installed")
        yield

    assert compared("kernel", compare, limited(0.0)) == [{"what": "kernel: skipped: the peer is not installed"}]


def test_goals_decide_the_verdict() -> None:
    """All met, one missed, or one unknown."""
    found = begun()
    found.ours.cold_s = 4.0
    found.ours.winner_us, found.theirs.winner_us = 100.0, 100.0
    assert "(met)" in found.rows()[2]["what"]
    found.goals.append(Goal("warm s", None, 3.0))
    assert "(unfinished)" in found.rows()[2]["what"]
    found.goals[0] = Goal("warm s", 3.1, 3.0)
    assert "(NOT MET)" in found.rows()[2]["what"]
    assert "warm s 3.1 (at most 3: NOT MET)" in found.rows()[2]["config"]
