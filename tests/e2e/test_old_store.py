"""A state directory of an earlier version opens as before: winners, jobs, exports and settings."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Daemon

STATE = Path(__file__).parent.parent / "fixtures" / "old_store"
WRITTEN_AT = "/tmp/ktuned-fixture"
OUTCOMES = {
    "fast": "measured",
    "slow": "measured",
    "compile_error": "compile_error",
    "wrong": "mismatch",
    "crashed": "crashed",
    "raised": "launch_error",
    "unsupported": "unsupported",
}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Run today's daemon on a copy of the old state, which finds its project where it was."""
    daemon = Daemon(tmp_path)
    for path in filter(Path.is_file, STATE.rglob("*")):
        copy = tmp_path / path.relative_to(STATE).with_suffix("" if path.suffix == ".txt" else path.suffix)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".safetensors":
            shutil.copy(path, copy)
        else:
            copy.write_text(path.read_text().replace(WRITTEN_AT, str(tmp_path)))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with closing(sqlite3.connect(daemon.home / "ktuned.sqlite")) as connection:
        connection.executescript((daemon.home / "ktuned.sql").read_text())
    with daemon:
        yield daemon


def lookup(daemon: Daemon, kernel: str, problem: dict[str, int]) -> dict[str, Any]:
    """Look a kernel up, and ask for no tuning."""
    answer: dict[str, Any] = daemon.client.call("lookup", kernel=kernel, problem=problem, tune=False)
    return answer


def test_winners_are_served(daemon: Daemon) -> None:
    """The way of measuring has changed, and more of the environment counts; sizes outside the key change nothing."""
    for kernel, problem, latency_us in (
        ("fixture:scale", {"n": 64, "k": 1}, 52.0675),
        ("scale", {"n": 64, "k": 2}, 52.0675),
        ("added:copy", {"n": 64}, 51.841499999999996),
    ):
        answer = lookup(daemon, kernel, problem)
        assert (answer["status"], answer["config"]["tag"]) == ("stale", "fast")
        assert answer["latency_us"] == latency_us
        (entry, *_) = daemon.client.call("kernels", kernel=kernel, why=True)["kernels"][0]["why"]
        assert "measuring" in {change["kind"] for change in entry["changes"]}


def test_trials_and_jobs_are_known(daemon: Daemon) -> None:
    """Each trial has its outcome; what waited waits, what ran runs again, what was paused stays so."""
    found = daemon.client.call("results", kernel="scale", problem={"n": 64, "k": 1}, limit=100)["trials"]
    assert {trial["config"]["tag"]: trial["outcome"] for trial in found} == OUTCOMES
    jobs = {job["id"]: job for job in daemon.client.call("jobs")["jobs"]}
    assert {number: job["state"] for number, job in jobs.items() if number in (1, 2, 3, 6)} == {
        1: "done",
        2: "done",
        3: "done",
        6: "paused",
    }
    assert {jobs[4]["state"], jobs[5]["state"]} <= {"queued", "running", "done"}
    assert jobs[5]["problem"] == {"n": 256, "k": 3}


def test_exports_are_the_same_and_come_in_again(daemon: Daemon) -> None:
    """The documents equal those that the old daemon wrote, and an import of them finds nothing new."""
    for path in sorted((STATE / "export").iterdir()):
        document = json.loads(path.read_text())
        kernel, device = document["kernel"], document["device"]
        # Of what came later it has nothing.
        present = {**document, "bucket": {}, "names": {}}
        assert daemon.client.call("export", kernel=kernel, device=device)["document"] == present
        told = daemon.client.call("import", document=document)["winners"]
        assert {winner["reason"] for winner in told} == {"it is the same"}
        assert daemon.client.call("forget", kernel=kernel)["trials"]
        told = daemon.client.call("import", document=document)["winners"]
        assert {(winner["taken"], winner["status"]) for winner in told} == {(True, "stale")}


def test_settings_are_read(daemon: Daemon) -> None:
    """Both roots are watched as before."""
    roots = {root["name"]: root for root in daemon.client.call("kernels")["roots"]}
    assert roots.keys() == {"fixture", "added"}
    assert {root["python"] for root in roots.values()} == {str(daemon.directory / "python")}
    assert (roots["fixture"]["env"], roots["added"]["env"]) == ({"FAKE_VERSION": "1"}, {})


def test_a_project_that_gets_a_name_is_another_project(daemon: Daemon) -> None:
    """Its kernels are known by the new name alone; with the old one it has again what it had."""
    file = daemon.directory / "added" / "ktuned.toml"
    file.write_text('name = "copies"\n')
    daemon.until(lambda: lookup(daemon, "copies:copy", {"n": 64})["status"] != "unknown", "the new name")
    assert lookup(daemon, "added:copy", {"n": 64})["status"] == "unknown"
    (daemon.directory / "project" / "ktuned.toml").write_text('name = "ignored"\n')
    file.unlink()
    for _ in range(2):
        daemon.until(lambda: lookup(daemon, "added:copy", {"n": 64})["status"] == "stale", "the old name")
        assert lookup(daemon, "fixture:scale", {"n": 64, "k": 1})["status"] == "stale"
        assert lookup(daemon, "added:copy", {"n": 64})["latency_us"] == 51.841499999999996
        daemon.kill()
        daemon.start()
