"""A scripted author: random edits of every kind, and an oracle that rebuilds the project after each.

A *wrong fresh* is an answer ``fresh`` whose config, as it is now, is not what was measured for it. A *needless*
measurement, or compile, is of a kernel whose configs, as they are now, were all measured before.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.author.conftest import Script, share
from tests.author.oracle import WRONG
from tests.author.project import DOWN_EVERY, HASTY_EVERY, IMPORTS, KERNEL, SITES, Project
from tests.author.tally import Tally
from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import Daemon

HERE = Path(__file__).parent

SEEN_S = 1.0
"""After this time from an edit's last write on nothing may be wrongly fresh."""

HASTY_EDITS = 4
HASTY_PAUSE_S = 0.3
"""Edits in one go, and the longest pause between them: longer than a save takes to be seen, shorter than a tuning."""

COMPILER_SEEN_S = 3.5
"""Toolchains that are in use are looked at every 2 s, not followed by events; this includes the probe."""

Truths = Mapping[str, Mapping[str, str]]
"""The hash of each config, by kernel."""


@dataclass(frozen=True)
class Sighting:
    """The answers for all kernels at one time, and the trials of their winners: their numbers and last changes."""

    answers: Mapping[str, Mapping[str, Any]]
    served: Mapping[str, frozenset[tuple[int, float]]]


class Author:
    """The project, its daemon, and what is seen of the daemon's work."""

    def __init__(self, daemon: Daemon, project: Project) -> None:
        self.daemon = daemon
        self.project = project
        self._jobs: set[int] = set()
        self._marks = 0
        self._compiles = 0
        self._measured: dict[str, set[tuple[str, str]]] = {name: set() for name in self.project.kernels}
        self._truth_of_trial: dict[tuple[int, float], str] = {}
        self._truth_of_measurement: dict[int, str] = {}
        self._saved_at = 0.0
        self._is_compiler_new = False

    def edit(self, wanted: str | None = None) -> str:
        """Make one edit as one save: on a busy machine the author may pause for longer than a save takes."""
        assert self.daemon.process is not None
        writes = self.project.compiler_writes
        chance = self.project.chance.random() if wanted is None else 1.0
        is_down, is_hasty = chance < 1 / DOWN_EVERY, chance > 1 - 1 / HASTY_EVERY and wanted is None
        if is_down:
            self.project.chance.choice([self.daemon.kill, self.daemon.stop])()
            self.project.edit()
            if self.project.chance.random() < 0.5:
                self.daemon.env["CPATH"] = str(self.project.root / self.project.chance.choice(SITES))
            self.daemon.start()
            kind = "while down"
        elif is_hasty:
            kind = self._edit_hastily()
        else:
            self.daemon.process.send_signal(signal.SIGSTOP)
            try:
                kind = self.project.edit(wanted)
            finally:
                self.daemon.process.send_signal(signal.SIGCONT)
        self._saved_at = monotonic()
        self._is_compiler_new = self.project.compiler_writes > writes and not is_down
        return kind

    def _edit_hastily(self) -> str:
        """Make some edits while the daemon looks on: in the middle of its inspections and compiles, that is."""
        for _ in range(HASTY_EDITS):
            self.project.edit()
            select.select([], [], [], self.project.chance.uniform(0.0, HASTY_PAUSE_S))
        return "hasty"

    def oracle(self) -> subprocess.Popen[str]:
        """Ask the oracle what each config of each kernel is now; it works beside the daemon."""
        return subprocess.Popen(
            [sys.executable, str(HERE / "oracle.py"), str(self.project.root)],
            env=self.daemon.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_promised(self) -> None:
        """Wait until nothing may be wrongly fresh any more."""
        wait_s = COMPILER_SEEN_S if self._is_compiler_new else SEEN_S
        select.select([], [], [], max(0.0, self._saved_at + wait_s - monotonic()))

    def until_taken(self) -> None:
        """Wait until all that was saved has been taken in, and its jobs have ended."""
        for _ in range(2):
            self._marks += 1
            text = KERNEL.format(name="marker", source="a.c", scale=2, steps="[1]", rows="int", flags="()")
            text = text.replace("problems=[dict(n=256)]", "problems=[]").replace("int()", "1")
            before = self._marker()
            (self.project.root / "tune_marker.py").write_text(IMPORTS + "\n" * self._marks + text)
            self.daemon.wait_until(lambda before=before: self._marker() != before, "the marker to be seen")  # type: ignore[misc]
        if self._is_compiler_new:
            # No marker follows the look at the compiler.
            self.daemon.wait_until(lambda: bool(self._open_jobs()) or self._is_settled(), "the new compiler to be seen")
        # A doubt ends when the jobs are queued to which it leads, so jobs are looked for after doubts.
        while self._is_in_doubt() or self._open_jobs():
            left = self._open_jobs()
            self.daemon.wait_until(lambda left=left: self._open_jobs() != left or not left, "a job to end")  # type: ignore[misc]
            self.daemon.wait_until(
                lambda: not self._is_in_doubt(), "every file to be inspected and every compiler probed"
            )

    def _is_settled(self) -> bool:
        kernels = self.daemon.client.call("kernels", why=True)["kernels"]
        entries = [entry for kernel in kernels for entry in kernel["why"]]
        return all(entry["status"] == "fresh" or entry["message"] for entry in entries)

    def _is_in_doubt(self) -> bool:
        answers = [self.daemon.client.call("lookup", kernel=name, problem={"n": 256}) for name in self.project.kernels]
        return any("being inspected" in answer["message"] or "to be probed" in answer["message"] for answer in answers)

    def _marker(self) -> int:
        kernels = self.daemon.client.call("kernels")["kernels"]
        # An edit of its source does not count for the marker, so its place in its file tells how new it is.
        return next((kernel["line"] for kernel in kernels if kernel["kernel"].endswith(":marker")), 0)

    def _open_jobs(self) -> set[int]:
        jobs = self.daemon.client.call("jobs")["jobs"]
        return {job["id"] for job in jobs if job["state"] in ("queued", "running")}

    def compiled(self) -> set[str]:
        """Return the kernels of which anything was compiled since the last call."""
        lines = Path(self.daemon.env["CC_LOG"]).read_text().splitlines()
        new, self._compiles = lines[self._compiles :], len(lines)
        return set(new) & set(self.project.kernels)

    def worked(self) -> tuple[set[str], set[str]]:
        """Return the kernels whose jobs measured anything since the last call, and those whose failed."""
        jobs: list[dict[str, Any]] = self.daemon.client.call("jobs", limit=2000)["jobs"]
        new = [job for job in jobs if job["id"] not in self._jobs]
        self._jobs |= {job["id"] for job in new}
        assert {job["state"] for job in new} <= {"done", "cancelled", "failed"}, new
        measured = {_short(job["kernel"]) for job in new if job["cost"].get("lane_s")}
        return measured, {_short(job["kernel"]) for job in new if job["state"] == "failed"}

    def look(self) -> Sighting:
        """Look every kernel up; a kernel whose winner changes meanwhile has no trial."""
        before = self._served()
        answers = {
            name: self.daemon.client.call("lookup", kernel=name, problem={"n": 256}) for name in self.project.kernels
        }
        after = self._served()
        return Sighting(answers, {name: served for name, served in before.items() if after[name] == served})

    def _served(self) -> dict[str, frozenset[tuple[int, float]]]:
        listed = self.daemon.client.call("kernels", why=True)["kernels"]
        return {
            kernel["kernel"].rpartition(":")[2]: frozenset(
                (entry["trial"], self.daemon.fetch_trial(entry["trial"])["updated"]) for entry in kernel["why"]
            )
            for kernel in listed
        }

    def note(self, truths: Truths) -> set[str]:
        """Take in which configs are measured by now; return the kernels whose configs all were already."""
        present = {name: set(truths[name].items()) for name in self.project.kernels}
        known = {name for name, configs in present.items() if configs and configs <= self._measured[name]}
        for name in self.project.kernels:
            self._measured[name] |= present[name]
        return known

    def wrong(self, sighting: Sighting, truths: Truths) -> list[str]:
        """Return the kernels whose fresh answer is not of what they are now."""
        found = []
        for name, answer in sighting.answers.items():
            truth = truths[name].get(json.dumps(answer["config"], sort_keys=True, separators=(",", ":")))
            if answer["status"] != "fresh":
                continue
            if truth is None or truth.startswith(WRONG) or not _is_rebuilt(answer["artifact"], truth):
                found.append(name)
            for trial in sighting.served.get(name, frozenset()):
                if self._truth_of_trial.setdefault(trial, truth or "") != truth:
                    found.append(name)
                # A measurement that was taken over is of what the first one measured.
                origin = self.daemon.fetch_trial(trial[0])["detail"].get("timing", {}).get("carried_from", trial[0])
                if self._truth_of_measurement.setdefault(origin, truth or "") != truth:
                    found.append(f"{name}, carried over")
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


def _is_rebuilt(artifact: str | None, truth: str) -> bool:
    """Return whether an artifact's bytes are those that the oracle has compiled."""
    if artifact is None or not os.path.isdir(artifact):
        return True
    library = Path(artifact, "kernel.so").read_bytes()
    return hashlib.sha256(library).hexdigest() == truth.rpartition(":")[2]


def _short(kernel: str) -> str:
    return kernel.rpartition(":")[2]


def told(oracle: subprocess.Popen[str]) -> Truths:
    """Return the oracle's answer."""
    answer, errors = oracle.communicate(timeout=PATIENCE_S)
    assert oracle.returncode == 0, errors
    found: dict[str, dict[str, str]] = json.loads(answer)
    return found


def work(author: Author, script: Script, tally: Tally) -> None:
    """Make all edits, and count."""
    deadline = monotonic() + 60.0 * script.minutes
    for number, wanted in enumerate(script.edits):
        if monotonic() > deadline:
            return
        began = monotonic()
        kind = author.edit(wanted)
        place = f"edit {number} ({kind}), seed {script.seed}"
        oracle = author.oracle()
        author.until_promised()
        early = author.look()
        author.until_taken()
        truths = told(oracle)
        measured, failed = author.worked()
        late = author.look()
        tally.edits[kind] += 1
        tally.wrong += [f"{name} soon after {place}" for name in author.wrong(early, truths)]
        tally.wrong += [f"{name} after {place}" for name in author.wrong(late, truths)]
        compiled, known = author.compiled(), author.note(truths)
        tally.measured[kind] += len(measured)
        tally.compiled[kind] += len(compiled)
        if kind != "hasty":
            # What was measured between hasty edits is not known.
            tally.needless[kind] += len(measured & known)
            tally.needless_compiles[kind] += len(compiled & known)
        broken = {name for name, configs in truths.items() if all(one.startswith(WRONG) for one in configs.values())}
        stale = {name: answer["message"] for name, answer in late.answers.items() if answer["status"] != "fresh"}
        # A hasty author's jobs may have failed for a state in between.
        # One that was broken before has failed before.
        if set(stale) != broken or (not failed <= broken and kind != "hasty"):
            story = author.story((set(stale) ^ broken) | (failed - broken))
            tally.unsettled.append(f"after {place}: {stale}, broken are {broken}, failed {failed}\n{story}")
        tally.milliseconds[kind] += round(1000 * (monotonic() - began))


@pytest.mark.timeout(7200)
def test_no_edit_leaves_a_wrong_answer_fresh(
    tmp_path: Path, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 1 s after an edit nothing is wrongly fresh; in the end all that compiles is, and re-tunes were needed."""
    project = Project(tmp_path / "project", script.seed, script.files)
    path = os.pathsep.join(map(str, (HERE.parent / "cc_backend", HERE.parent.parent, tmp_path / "lib")))
    env = {"PYTHONPATH": path, "CC_LOG": str(tmp_path / "cc.log"), "AUTHOR_CC": str(project.compiler)}
    env |= {"CPATH": str(project.root / SITES[0]), "AUTHOR_NATIVE": str(project.native)}
    tally = Tally()
    # Among the edits that a seed chooses are some of what an interpreter runs at its start.
    with Daemon(tmp_path, env=env, spares=True, forked=None not in script.edits) as daemon:
        author = Author(daemon, project)
        daemon.tune(path=project.root)
        author.until_taken()
        truths = told(author.oracle())
        measured, _ = author.worked()
        assert measured == set(truths)
        author.note(truths)
        author.compiled()
        assert author.wrong(author.look(), truths) == []
        try:
            work(author, script, tally)
        finally:
            with capsys.disabled():
                print(f"\n{tally}\n{tally.to_line()}")
    assert tally.wrong == []
    assert tally.unsettled == []
    assert tally.is_precise or not script.is_whole


@pytest.mark.parametrize(("edits", "parts"), [(500, 14), (500, 1), (3, 7)])
def test_parts_make_all_edits(edits: int, parts: int) -> None:
    """The parts of a run together make as many edits as were asked for, in shares that differ by one at most."""
    shares = [share(edits, part, parts) for part in range(1, parts + 1)]
    assert sum(shares) == edits
    assert max(shares) - min(shares) <= 1


def test_tallies_add_up() -> None:
    """Tallies of several runs, each from its line, add up."""
    kinds = [Counter(scale=number) for number in (2, 3, 1, 5, 6, 4)]
    one = Tally(kinds[0], kinds[1], kinds[2], kinds[3], kinds[4], kinds[5], ["a"], [])
    total = Tally()
    for _ in range(2):
        total.add(Tally.from_line(one.to_line()))
    assert [total.edits, total.needless, total.needless_compiles, total.milliseconds] == [
        Counter(scale=number) for number in (4, 2, 12, 8)
    ]
    assert total.wrong == ["a", "a"]
    assert not total.is_precise
