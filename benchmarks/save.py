"""Time from a save to a lookup's answer with the first re-measured winner, or with an undone edit's winner.

The time of an edit excludes that config's own compile and measurement, and the opening of the problem's data. A
reformatted source must compile nothing, saves that alternate between two kernel files must be as fast as those of one,
and a newer save must free the slots of a running tuning. With many kernel files below one root all must be as fast as
with ten.
"""

import argparse
import statistics
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.pipeline import SOURCE
from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.report import show

SAVE_BUDGET_S = 0.3
UNDO_BUDGET_S = 0.2
RELEASE_BUDGET_S = 0.1
SCAN_BUDGET_S = 5.0
PATIENCE_S = 60.0
_LOOK_S = 0.002

KERNEL = """
from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build


@kernel(
    backend="tvm_ffi",
    sources=["saxpy.cc"],
    space=space(STEP=list(range(1, {configs} + 1))),
    problems=[dict(N=1 << 16)],
    inputs=lambda p: dict(x=tensor((p.N,)), y=tensor((p.N,), output=True)),
    reference=lambda x, y: dict(y=2 * x),
    preset="fast",
    strategy="exhaustive",
)
def {name}(p, c):
    return Build(function="saxpy", args=("x", "y"), defines=dict(STEP=c.STEP))
"""

PROBLEM = {"N": 1 << 16}


class Author:
    """Edits one kernel's files and observes the daemon."""

    def __init__(self, daemon: PrivateDaemon, project: Path, kernel: str = "saxpy") -> None:
        self.client = daemon.client()
        self.process = daemon.process
        self.kernel = kernel
        self.source = project / f"{kernel}.cc"
        self.file = project / f"tune_{kernel}.py"
        self._edits = 0

    def edit(self) -> float:
        """Change the source's tokens and return the time of the save."""
        self._edits += 1
        # One more store to the same address: another binary, the same result.
        text = SOURCE.replace("const int64_t n", f"volatile int64_t edit = {self._edits}; (void)edit; const int64_t n")
        return self.save(text)

    def save(self, text: str) -> float:
        """Write the source and return the time."""
        self.source.write_text(text)
        return perf_counter()

    def until_fresh(self, since: float, trial: int | None = None) -> float:
        """Return the seconds from a save until a lookup's answer is of another trial than before."""
        while perf_counter() - since < PATIENCE_S:
            if self.winner() not in (None, trial):
                return perf_counter() - since
            threading.Event().wait(_LOOK_S)
        answer = self.client.call("lookup", kernel=self.kernel, problem=PROBLEM, tune=False)
        waiting = [f"{job['kernel']} {job['state']} {job['message']}".strip() for job in self.jobs()[:2]]
        raise RuntimeError(
            f"{self.kernel} was not served fresh {PATIENCE_S:g} s after a save: {answer['status']} {answer['message']}"
            f"; jobs: {'; '.join(waiting)}"
        )

    def winner(self) -> int | None:
        """Return the trial that is served fresh now."""
        if self.client.call("lookup", kernel=self.kernel, problem=PROBLEM, tune=False)["status"] != "fresh":
            return None
        (entry,) = self.client.call("kernels", kernel=self.kernel, why=True)["kernels"][0]["why"]
        return int(entry["trial"])

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs, the newest first."""
        return list(self.client.call("jobs", limit=2000)["jobs"])

    def settle(self) -> None:
        """Wait until nothing is queued or running."""
        _until(
            lambda: not any(job["state"] in ("queued", "running") for job in self.jobs()[:10]), "the jobs to end", 0.02
        )

    def own_s(self, trial: int) -> float:
        """Return the time of a trial's compile and measurement, and of the opening of its data."""
        (found,) = self.client.call("results", trial=trial)["trials"]
        return float(found["compile_s"] + found["lane_s"] + found["detail"].get("profile", {}).get("open_s", 0.0))


def measure_saves(author: Author, rounds: int) -> dict[str, Any]:
    """Edit repeatedly; each time wait for the first winner, undo, reformat."""
    overheads, undone = [], []
    for number in range(rounds):
        _progress(f"save and undo, {number + 1} of {rounds}")
        before = author.winner()
        saved = author.edit()
        taken = author.until_fresh(saved, before)
        trial = author.winner()
        assert trial is not None
        author.settle()
        overheads.append(taken - author.own_s(trial))
        decided = author.winner()
        undone.append(author.until_fresh(author.save(SOURCE), decided))
        author.settle()
    decided = author.winner()
    commented = author.until_fresh(author.save(f"// a comment\n{SOURCE}\n/* another */\n"), decided)
    author.settle()
    return {
        "save_s": statistics.median(overheads),
        "worst_save_s": max(overheads),
        "undo_s": statistics.median(undone),
        "worst_undo_s": max(undone),
        "comment_s": commented,
    }


def measure_alternation(authors: Sequence[Author], rounds: int) -> list[float]:
    """Edit two kernel files in turn; return the seconds to each first winner, less its own."""
    overheads: list[float] = []
    for author in [author for _ in range(rounds) for author in authors]:
        _progress(f"saves of two files in turn, {len(overheads) + 1} of {rounds * len(authors)}")
        before = author.winner()
        taken = author.until_fresh(author.edit(), before)
        trial = author.winner()
        assert trial is not None
        author.settle()
        overheads.append(taken - author.own_s(trial))
    return overheads


def measure_release(author: Author, rounds: int) -> list[float]:
    """Save during a tuning; return the seconds from the daemon's sight of it to the end of the old job's workers."""
    released = []
    for number in range(rounds):
        _progress(f"a newer save, {number + 1} of {rounds}")
        author.edit()
        _until(lambda: any(job["state"] == "running" for job in author.jobs()), "a job to run")
        threading.Event().wait(0.3)
        (old,) = [job["id"] for job in author.jobs() if job["state"] == "running"][:1]
        saved = author.edit()
        _until(lambda old=old: _state(author, old) == "cancelled", f"job {old} to give way to a newer save")
        released.append(perf_counter() - saved)
        author.settle()
    return released


def _state(author: Author, job: int) -> str:
    return str(author.client.call("jobs", job=job)["jobs"][0]["state"])


def _until(condition: Any, what: str, every_s: float = _LOOK_S) -> None:
    end = perf_counter() + PATIENCE_S
    while not condition():
        if perf_counter() > end:
            raise RuntimeError(f"waited {PATIENCE_S:g} s in vain for {what}")
        threading.Event().wait(every_s)


def _progress(what: str) -> None:
    """Say what is measured now: all of it takes minutes, most of them in compilers."""
    print(f"save.py: {what}", file=sys.stderr, flush=True)


def measure(files: int, configs: int, rounds: int) -> dict[str, Any]:
    """Run all edits below a root with this number of kernel files."""
    with private_home() as home:
        project = home / "project"
        project.mkdir()
        (project / "saxpy.cc").write_text(SOURCE)
        (project / "tune_saxpy.py").write_text(KERNEL.format(configs=configs, name="saxpy"))
        (project / "other.cc").write_text(SOURCE)
        other = KERNEL.format(configs=configs, name="other").replace("saxpy.cc", "other.cc")
        (project / "tune_other.py").write_text(other)
        for number in range(2, files):
            place = project / f"d{number % 20}"
            place.mkdir(exist_ok=True)
            text = KERNEL.format(configs=configs, name=f"k{number}").replace("saxpy.cc", "../saxpy_twin.cc")
            (place / f"tune_k{number}.py").write_text(text)
        (project / "saxpy_twin.cc").write_text(SOURCE)
        state = home / "state"
        state.mkdir()
        (state / "config.toml").write_text(f'contention = false\n[[roots]]\npath = "{project}"\n')
        with serving(home) as daemon, daemon.client() as client:
            began = perf_counter()
            # Seldom, because listing a thousand kernels loads the daemon that is being timed.
            _until(lambda: len(client.call("kernels")["kernels"]) == files, "all kernel files to be inspected", 0.05)
            scan_s = perf_counter() - began
            author, other_author = (Author(daemon, project, kernel) for kernel in ("saxpy", "other"))
            for kernel in ("other", "saxpy"):
                _progress(f"{files} files: the first tuning of {kernel}")
                with client.tune(kernel=kernel) as tuning:
                    for _ in tuning:
                        pass
            figures = measure_saves(author, rounds)
            alternated = measure_alternation((other_author, author), rounds)
            released = measure_release(author, rounds)
            author.client.close()
            other_author.client.close()
    return {
        "files": files,
        "scan_s": scan_s,
        **figures,
        "alternating_s": statistics.median(alternated),
        "worst_alternating_s": max(alternated),
        "release_s": statistics.median(released),
        "worst_release_s": max(released),
        "in_budget": scan_s <= SCAN_BUDGET_S
        and figures["save_s"] <= SAVE_BUDGET_S
        and figures["undo_s"] <= UNDO_BUDGET_S
        and statistics.median(alternated) <= SAVE_BUDGET_S
        and statistics.median(released) <= RELEASE_BUDGET_S,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", type=int, nargs="*", default=[10, 1000])
    parser.add_argument("--configs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        rows = [measure(files, arguments.configs, arguments.rounds) for files in arguments.files]
    except RuntimeError as error:
        sys.exit(f"save.py: {error}")
    title = (
        f"save to served (budgets: save {SAVE_BUDGET_S:g} s, undo {UNDO_BUDGET_S:g} s, release {RELEASE_BUDGET_S:g} s)"
    )
    show(title, rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
