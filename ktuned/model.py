"""The plain values that every part of ktuned speaks of: problems, configs, devices, trials, jobs, winners.

All are frozen and hold only what MessagePack and JSON can carry, so that the same fields appear in the
protocol, in ``--json`` and in exports. This module imports the standard library alone: workers import it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

Scalar = bool | int | float | str
"""What a problem or a config may hold."""

Problem = Mapping[str, Scalar]
Config = Mapping[str, Scalar]

MEASURING_VERSION = 1
"""Raised whenever the way of measuring changes, so that figures of two ways are never compared."""


def canonical(values: Mapping[str, Any]) -> str:
    """Return the one text that identifies a flat map: JSON with sorted keys and no spaces."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class Outcome(StrEnum):
    """How a trial ended; each trial has exactly one."""

    MEASURED = "measured"
    SLOWER = "slower"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    UNSUPPORTED = "unsupported"
    MISMATCH = "mismatch"
    LAUNCH_ERROR = "launch_error"
    CRASHED = "crashed"
    HUNG = "hung"
    CONTENDED = "contended"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


RETRIED_BY_NEXT_JOB = frozenset({Outcome.CONTENDED, Outcome.CANCELLED, Outcome.INTERRUPTED})
"""Outcomes that say nothing about the config: the next job that meets it tries again."""


class Status(StrEnum):
    """What kind of answer a lookup got, best first."""

    FRESH = "fresh"
    STALE = "stale"
    NEAR = "near"
    DEFAULT = "default"
    UNKNOWN = "unknown"


class JobState(StrEnum):
    """Where a job stands; the next daemon takes ``queued`` and ``running`` ones up, and lets ``paused`` ones wait."""

    QUEUED = "queued"
    PAUSED = "paused"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Priority(IntEnum):
    """Which job goes first; the gaps leave room for finer steps.

    Measuring again what a new driver or toolchain may have changed; sweeps; lookups; a save; somebody who named what
    to tune; somebody who waits for it.
    """

    VERIFY = 50
    BACKGROUND = 100
    ASKED = 200
    SAVED = 300
    REQUESTED = 350
    WAITED_FOR = 400


MAX_PRIORITY = 999
"""The highest that anybody may ask for: ranks are bounded, so that what has waited long enough passes them."""


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that a kernel can run on, as a backend found it.

    ``name`` is its seat on this machine (``cpu:0``), ``model`` what winners are kept for, ``target`` what
    compilers must aim at, ``fingerprint`` the driver and whatever else can change a kernel's speed.
    """

    name: str
    model: str
    target: str
    fingerprint: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.name.partition(":")[0]

    def to_wire(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_wire` reads."""
        return {"name": self.name, "model": self.model, "target": self.target, "fingerprint": dict(self.fingerprint)}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Device:
        """Rebuild a device from :meth:`to_wire`'s data."""
        return cls(data["name"], data["model"], data["target"], dict(data["fingerprint"]))


@dataclass(frozen=True, slots=True)
class Preset:
    """How thoroughly to measure.

    ``warmup`` untimed runs; then batches until the 95 % confidence interval of the median is within 1 %, at least
    ``repetitions`` runs and at most ``timing_s`` seconds; the best ``finalists`` are measured again in
    ``finalist_rounds`` interleaved rounds.
    """

    name: str
    warmup: int
    repetitions: int
    timing_s: float
    finalists: int
    finalist_rounds: int


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("fast", warmup=1, repetitions=5, timing_s=0.1, finalists=2, finalist_rounds=3),
        Preset("default", warmup=2, repetitions=10, timing_s=0.5, finalists=5, finalist_rounds=5),
        Preset("thorough", warmup=5, repetitions=20, timing_s=2.0, finalists=10, finalist_rounds=9),
    )
}

DEFAULT_TRIALS = 1000
"""Trials a job may try when nobody set a budget: enough for most spaces, an end for the endless ones."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a job goes about a space: which strategy, with which seed, how thoroughly, how far; or only to compile it."""

    strategy: str = "random"
    seed: int = 0
    preset: str = "default"
    trials: int = DEFAULT_TRIALS
    seconds: float | None = None
    early_stop: float = 3.0
    deadlines: Mapping[str, float] = field(default_factory=dict)
    compile_only: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Return plain data; ``Plan(**data)`` rebuilds it."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What the daemon knows of a kernel: all that its file says, less the code.

    ``digest`` changes when old measurements stop being true; ``source_digest`` when old artifacts do;
    ``plan_digest`` when there is more to explore. ``stamps`` maps each file it was read from (absolute
    path) to the SHA-256 of its bytes, or to ``""`` for one that is missing.
    """

    project: str
    kernel: str
    file: str
    line: int
    backend: str
    digest: str
    source_digest: str
    plan_digest: str
    sources: tuple[str, ...]
    stamps: Mapping[str, str]
    problems: tuple[Problem, ...]
    default: Config | None
    specialize: tuple[str, ...] | None
    space: Mapping[str, Any]
    plan: Plan
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The full name, ``project:kernel``."""
        return f"{self.project}:{self.kernel}"

    @property
    def data_digest(self) -> str:
        """What decides the inputs, the reference and the checks: with it, measurements of equal artifacts are equal."""
        return str(self.extra.get("data_digest", self.digest))

    @property
    def parts(self) -> dict[str, str]:
        """What ``digest`` is made of: short digests by labels that begin with ``source:`` or ``python:``."""
        groups = (("source", self.extra.get("files", {})), ("python", self.extra.get("definitions", {})))
        return {f"{group}:{label}": digest for group, found in groups for label, digest in found.items()}

    def specialized(self, problem: Problem) -> dict[str, Scalar]:
        """Return the part of a problem that enters the key."""
        if self.specialize is None:
            return dict(problem)
        return {key: problem[key] for key in self.specialize}

    def to_wire(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_wire` reads; what is nested in it is the kernel's own."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"plan": self.plan.to_wire()}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> KernelInfo:
        """Rebuild from :meth:`to_wire`'s data."""
        values = dict(data)
        values["plan"] = Plan(**values["plan"])
        for key in ("sources", "problems"):
            values[key] = tuple(values[key])
        if values["specialize"] is not None:
            values["specialize"] = tuple(values["specialize"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Context:
    """Everything besides the config that a measurement depends on."""

    kernel: str
    problem: str
    device: str
    digest: str
    toolchain: str
    device_fingerprint: str
    measuring_version: int = MEASURING_VERSION


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What became of one config; times in the unit that their name ends in.

    ``detail`` holds what an outcome keeps besides: ``phase``, ``signal``, ``stderr``, ``stdout``,
    ``max_error``, ``mismatched_ratio``, ``samples``, ``content`` (SHA-256 of the artifact's files).
    """

    outcome: Outcome
    latency_us: float | None = None
    spread_us: float | None = None
    compile_s: float = 0.0
    lane_s: float = 0.0
    message: str = ""
    artifact: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """One config tried on one problem on one device model, as the store keeps it.

    ``outcome`` is ``None`` while it is under way; ``problem`` is the specialised one. ``updated`` is Unix time in s.
    """

    id: int
    job: int
    kernel: str
    problem: Problem
    device: str
    config: Config
    outcome: Outcome | None
    latency_us: float | None
    spread_us: float | None
    compile_s: float
    lane_s: float
    message: str
    artifact: str | None
    digest: str
    updated: float
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """Return the protocol's trial map; its values are the trial's own, for a copy of each sample takes its time."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}


@dataclass(frozen=True, slots=True)
class Job:
    """The tuning of one kernel and one problem on one device model, or only its compiling for one target.

    ``done`` counts configs whose outcome is known, ``total`` how many there will be (``None`` when the space
    cannot be counted), ``outcomes`` them by outcome. ``default_us`` and ``reference_us`` are what the declared
    default and the reference took. Times are Unix seconds.
    """

    id: int
    kernel: str
    problem: Problem
    device: str
    state: JobState
    priority: int
    reason: str
    plan: Plan
    created: float
    started: float | None = None
    finished: float | None = None
    done: int = 0
    total: int | None = None
    best_us: float | None = None
    default_us: float | None = None
    reference_us: float | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    message: str = ""
    cost: Mapping[str, float] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """Return the protocol's job map."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Winner:
    """The best valid trial of a (kernel, problem, device model), with the ground it was measured on."""

    context: Context
    trial: int
    problem: Problem
    config: Config
    latency_us: float
    spread_us: float | None
    artifact: str | None
    decided: float


@dataclass(frozen=True, slots=True)
class Root:
    """A watched directory: its project's name, its interpreter, what its workers' environment adds, how it is watched.

    ``polling`` is for file systems that tell of no changes made elsewhere (network file systems).
    """

    path: str
    name: str
    python: str
    env: Mapping[str, str] = field(default_factory=dict)
    polling: bool = False
