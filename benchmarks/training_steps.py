"""A training loop under ``ktuned run``: its steps while its kernels are tuned beside it, and its losses.

The program is `training_loop.py`, once alone with each kernel's first config, which is the one that its calls launch
until a winner is known, and once under ``ktuned run``, until no tuning is under way and some seconds longer. The lane
may use a tenth of the GPU's time meanwhile.
"""

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from time import monotonic
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.private_daemon import PrivateDaemon, installed_environment, private_home, serving
from benchmarks.report import show
from ktuned_client.answers import ENDED_STATES

APP = Path(__file__).with_name("training_loop.py")
STEP_LIMIT = 1.10
LOSS_TOLERANCE = 0.01
"""Difference of two losses, relative to the first one: sums in half precision differ in their order."""

WARM_STEPS = 5
"""Steps before the first that counts: they compile."""

AFTER_S = 3.0
POLL_S = 0.2


@dataclass(frozen=True)
class Step:
    """A step of the training: when it began, by a clock that all processes share, its seconds, and its loss."""

    began: float
    seconds: float
    loss: float


@dataclass
class Training:
    """A run of the program, whose steps come while it goes on."""

    process: "subprocess.Popen[str]"
    steps: list[Step] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Read until the program ends; what is no step is kept."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.steps.append(Step(**json.loads(line)))
            except (ValueError, TypeError):
                self.rest.append(line)


def started(command: Sequence[str], environment: Mapping[str, str]) -> Training:
    """Start the program, and follow its steps in a thread."""
    process = subprocess.Popen(
        command,
        env={**installed_environment(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    training = Training(process)
    threading.Thread(target=training.read, daemon=True).start()
    return training


def alone(size: str, seconds: float, device: str) -> Training:
    """Run the program without ktuned, with first configs."""
    training = started([sys.executable, str(APP), size, str(seconds), device], {"TRAINING_CONFIGS": "first"})
    training.process.wait()
    return training


def tuned(daemon: PrivateDaemon, size: str, limit_s: float, device: str) -> tuple[Training, float, float, str]:
    """Run it under ``ktuned run``; return it, when tuning began and ended, and the states of the jobs."""
    command = [sys.executable, "-m", "ktuned", "run", sys.executable, str(APP), size, str(limit_s), device]
    training = started(command, daemon.environment)
    until = monotonic() + limit_s
    began = ended = 0.0
    jobs: list[Mapping[str, Any]] = []
    pause = threading.Event()
    with daemon.client() as client:
        while monotonic() < until and training.process.poll() is None:
            jobs = client.call("jobs")["jobs"]
            is_tuning = any(job["state"] not in ENDED_STATES for job in jobs)
            now = monotonic()
            began = began or (now if jobs else 0.0)
            ended = now if is_tuning or not jobs else ended or now
            if jobs and not is_tuning and now > ended + AFTER_S:
                break
            pause.wait(POLL_S)
    # Handed on to the program, so that the summary follows.
    training.process.terminate()
    try:
        training.process.wait(30)
    except subprocess.TimeoutExpired:
        training.process.kill()
    states = [str(job["state"]) for job in jobs]
    return training, began, ended, ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))


def figures(name: str, steps: Sequence[Step]) -> dict[str, Any]:
    """Return a row of a phase's steps."""
    seconds = sorted(step.seconds for step in steps)
    if not seconds:
        return {"what": name, "steps": 0, "mean ms": None, "median ms": None, "p95 ms": None}
    return {
        "what": name,
        "steps": len(seconds),
        "mean ms": fmean(seconds) * 1e3,
        "median ms": median(seconds) * 1e3,
        "p95 ms": seconds[int(0.95 * (len(seconds) - 1))] * 1e3,
    }


def main() -> None:
    """Print the phases' steps, and whether steps and losses are within their limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="4096", help="rows and columns of all matrices")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="duration of the run without ktuned, with its compiles"
    )
    parser.add_argument("--limit", type=float, default=75.0, help="longest run under ktuned, in seconds")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    before = alone(options.size, options.seconds, options.device)
    with private_home() as home, serving(home) as daemon:
        during, began, ended, states = tuned(daemon, options.size, options.limit, options.device)
    quiet = before.steps[WARM_STEPS:]
    beside = [step for step in during.steps[WARM_STEPS:] if began <= step.began <= ended]
    after = [step for step in during.steps if step.began > ended]
    rows = [figures("alone, first configs", quiet), figures("while tuning", beside), figures("after", after)]
    if not quiet or not beside:
        print("".join([*before.rest, *during.rest])[-3000:], file=sys.stderr)
        raise SystemExit("the program made no steps")
    ratio = rows[1]["mean ms"] / rows[0]["mean ms"]
    pairs = list(zip(before.steps, during.steps, strict=False))
    apart = max(abs(ours.loss - theirs.loss) for theirs, ours in pairs) / pairs[0][0].loss
    falls = during.steps[len(pairs) - 1].loss < during.steps[0].loss
    rows.append({"what": f"jobs: {states}; tuned for {ended - began:.1f} s"})
    rows.append({"what": f"step while tuning / alone {ratio:.3f} ({_word(ratio <= STEP_LIMIT)}: at most {STEP_LIMIT})"})
    rows.append(
        {
            "what": f"losses of {len(pairs)} steps differ by {apart:.2e} "
            f"({_word(apart <= LOSS_TOLERANCE and falls)}: at most {LOSS_TOLERANCE}), "
            f"{during.steps[0].loss:.5f} to {during.steps[len(pairs) - 1].loss:.5f}"
        }
    )
    show("training_steps", [{**dict.fromkeys(rows[0]), **row} for row in rows], as_json=options.json)
    sys.stdout.writelines(during.rest)


def _word(is_met: bool) -> str:
    return "met" if is_met else "NOT MET"


if __name__ == "__main__":
    main()
