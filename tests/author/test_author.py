"""A scripted author: random edits of every kind, and an oracle that rebuilds the project after each.

A *wrong fresh* is an answer ``fresh`` whose config, as it is now, is not what was measured for it. A *needless* re-tune
measures a kernel whose configs, as they are now, were all measured before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.author.conftest import Script
from tests.author.project import IMPORTS, KERNEL, Project
from tests.e2e.harness import Daemon

HERE = Path(__file__).parent
NEEDLESS_SHARE = 0.1

Truths = Mapping[str, Mapping[str, str]]
"""The hash of each config, by kernel."""


@dataclass
class Tally:
    """Counts of one run; ``needless`` by the kind of the edit."""

    edits: Counter[str] = field(default_factory=Counter)
    retuned: int = 0
    needless: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.edits.items()))
        needless = ", ".join(f"{kind} {count}" for kind, count in sorted(self.needless.items()))
        return (
            f"{self.edits.total()} edits ({kinds}): {len(self.wrong)} wrong fresh; {self.retuned} re-tunes, "
            f"{self.needless.total()} needless ({needless or 'none'})"
        )


class Author:
    """The project, its daemon, and what is seen of the daemon's work."""

    def __init__(self, daemon: Daemon, project: Project) -> None:
        self.daemon = daemon
        self.project = project
        self._jobs: set[int] = set()
        self._marks = 0
        self._measured: dict[str, set[tuple[str, str]]] = {name: set() for name in self.project.kernels}
        self._truth_of_trial: dict[tuple[int, float], str] = {}

    def edit(self, wanted: str | None = None) -> str:
        """Make one edit as one save: on a busy machine the author may pause for longer than a save takes."""
        assert self.daemon.process is not None
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            return self.project.edit(wanted)
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)

    def truths(self) -> Truths:
        """Ask the oracle what each config of each kernel is now."""
        done = subprocess.run(
            [sys.executable, str(HERE / "oracle.py"), str(self.project.root)],
            env=self.daemon.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, dict[str, str]] = json.loads(done.stdout)
        return found

    def until_taken(self) -> None:
        """Wait until all that was saved has been taken in, and its jobs have ended."""
        for _ in range(2):
            self._marks += 1
            text = KERNEL.format(name="marker", source="a.c", scale=2, steps="[1]", rows="int", flags="()").replace(
                "1e-3", f"{self._marks}e-6"
            )
            text = text.replace("problems=[dict(n=256)]", "problems=[]").replace("int()", "1")
            before = self._marker()
            (self.project.root / "tune_marker.py").write_text(IMPORTS + text)
            self.daemon.until(lambda before=before: self._marker() != before, "the marker to be seen")  # type: ignore[misc]
        while left := self._open_jobs():
            self.daemon.until(lambda left=left: self._open_jobs() != left, "a job to end")  # type: ignore[misc]

    def _marker(self) -> str:
        kernels = self.daemon.client.call("kernels")["kernels"]
        # Of the marker, what it declares itself, lest an edit of its source count for it.
        return next((kernel["extra"]["data_digest"] for kernel in kernels if kernel["kernel"] == "marker"), "")

    def _open_jobs(self) -> set[int]:
        jobs = self.daemon.client.call("jobs")["jobs"]
        return {job["id"] for job in jobs if job["state"] in ("queued", "running")}

    def worked(self) -> tuple[set[str], set[str]]:
        """Return the kernels whose jobs measured anything since the last call, and those whose failed."""
        jobs: list[dict[str, Any]] = self.daemon.client.call("jobs", limit=2000)["jobs"]
        new = [job for job in jobs if job["id"] not in self._jobs]
        self._jobs |= {job["id"] for job in new}
        assert {job["state"] for job in new} <= {"done", "cancelled", "failed"}, new
        measured = {_short(job["kernel"]) for job in new if job["cost"].get("lane_s")}
        return measured, {_short(job["kernel"]) for job in new if job["state"] == "failed"}

    def answers(self) -> dict[str, dict[str, Any]]:
        """Look every kernel up."""
        return {
            name: self.daemon.client.call("lookup", kernel=name, problem={"n": 256}) for name in self.project.kernels
        }

    def note(self, measured: set[str], truths: Truths) -> set[str]:
        """Take in which configs are known to be measured now; return the kernels that were measured needlessly."""
        present = {name: set(truths[name].items()) for name in self.project.kernels}
        needless = {name for name in measured if present[name] and present[name] <= self._measured[name]}
        for name in self.project.kernels:
            self._measured[name] |= present[name]
        return needless

    def wrong(self, answers: Mapping[str, Mapping[str, Any]], truths: Truths) -> list[str]:
        """Return the kernels whose fresh answer is not of what they are now."""
        listed = self.daemon.client.call("kernels", why=True)["kernels"]
        trials = {kernel["kernel"]: [entry["trial"] for entry in kernel["why"]] for kernel in listed}
        found = []
        for name, answer in answers.items():
            truth = truths[name].get(json.dumps(answer["config"], sort_keys=True, separators=(",", ":")))
            for number in trials[name]:
                trial = self.daemon.trial(number)
                served = self._truth_of_trial.setdefault((number, trial["updated"]), truth or "")
                if answer["status"] == "fresh" and served != truth:
                    found.append(name)
        return found

    def story(self, names: set[str]) -> str:
        """Return the newest jobs and trials of some kernels."""
        lines = []
        for name in sorted(names):
            jobs = self.daemon.client.call("jobs", kernel=name, limit=4)["jobs"]
            trials = self.daemon.client.call("results", kernel=name, order="newest", limit=8)["trials"]
            lines += [f"job {job['id']} {job['state']} {job['reason']} {job['outcomes']} {job['cost']}" for job in jobs]
            lines += [f"trial of {trial['job']} {trial['digest'][:8]} {trial['outcome']}" for trial in trials]
        return "\n".join(lines)


def _short(kernel: str) -> str:
    return kernel.rpartition(":")[2]


@pytest.mark.timeout(7200)
def test_no_edit_leaves_a_wrong_answer_fresh(
    tmp_path: Path, script: Script, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """After each edit all that compiles is fresh again and true; at most a tenth of the re-tunes were needless."""
    project = Project(tmp_path / "project", seed, script.files)
    path = os.pathsep.join(map(str, (HERE / "cc_backend", HERE.parent.parent, tmp_path / "lib")))
    tally = Tally()
    with Daemon(tmp_path, env={"PYTHONPATH": path, "CC_LOG": str(tmp_path / "cc.log")}, spares=True) as daemon:
        author = Author(daemon, project)
        daemon.tune(path=str(project.root))
        author.until_taken()
        truths = author.truths()
        measured, _ = author.worked()
        assert measured == set(truths)
        author.note(measured, truths)
        assert author.wrong(author.answers(), truths) == []
        for number, wanted in enumerate(script.edits):
            kind = author.edit(wanted)
            author.until_taken()
            truths = author.truths()
            measured, failed = author.worked()
            answers = author.answers()
            place = f"edit {number} ({kind}), seed {seed}"
            tally.edits[kind] += 1
            tally.wrong += [f"{name} after {place}" for name in author.wrong(answers, truths)]
            tally.retuned += len(measured)
            tally.needless += Counter({kind: len(author.note(measured, truths))})
            broken = {name for name, configs in truths.items() if not configs}
            stale = {name: answer["message"] for name, answer in answers.items() if answer["status"] != "fresh"}
            assert set(stale) == broken, f"{place}: {stale}\n{author.story(set(stale) ^ broken)}"
            assert failed == broken, f"{place}: {author.story(failed ^ broken)}"
    with capsys.disabled():
        print(f"\n{tally}")
    assert tally.wrong == []
    assert tally.needless.total() <= NEEDLESS_SHARE * tally.retuned
