"""Unmodified public libraries under ``ktuned run``: the functions that it adopts, and the time that they take.

``--adopt`` needs no GPU: it imports all modules of each library on a made-up device and lists its autotuned functions.
Otherwise it runs programs that use one library each on a GPU. Each side begins with empty caches and an empty store:
Triton alone, Triton with its winners cached, Triton with each list cut to its first config, ``ktuned run``, ``ktuned
run --wait``, and the second start. A run may be cut off, so ``--out`` keeps each figure as soon as it is known.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

from benchmarks.library_adoption import adoption_rows
from benchmarks.made_up_gpu import MODELS
from benchmarks.private_daemon import PATIENT_S, installed_environment, variables
from benchmarks.report import show
from benchmarks.sides import ROOT, Goal, Unavailable, read_ahead
from ktuned.backends import Absent, cuda_devices
from ktuned_client import Client, DaemonError, DaemonUnavailable

IMPORTED = {
    "norms": ("fla.modules.activations", "fla.modules.norm.layernorm"),
    "moe": ("liger_kernel.ops.fused_moe",),
    "mamba": ("mamba_ssm.ops.triton.ssd_combined",),
    "trifast": ("trifast",),
    "flag_gems": ("flag_gems",),
}
"""Modules that each workload of ``library_program.py`` imports, read from disk before the first side so that it does
not pay for that."""

LIBRARIES = ("fla", "liger_kernel")

TRITON, CACHED, FIRST = "triton", "triton_cached", "first_config"
BACKGROUND, SECOND, WAIT = "background", "second_start", "wait"
SIDES = {
    TRITON: "Triton alone, from nothing",
    CACHED: "Triton again, its winners and its machine code cached",
    FIRST: "Triton alone, each list cut to its first config",
    BACKGROUND: "`ktuned run`, from nothing; then until all keys are tuned",
    SECOND: "`ktuned run` once more",
    WAIT: "`ktuned run --wait`, from nothing",
}

WAIT_GOAL, FIRST_STEP_GOAL, SECOND_FIRST_GOAL, SECOND_STEADY_GOAL = 0.6, 1.2, 1.1, 1.02
DIFFERENCE_GOAL = 0.02
"""Outputs in bfloat16 differ by so much of their largest value from those of torch in float32."""

SETTLED_S = 20.0
"""With nothing queued or running for so long, no key follows: the daemon takes records in within a second."""
STOP_DEADLINE_S = 30.0
_LOOK_S = 0.1

_ACTIVE = {"queued", "running"}


class Unfinished(Exception):
    """A program that was stopped, or failed; the message says how."""


@dataclass
class Notes:
    """Figures by program and side; each is written to a file as soon as it is known."""

    directory: Path
    figures: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def add(self, program: str, side: str, **figures: Any) -> None:
        """Add figures to those of one side."""
        self.figures.setdefault((program, side), {}).update(figures)
        line = json.dumps({"program": program, "side": side, **figures})
        with (self.directory / "libraries.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line if len(line) < 400 else f"{line[:400]} …", file=sys.stderr, flush=True)

    def figure(self, program: str, side: str, name: str) -> Any:
        """Return a figure, or ``None`` where there is none."""
        return self.figures.get((program, side), {}).get(name)


@dataclass
class Place:
    """One side's own state: Triton's cache, and the daemon's home. Both are empty when it is made."""

    directory: Path

    @classmethod
    def make(cls, below: Path, name: str) -> "Place":
        """Make a place of its own; its path is short, because a socket's must be."""
        directory = below / name
        directory.mkdir(parents=True)
        return cls(directory)

    @property
    def daemon(self) -> dict[str, str]:
        """The variables by which programs find this place's daemon, or start one."""
        return variables(self.directory)

    def environment(self) -> dict[str, str]:
        """Return the environment of a program that has its state here."""
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {
            **installed_environment(),
            **self.daemon,
            "PYTHONPATH": paths,
            "TRITON_CACHE_DIR": str(self.directory / "cache"),
            # Where trifast and FlagGems keep their winners.
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "FLAGGEMS_CACHE_DIR": str(self.directory / "flag_gems"),
        }

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs of the daemon, none where it does not answer."""
        with Client(self.daemon["KTUNED_SOCKET"], deadline_s=PATIENT_S) as client:
            try:
                return list(client.call("jobs", limit=2000)["jobs"])
            except (DaemonError, DaemonUnavailable):
                return []

    def stop_daemon(self) -> None:
        """Stop the daemon, if one runs."""
        command = [sys.executable, "-m", "ktuned", "stop"]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                env=self.environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=STOP_DEADLINE_S,
                check=False,
            )


class Tuned:
    """Watches the jobs of a place's daemon, to find out when all keys are tuned.

    Args:
        place: whose daemon is asked.
        expected: number of keys that Triton alone tuned; 0 if that is not known.
    """

    def __init__(self, place: Place, expected: int) -> None:
        self._place = place
        self._expected = expected
        self._changed = perf_counter()
        self._states: list[tuple[Any, ...]] = []
        self.jobs: list[dict[str, Any]] = []

    @property
    def changed(self) -> float:
        """Time at which the state of a job last changed."""
        return self._changed

    @property
    def keys(self) -> int:
        """Number of keys that are tuned."""
        return len({(job["kernel"], json.dumps(job["problem"])) for job in self.jobs if job["state"] == "done"})

    def look(self) -> bool:
        """Read the jobs; return whether nothing more is to come."""
        self.jobs = self._place.jobs()
        states = [(job["id"], job["state"]) for job in self.jobs]
        if states != self._states:
            self._states, self._changed = states, perf_counter()
        if any(job["state"] in _ACTIVE for job in self.jobs):
            self._changed = perf_counter()
            return False
        return bool(self._expected and self.keys >= self._expected) or perf_counter() - self._changed > SETTLED_S


def run_script(
    notes: Notes,
    program: str,
    side: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
) -> None:
    """Run a program and note its result, also of one that was stopped.

    Raises:
        Unfinished: it ended with an error, or its time was over.
    """
    said = notes.directory / f"{program}-{side}"
    began = perf_counter()
    with said.with_suffix(".out").open("wb") as out, said.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(environment), start_new_session=True
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
            status = process.poll()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    result = {"process_s": perf_counter() - began} if status == 0 else {}
    for line in said.with_suffix(".out").read_text(errors="replace").splitlines():
        if line.startswith("{"):
            with suppress(ValueError):
                result |= json.loads(line)
    errors = said.with_suffix(".err").read_text(errors="replace")
    left_alone = [line.strip() for line in errors.splitlines() if "left alone" in line]
    notes.add(program, side, **result, **({"said_left_alone": left_alone} if left_alone else {}))
    if status is None:
        raise Unfinished(f"stopped after {limit_s:g} s")
    if status:
        raise Unfinished(f"status {status}: {' / '.join(errors.strip().splitlines()[-2:])}"[:300])


@dataclass
class Sides:
    """The sides of one program, run one after the other."""

    notes: Notes
    program: str
    home: Path
    limit_s: float
    steps: int
    _places: dict[str, Place] = field(default_factory=dict)

    def run(self, sides: Sequence[str]) -> None:
        """Run sides in their order; the next one is run, too, when one fails."""
        try:
            for side in sides:
                try:
                    self._run_side(side)
                except Unfinished as reason:
                    self.notes.add(self.program, side, ended=str(reason))
        finally:
            for place in self._places.values():
                place.stop_daemon()
                shutil.rmtree(place.directory, ignore_errors=True)

    def _run_side(self, side: str) -> None:
        if side in (TRITON, FIRST):
            self._alone(side, self._new(side), *(["--first-config"] if side == FIRST else []))
        elif side == CACHED:
            self._alone(side, self._old(TRITON))
        elif side == BACKGROUND:
            place = self._new(side)
            try:
                self._under_ktuned(side, place)
            finally:
                # A program that was stopped has recorded keys, too.
                self._wait_until_tuned(side, place)
        elif side == SECOND:
            self._under_ktuned(side, self._old(BACKGROUND))
        else:
            place = self._new(side)
            try:
                self._under_ktuned(side, place, "--wait")
            finally:
                self._note_jobs(side, self._look_once(place))
                place.stop_daemon()

    def _new(self, side: str) -> Place:
        place = self._places[side] = Place.make(self.home, f"{self.program}-{side}")
        return place

    def _old(self, side: str) -> Place:
        if side not in self._places:
            raise Unfinished(f"there is no side {side!r} before it")
        return self._places[side]

    def _alone(self, side: str, place: Place, *options: str) -> None:
        # FLA asks Triton to cache its winners, Liger does not.
        environment = place.environment() | {"TRITON_CACHE_AUTOTUNING": "1"}
        run_script(self.notes, self.program, side, [*self._script(), *options], environment, self.limit_s)

    def _under_ktuned(self, side: str, place: Place, *options: str) -> None:
        command = [sys.executable, "-m", "ktuned", "run", *options, *self._script()]
        run_script(self.notes, self.program, side, command, place.environment(), self.limit_s)

    def _wait_until_tuned(self, side: str, place: Place) -> None:
        tuned = Tuned(place, self._expected())
        began = perf_counter()
        while not (is_over := tuned.look()) and perf_counter() - began < self.limit_s:
            Event().wait(_LOOK_S)
        self.notes.add(self.program, side, tuned_after_s=max(0.0, tuned.changed - began), all_ended=is_over)
        self._note_jobs(side, tuned)

    def _look_once(self, place: Place) -> Tuned:
        tuned = Tuned(place, self._expected())
        tuned.look()
        return tuned

    def _note_jobs(self, side: str, tuned: Tuned) -> None:
        expected = self._expected()
        left = {"keys_left": expected - tuned.keys} if expected else {}
        self.notes.add(self.program, side, keys_tuned=tuned.keys, **left, jobs=tuned.jobs)

    def _expected(self) -> int:
        return int(self.notes.figure(self.program, TRITON, "keys") or 0)

    def _script(self) -> list[str]:
        return [sys.executable, str(ROOT / "benchmarks/library_program.py"), self.program, "--steps", str(self.steps)]


def time_rows(notes: Notes, program: str, sides: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each side of a program: its times, beside Triton alone, or with its winners cached."""
    rows = []
    for side in sides:
        figures = notes.figures.get((program, side), {})
        rows.append(
            {
                "what": side,
                "first step s": figures.get("first_step_s"),
                "of triton": ratio(figures.get("first_step_s"), notes.figure(program, TRITON, "first_step_s")),
                "process s": figures.get("process_s"),
                "of triton's": ratio(figures.get("process_s"), notes.figure(program, TRITON, "process_s")),
                "steady ms": figures.get("steady_ms"),
                "of cached": ratio(figures.get("steady_ms"), notes.figure(program, CACHED, "steady_ms")),
            }
        )
    return rows


def outcome_rows(notes: Notes, program: str, sides: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each side of a program: what became of its keys, its numbers, and its memory."""
    rows = []
    for side in sides:
        figures = notes.figures.get((program, side), {})
        rows.append(
            {
                "what": side,
                "all tuned after s": figures.get("tuned_after_s"),
                "keys tuned": figures.get("keys_tuned", figures.get("keys")),
                "keys left": figures.get("keys_left"),
                "left alone": len(figures.get("said_left_alone", ())),
                "difference": figures.get("difference"),
                "peak MiB": figures.get("peak_mib"),
                "ended": figures.get("ended", ""),
            }
        )
    return rows


def goals_of(notes: Notes, program: str) -> list[Goal]:
    """Return the goals of one program, beside its figures."""

    def beside(side: str, other: str, name: str) -> float | None:
        return ratio(notes.figure(program, side, name), notes.figure(program, other, name))

    differences = [figures.get("difference") for (of, _), figures in notes.figures.items() if of == program]
    known = [difference for difference in differences if difference is not None]
    return [
        Goal("--wait / Triton alone, first step", beside(WAIT, TRITON, "first_step_s"), WAIT_GOAL),
        Goal("--wait / Triton alone, whole process", beside(WAIT, TRITON, "process_s"), WAIT_GOAL),
        Goal("first step / with first configs", beside(BACKGROUND, FIRST, "first_step_s"), FIRST_STEP_GOAL),
        Goal("keys left, background", notes.figure(program, BACKGROUND, "keys_left"), 0),
        Goal("keys left, --wait", notes.figure(program, WAIT, "keys_left"), 0),
        Goal("second start's first step / Triton's", beside(SECOND, CACHED, "first_step_s"), SECOND_FIRST_GOAL),
        Goal("second start's steady step / Triton's", beside(SECOND, CACHED, "steady_ms"), SECOND_STEADY_GOAL),
        Goal("largest difference from torch", worst(known), DIFFERENCE_GOAL),
    ]


def goal_rows(program: str, goals: Sequence[Goal]) -> list[dict[str, Any]]:
    """Return a row for each goal."""
    return [
        {"what": f"{program}: {goal.name}", "figure": goal.figure, "at most": goal.limit, "goal": goal.verdict}
        for goal in goals
    ]


def worst(differences: Sequence[float]) -> float | None:
    """Return the largest difference, or one that is not a number: max() alone would pass over that."""
    return max(differences, key=lambda difference: (difference != difference, difference), default=None)


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Return a ratio, where both are known."""
    return ours / theirs if ours is not None and theirs else None


def measure(options: argparse.Namespace) -> None:
    """Run the programs, and show what is known after each: the run may end before the next one does."""
    absent = cuda_devices()
    if isinstance(absent, Absent):
        show("libraries", [{"what": f"skipped: {absent.message}"}], as_json=options.json)
        return
    with tempfile.TemporaryDirectory(prefix="kl-") as name:
        notes = Notes(options.out or Path(name))
        notes.directory.mkdir(parents=True, exist_ok=True)
        for program in options.only:
            try:
                read_ahead("torch", "triton", "ktuned_triton", *IMPORTED[program])
            except Unavailable as reason:
                show(f"libraries: {program}", [{"what": f"skipped: {reason}"}], as_json=options.json)
                continue
            Sides(notes, program, Path(name), options.limit, options.steps).run(options.sides)
            show(f"times: {program}", time_rows(notes, program, options.sides), as_json=options.json)
            show(f"outcomes: {program}", outcome_rows(notes, program, options.sides), as_json=options.json)
            show(f"goals: {program}", goal_rows(program, goals_of(notes, program)), as_json=options.json)


def names_among(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser for an option that lists some of the known names, separated by commas."""

    def read(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        # In the order in which they must be run.
        return [name for name in known if name in names]

    return read


def main() -> None:
    """Take the census of libraries, or measure the programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--adopt", nargs="*", metavar="MODULE", help=f"list the functions of libraries (default: {' '.join(LIBRARIES)})"
    )
    parser.add_argument("--target", type=int, default=90, choices=sorted(MODELS), help="made-up device (%(default)s)")
    parser.add_argument("--all", action="store_true", help="with --adopt: a row for each function, not for odd ones")
    programs, sides = [*IMPORTED], [*SIDES]
    parser.add_argument("--only", type=names_among(programs), default=programs, metavar=",".join(programs))
    parser.add_argument("--sides", type=names_among(sides), default=sides, metavar=",".join(sides))
    parser.add_argument("--limit", type=float, default=150.0, metavar="SECONDS", help="of each process (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="steps of which the steady one is the median")
    parser.add_argument("--out", type=Path, metavar="DIRECTORY", help="keep each figure as soon as it is known")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.adopt is None:
        measure(options)
        return
    for title, rows in adoption_rows(options.adopt or LIBRARIES, options.target, every=options.all):
        show(title, rows, as_json=options.json)


if __name__ == "__main__":
    main()
