"""Sides of a comparison with a peer: what each has taken and found, in processes that are timed from their start."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.private_daemon import installed_environment

ROOT = Path(__file__).parent.parent

Config = Mapping[str, Any]

SAME = 1.01
"""Two medians of one kernel differ by as much from one process to the next."""


@dataclass
class Side:
    """One tool's figures, as far as they are known: seconds, the config that won, and its median by one timer in µs.

    ``cold_s`` counts the start of all processes and their imports, ``warm_s`` the tuning in processes that run.
    """

    tool: str
    cold_s: float | None = None
    warm_s: float | None = None
    winner: Config | None = None
    winner_us: float | None = None
    configs: int | None = None


@dataclass(frozen=True)
class Goal:
    """A figure, where it is known, and the most that it may be."""

    name: str
    figure: float | None
    limit: float | None

    @property
    def is_met(self) -> bool | None:
        """True if it is met; ``None`` where that is not known."""
        return None if self.figure is None or self.limit is None else self.figure <= self.limit

    @property
    def verdict(self) -> str:
        """Whether it is met, as a word."""
        return {None: "unknown", True: "met", False: "NOT MET"}[self.is_met]

    def __str__(self) -> str:
        return f"{self.name} {_number(self.figure)} (at most {_number(self.limit)}: {self.verdict})"


@dataclass
class Comparison:
    """ktuned beside a peer. Its figures are filled in as they are measured, so that a run that fails has some.

    ``warm_goal`` is a ratio to the peer; ``goals`` are further ones, ``steps`` the seconds of each step.
    """

    what: str
    ours: Side
    theirs: Side
    cold_goal: float
    warm_goal: float | None = None
    goals: list[Goal] = field(default_factory=list)
    steps: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Take the time of a step, which is shown even where its figures are missing."""
        began = perf_counter()
        try:
            yield
        finally:
            self.steps[name] = perf_counter() - began
            print(f"{self.what}: {name}: {self.steps[name]:.1f} s", file=sys.stderr, flush=True)

    def rows(self, ended: str = "") -> list[dict[str, Any]]:
        """Return a row for each side, one for the ratios and goals, and one for where the time went.

        ``ended`` says why the figures are incomplete.
        """
        rows: list[dict[str, Any]] = [
            {
                "what": f"{self.what}: {side.tool}",
                "configs": side.configs,
                "cold_s": side.cold_s,
                "warm_s": side.warm_s,
                "winner_us": side.winner_us,
                "config": " ".join(f"{name}={value}" for name, value in (side.winner or {}).items()),
            }
            for side in (self.theirs, self.ours)
        ]
        cold, warm, winner = (
            _ratio(getattr(self.ours, name), getattr(self.theirs, name)) for name in ("cold_s", "warm_s", "winner_us")
        )
        goals = [Goal("cold", cold, self.cold_goal), Goal("winner", winner, SAME), *self.goals]
        if self.warm_goal is not None:
            goals.append(Goal("warm", warm, self.warm_goal))
        verdicts = {goal.is_met for goal in goals}
        verdict = "NOT MET" if False in verdicts else "unfinished" if ended or None in verdicts else "met"
        rows.append(
            {
                "what": f"{self.what}: ktuned / peer ({verdict})",
                "configs": _ratio(self.ours.configs, self.theirs.configs),
                "cold_s": cold,
                "warm_s": warm,
                "winner_us": winner,
                "config": "; ".join([*map(str, goals), *filter(None, [ended])]),
            }
        )
        steps = "; ".join(f"{name} {seconds:.1f} s" for name, seconds in self.steps.items())
        rows.append({**dict.fromkeys(rows[0]), "what": f"{self.what}: where the time went", "config": steps})
        return rows


class Unavailable(Exception):
    """A comparison cannot be made here; the message is the reason."""


class Script:
    """A Python script in a process of its own, which prints its results as lines of JSON.

    Bytecode is kept, as after an installer: a peer's import must not compile its sources.
    """

    def __init__(self, script: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        self._name = " ".join([script.name, *arguments])
        self._began = perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**installed_environment(), "PYTHONPATH": paths, **(environment or {})},
            start_new_session=True,
        )

    def result(self) -> tuple[float, dict[str, Any]]:
        """Return the next result, and the seconds from the process's start to it.

        Raises:
            RuntimeError: the process ended without it.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return perf_counter() - self._began, json.loads(line)
            sys.stderr.write(line)
        raise RuntimeError(f"{self._name} ended with status {self._process.wait()}")

    def __enter__(self) -> "Script":
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what is left of it and its children: its results are there, or nothing more is wanted."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def result_of(
    script: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> tuple[float, dict[str, Any]]:
    """Return the only result of a script, and the seconds from its start to it.

    Raises:
        RuntimeError: it ends without a result.
    """
    with Script(script, *arguments, environment=environment) as running:
        return running.result()


def read_ahead(*modules: str) -> None:
    """Import modules in a process of their own, so that no side pays for reading their files from the disk, or for
    compiling them, which an installer does. ktuned's own are compiled whole, because its processes import others.

    Raises:
        Unavailable: one cannot be imported.
    """
    own = ["ktuned", "ktuned_client", *(module for module in modules if module.startswith("ktuned_"))]
    places = f"[place for module in {own} for place in sys.modules[module].__path__]"
    compiling = f"for place in {places}: compileall.compile_dir(place, quiet=1)"
    imported = ", ".join(["compileall", "sys", "ktuned.daemon.process", *own, *modules])
    command = [sys.executable, "-c", f"import {imported}\n{compiling}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=installed_environment())
    if done.returncode:
        raise Unavailable(done.stderr.strip().splitlines()[-1])


def in_turns(launches: Sequence[Any], device: str, rounds: int) -> list[float]:
    """Return the median of each launch's latency in µs, all timed by one timer, in turns."""
    from statistics import median

    from ktuned.measuring.cuda_timer import EVENTS, CudaTimer
    from ktuned.measuring.race import RaceRules
    from ktuned.measuring.timed_launches import TimedLaunches
    from ktuned.model import PRESETS

    timer = CudaTimer(device, EVENTS)
    samples: list[list[float]] = [[] for _ in launches]
    for turn in range(rounds):
        for place in range(len(launches)):
            chosen = (place + turn) % len(launches)
            timing = timer.time_launches(TimedLaunches(launches[chosen]), RaceRules(PRESETS["default"]))
            samples[chosen].append(timing.samples.median_us)
    return [median(values) for values in samples]


def latencies_us(kernel_file: Path, configs: Sequence[Config], rounds: int) -> list[float]:
    """Return the medians of a kernel file's configs, compiled in this process and timed in turns.

    Raises:
        Unavailable: there is no device.
        RuntimeError: a config does not compile.
    """
    from benchmarks.direct import Space, compiled_launch
    from ktuned.backends import Absent, Registry
    from ktuned.checking.problem_data import ProblemData

    space = Space.of(kernel_file)
    found = Registry().load(space.backend).devices()
    if isinstance(found, Absent):
        raise Unavailable(found.message)
    device = found[0]
    data = ProblemData(space.kernel, space.kernel.list_problems()[0], device)
    launches = [compiled_launch(space, config, device, data) for config in configs]
    return in_turns(launches, device.name, rounds)


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
