"""A scripted author: random edits of every kind; after each, exactly the kernels that it means are tuned anew, once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Daemon

HERE = Path(__file__).parent

KERNEL = """
@kernel(
    backend="cc",
    sources=["{source}"],
    space=space(step=[1, 2]),
    problems=[dict(n=256)],
    inputs=lambda p: dict(x=tensor((p.n * rows(),)), y=tensor((p.n * rows(),), output=True)),
    reference=lambda x: dict(y={scale} * x),
    rtol=1e-3, preset="fast",
)
def {name}(p, c):
    return Build(c.step, {scale}, ("-Iinclude",))
"""

FILES = {
    "tune_a.py": [("a1", "a.c"), ("a2", "b.c")],
    "tune_b.py": [("b1", "b.c"), ("b2", "c.c")],
    "tune_c.py": [("c1", "c.c")],
    "tune_d.py": [("d1", "a.c")],
}

IMPORTS = """\
from ktuned import kernel, space, tensor
from ktuned_cc import Build
"""

_REFERENCE = "reference=lambda x: dict(y="

SOURCE = """
#include "{header}"
#include "common.h"

void run(float* y, const float* x, long n) {{
  volatile long twist = {number} + TWIST + COMMON; /* what an edit changes */
  for (long i = 0; i < n; i += STEP)
    for (long j = i; j < i + STEP && j < n; ++j) y[j] = SCALE * x[j];
  (void)twist;
}}
"""


class Project:
    """The author's files as text, and the ways in which they are edited and saved."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.chance = random.Random(seed)
        self.texts: dict[str, str] = {}
        self.history: list[dict[str, str]] = []
        self._count = 100
        self._mend: dict[str, str] = {}
        for file, kernels in FILES.items():
            declared = "".join(KERNEL.format(name=name, source=source, scale=2) for name, source in kernels)
            self.texts[file] = f"{IMPORTS}from shape import rows\n{declared}"
        for name in "abc":
            self.texts[f"{name}.c"] = SOURCE.format(header=f"{name}.h", number=self.number())
            self.texts[f"include/{name}.h"] = f"#define TWIST {self.number()}\n#define UNUSED 0\n"
        self.texts["include/common.h"] = f"#define COMMON {self.number()}\n"
        self.texts["shape.py"] = "def rows():\n    return 1\n\n\ndef nobodys():\n    return 1\n"
        for name, text in self.texts.items():
            self.write(name, text)

    def number(self) -> int:
        """Return one that was not there before."""
        self._count += 1
        return self._count

    def write(self, name: str, text: str) -> None:
        """Save one file in one of the ways of editors."""
        path = self.root / name
        path.parent.mkdir(exist_ok=True, parents=True)
        way = self.chance.choice(["in place", "rename", "twice", "anew", "linked", "moved"])
        if way == "rename":
            beside = path.with_name(f".{path.name}.tmp")
            beside.write_text(text)
            beside.replace(path)
            return
        if way == "twice":
            path.write_text(text[: len(text) // 2] if path.suffix == ".h" else text)
        if way in ("anew", "linked"):
            path.unlink(missing_ok=True)
        if way == "linked":
            # From now on it lies outside of the project, until it is replaced again.
            path.symlink_to(self.root.parent / "elsewhere" / path.name)
            path.readlink().parent.mkdir(exist_ok=True)
        if way == "moved" and path.parent != self.root:
            away = self.root.parent / "away"
            path.parent.rename(away)
            (away / path.name).write_text(text)
            away.rename(path.parent)
            return
        path.write_text(text)

    def save(self, changed: dict[str, str]) -> None:
        """Save several files at once."""
        self.history.append(dict(self.texts))
        self.texts |= changed
        for name, text in changed.items():
            self.write(name, text)

    def edit(self) -> str:
        """Make one random edit and return its kind; after one that does not compile, it is taken back."""
        if self._mend:
            mend, self._mend = self._mend, {}
            self.texts |= mend
            self.write(*mend.popitem())
            return "mended"
        kinds: dict[str, Callable[[], dict[str, str]]] = {
            "source": lambda: self._number_in(self.chance.choice(["a.c", "b.c", "c.c"]), "twist = "),
            "header": lambda: self._number_in(f"include/{self.chance.choice('abc')}.h", "TWIST "),
            "common header": lambda: self._number_in("include/common.h", "COMMON "),
            "unused macro": lambda: self._number_in(f"include/{self.chance.choice('abc')}.h", "UNUSED "),
            "comment": self._comment,
            "scale": self._scale,
            "helper": lambda: self._number_in("shape.py", "rows():\n    return ", small=True),
            "unreached helper": lambda: self._number_in("shape.py", "nobodys():\n    return "),
            "nothing": lambda: dict([self.chance.choice(list(self.texts.items()))]),
            "checkout": lambda: dict(self.chance.choice(self.history)) if self.history else {},
            "broken": self._broken,
            "all at once": lambda: {name: f"{text}\n" for name, text in self.texts.items()},
        }
        kind = self.chance.choice(list(kinds))
        self.save(kinds[kind]())
        return kind

    def _number_in(self, name: str, before: str, *, small: bool = False) -> dict[str, str]:
        head, _, tail = self.texts[name].partition(before)
        rest = tail.lstrip("0123456789")
        number = self.chance.randint(1, 6) if small else self.number()
        return {name: f"{head}{before}{number}{rest}"}

    def _comment(self) -> dict[str, str]:
        name = self.chance.choice(list(self.texts))
        text = self.texts[name]
        return {name: f"# note {self.number()}\n{text}" if name.endswith(".py") else f"/* {self.number()} */\n{text}"}

    def _broken(self) -> dict[str, str]:
        name = f"{self.chance.choice('abc')}.c"
        self._mend = {name: self.texts[name]}
        return {name: self.texts[name].replace("(void)twist;", "(void)twist")}

    def _scale(self) -> dict[str, str]:
        file = self.chance.choice(list(FILES))
        name, _ = self.chance.choice(FILES[file])
        parts = self.texts[file].split("@kernel(")
        scale = self.chance.randint(2, 9)
        for place, part in enumerate(parts):
            if f"def {name}(" in part:
                head, _, tail = part.partition(_REFERENCE)
                old = tail[0]
                parts[place] = f"{head}{_REFERENCE}{scale}{tail[1:]}".replace(f"c.step, {old},", f"c.step, {scale},")
        return {file: "@kernel(".join(parts)}


class Author:
    """The project, its daemon, and what is seen of the daemon's work."""

    def __init__(self, daemon: Daemon, project: Project) -> None:
        self.daemon = daemon
        self.project = project
        self._jobs: set[int] = set()
        self._marks = 0

    def edit(self) -> str:
        """Make one random edit as one save: on a busy machine the author may pause for longer than a save takes."""
        assert self.daemon.process is not None
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            return self.project.edit()
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)

    def truths(self) -> dict[str, str]:
        """Ask the oracle what each kernel is now."""
        done = subprocess.run(
            [sys.executable, str(HERE / "oracle.py"), str(self.project.root)],
            env=self.daemon.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, str] = json.loads(done.stdout)
        return found

    def until_taken(self) -> None:
        """Wait until all that was saved has been taken in, and its jobs have ended."""
        for _ in range(2):
            self._marks += 1
            text = KERNEL.format(name="marker", source="a.c", scale=2).replace("1e-3", f"{self._marks}e-6")
            text = text.replace("problems=[dict(n=256)]", "problems=[]").replace("rows()", "1")
            before = self._marker()
            (self.project.root / "tune_marker.py").write_text(IMPORTS + text)
            self.daemon.until(lambda before=before: self._marker() != before, "the marker to be seen")  # type: ignore[misc]
        self.daemon.until(self._is_settled, "the jobs to end")

    def _marker(self) -> str:
        kernels = self.daemon.client.call("kernels")["kernels"]
        # Of the marker, what it declares itself, lest an edit of its source count for it.
        return next((kernel["extra"]["data_digest"] for kernel in kernels if kernel["kernel"] == "marker"), "")

    def _is_settled(self) -> bool:
        return all(job["state"] not in ("queued", "running") for job in self.daemon.client.call("jobs")["jobs"])

    def worked(self) -> tuple[list[str], list[str]]:
        """Return the kernels whose jobs measured anything since the last call, and those whose failed, for each job."""
        jobs: list[dict[str, Any]] = self.daemon.client.call("jobs", limit=2000)["jobs"]
        new = [job for job in jobs if job["id"] not in self._jobs]
        self._jobs |= {job["id"] for job in new}
        assert {job["state"] for job in new} <= {"done", "cancelled", "failed"}, new
        measured = sorted(job["kernel"].partition(":")[2] for job in new if job["cost"].get("lane_s"))
        return measured, sorted(job["kernel"].partition(":")[2] for job in new if job["state"] == "failed")

    def story(self, measured: list[str], expected: list[str]) -> str:
        """Return the newest jobs and trials of the kernels that are not as they should be."""
        lines = []
        for name in sorted(set(measured) ^ set(expected)) or measured:
            jobs = self.daemon.client.call("jobs", kernel=name, limit=4)["jobs"]
            trials = self.daemon.client.call("results", kernel=name, order="newest", limit=8)["trials"]
            lines += [f"job {job['id']} {job['state']} {job['reason']} {job['outcomes']} {job['cost']}" for job in jobs]
            lines += [f"trial of {trial['job']} {trial['digest'][:8]} {trial['outcome']}" for trial in trials]
        return "\n".join(lines)

    def stale(self) -> dict[str, str]:
        """Return the kernels that a lookup does not answer with ``fresh``, and what it says of why."""
        names = [name for kernels in FILES.values() for name, _ in kernels]
        answers = {name: self.daemon.client.call("lookup", kernel=name, problem={"n": 256}) for name in names}
        return {name: answer["message"] for name, answer in answers.items() if answer["status"] != "fresh"}


@pytest.mark.timeout(600)
def test_exactly_the_edited_kernels_are_tuned_anew(tmp_path: Path, edits: int, seed: int) -> None:
    """After each edit just those kernels are measured, once, that are what they never were before; all end fresh."""
    project = Project(tmp_path / "project", seed)
    log = tmp_path / "cc.log"
    path = os.pathsep.join([str(HERE / "cc_backend"), str(HERE.parent.parent)])
    with Daemon(tmp_path, env={"PYTHONPATH": path, "CC_LOG": str(log)}) as daemon:
        author = Author(daemon, project)
        daemon.tune(path=str(project.root))
        author.until_taken()
        seen = {name: {truth} for name, truth in author.truths().items()}
        assert set(author.worked()[0]) == set(seen)
        for number in range(edits):
            kind = author.edit()
            author.until_taken()
            truths = author.truths()
            broken = sorted(name for name, truth in truths.items() if not truth)
            expected = sorted(name for name, truth in truths.items() if truth and truth not in seen[name])
            compiled = log.read_text().count("\n")
            measured, failed = author.worked()
            assert measured == expected, f"edit {number} ({kind}), seed {seed}: {author.story(measured, expected)}"
            stale = author.stale()
            assert sorted(stale) == failed == broken, f"edit {number} ({kind}), seed {seed}"
            assert all("error: expected" in message for message in stale.values()), stale
            for name, truth in truths.items():
                seen[name].add(truth)
            assert log.read_text().count("\n") == compiled
