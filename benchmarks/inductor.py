"""``torch.compile`` under ``ktuned run`` beside Inductor alone: first steps, steady steps, and what Inductor times.

Each side is a process of its own. Inductor's default mode and its max-autotune begin with empty caches and are started
a second time; ours begins with empty caches and an empty store, is tuned after the program's end, and is started twice
more. Each row is printed as soon as it is known, and ``--out`` keeps it in a file. A call of 300 s is enough for
``--only llama --layers 2``.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.report import show
from benchmarks.sides import ROOT, Goal
from ktuned_client.answers import ENDED_STATES

MODELS = "llama", "encoder", "conv"
DEFAULT, TUNED = "default", "max-autotune-no-cudagraphs"
LIMIT_S = 240.0
LOOK_S = 0.5

QUIET_S = 6.0
"""All is tuned if no job has been open for so long: a record is taken in within this time."""


class Comparison:
    """One model's runs, in the order of the rows."""

    def __init__(self, model: str, layers: int, out: Path | None, home: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self._model = model
        self._layers = layers
        self._out = out
        self._home = home

    def run_side(self, what: str, mode: str, cache: str, prefix: tuple[str, ...] = (), **env: str) -> dict[str, Any]:
        """Run the program once with the caches of a side, and add its row."""
        caches = self._home / self._model / cache
        program = [sys.executable, str(ROOT / "benchmarks/inductor_program.py"), self._model, mode]
        variables = {
            **os.environ,
            **env,
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
        }
        began = perf_counter()
        try:
            done = subprocess.run(
                [*prefix, *program, "--layers", str(self._layers)],
                env=variables,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            found = json.loads(lines[-1]) if lines else {"error": done.stderr[-3000:]}
            found |= {"summary": [line for line in done.stderr.splitlines() if prefix][-12:]}
        except subprocess.TimeoutExpired:
            found = {"error": f"longer than {LIMIT_S:g} s"}
        return self.add_row(what, {**found, "process_s": round(perf_counter() - began, 1)})

    def add_row(self, what: str, found: dict[str, Any]) -> dict[str, Any]:
        """Add a row, and write all rows that are known."""
        self.rows.append({"what": what, **found})
        print(json.dumps({"model": self._model, "what": what, **found}), file=sys.stderr, flush=True)
        if self._out is not None:
            (self._out / f"inductor_{self._model}.json").write_text(json.dumps(self.rows, indent=1))
        return found

    def figure(self, what: str, name: str) -> float | None:
        """Return a figure of a row; ``None`` if it is not known."""
        return next((row.get(name) for row in self.rows if row["what"] == what), None)


def wait_until_tuned(daemon: PrivateDaemon) -> dict[str, Any]:
    """Wait until no job is open; return how long that took, and how many jobs ended in which state."""
    began = quiet = perf_counter()
    states: dict[str, int] = {}
    jobs: list[Any] = []
    with daemon.client() as client:
        while perf_counter() - quiet < QUIET_S and perf_counter() - began < LIMIT_S:
            Event().wait(LOOK_S)
            jobs = client.call("jobs")["jobs"]
            states = {state: sum(job["state"] == state for job in jobs) for state in {job["state"] for job in jobs}}
            if any(job["state"] not in ENDED_STATES for job in jobs) or not jobs:
                quiet = perf_counter()
    failed = {f"{job['kernel']} {job['problem']}": job["message"] for job in jobs if job["state"] == "failed"}
    return {"tuned_after_s": round(quiet - began, 1), "jobs": states, "failed": failed}


def run_self_test(daemon: PrivateDaemon) -> dict[str, Any]:
    """Have the self-test run, which otherwise the first program waits for once; return its seconds and its result."""
    code = "from ktuned_inductor.self_test import find_failure; print(find_failure())"
    began = perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **daemon.environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return {"seconds": round(perf_counter() - began, 1), "failure": (done.stdout + done.stderr[-2000:]).strip()}


def compare(model: str, layers: int, out: Path | None, sides: set[str]) -> Comparison:
    """Run all sides of a model."""
    with private_home() as home:
        comparison = Comparison(model, layers, out, home)
        if "default" in sides:
            comparison.run_side("default, empty caches", DEFAULT, "default")
        if "ktuned" in sides:
            with serving(home) as daemon:
                comparison.add_row("ktuned, self-test", run_self_test(daemon))
                run = sys.executable, "-m", "ktuned", "run"
                first = comparison.run_side("ktuned, first start", TUNED, "ktuned", run, **daemon.environment)
                if "error" not in first:
                    comparison.add_row("ktuned, in the background", wait_until_tuned(daemon))
                    comparison.run_side("ktuned, second start", TUNED, "ktuned", run, **daemon.environment)
                    comparison.run_side("ktuned, third start", TUNED, "ktuned", run, **daemon.environment)
        if "max" in sides:
            comparison.run_side("max-autotune, empty caches", TUNED, "max")
            comparison.run_side("max-autotune, warm caches", TUNED, "max")
        return comparison


def list_goals(comparison: Comparison) -> list[Goal]:
    """Return the goals of a model."""
    figure = comparison.figure
    first, cold = "first_s", figure("default, empty caches", "first_s")
    warm = figure("max-autotune, warm caches", first)
    steady = figure("max-autotune, warm caches", "steady_ms")
    return [
        Goal("first start's first step", figure("ktuned, first start", first), cold and 1.2 * cold),
        Goal("second start's first step", figure("ktuned, second start", first), cold and 1.2 * cold),
        Goal("third start's first step", figure("ktuned, third start", first), warm and 1.2 * warm),
        Goal("third start's steady step", figure("ktuned, third start", "steady_ms"), steady and 1.03 * steady),
    ]


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=MODELS, help="one model instead of all")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--sides", default="default,ktuned,max")
    parser.add_argument("--out", type=Path, help="a directory for the figures, as they become known")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    for model in [chosen.only] if chosen.only else MODELS:
        comparison = compare(model, chosen.layers, chosen.out, set(chosen.sides.split(",")))
        shown = ("what", "first_s", "steady_ms", "kernels_ms", "timed", "graph_cache", "tuned_after_s")
        show(
            f"torch.compile, {model}",
            [{name: row.get(name) for name in shown} for row in comparison.rows],
            as_json=chosen.json,
        )
        for goal in list_goals(comparison):
            print(goal)


if __name__ == "__main__":
    main()
