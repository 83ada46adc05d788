"""Jobs: their states, priorities and figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from ktuned.model.keys import DeviceModel, KernelName, KeyProblem, WinnerKey, key_problem
from ktuned.model.plan import Plan
from ktuned.model.values import Problem


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
class Job:
    """The tuning of one kernel and one problem on one device model, or only its compiling for one target.

    ``done`` counts configs whose outcome is known, ``total`` how many there will be (``None`` when the space
    cannot be counted), ``outcomes`` them by outcome. ``default_us`` and ``reference_us`` are what the declared
    default and the reference took. Times are Unix seconds. ``key_problem`` is ``None`` in jobs of older stores, which
    kept the whole problem alone: it stands for itself.
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
    key_problem: KeyProblem | None = None

    @property
    def key(self) -> WinnerKey:
        """The key of the winner that the job looks for; jobs with equal keys do the same work."""
        problem = key_problem(self.problem) if self.key_problem is None else self.key_problem
        return WinnerKey(KernelName(self.kernel), problem, DeviceModel(self.device))

    def to_wire(self) -> dict[str, Any]:
        """Return the protocol's job map."""
        wire = dataclasses.asdict(self)
        del wire["key_problem"]
        return wire
