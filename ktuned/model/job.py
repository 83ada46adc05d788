"""Jobs: their states, priorities and figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum, StrEnum
from typing import Any

from ktuned.model.keys import DeviceModel, KernelName, KeyProblem, WinnerKey, make_key_problem
from ktuned.model.objective import Objective
from ktuned.model.plan import Plan
from ktuned.model.record import Record, record
from ktuned.model.values import Problem


class JobState(StrEnum):
    """State of a job; the next daemon continues ``queued`` and ``running`` ones, and keeps ``paused`` ones waiting."""

    QUEUED = "queued"
    PAUSED = "paused"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Priority(IntEnum):
    """Levels of jobs, lowest first; the gaps leave room for finer steps.

    Measuring again after a change of driver or toolchain; sweeps; lookups; saves; tunings requested by name; tunings
    that a client waits for.
    """

    VERIFY = 50
    BACKGROUND = 100
    ASKED = 200
    SAVED = 300
    REQUESTED = 350
    WAITED_FOR = 400


MAX_PRIORITY = 999
"""Highest priority of a request: levels are bounded, so that a job that has waited long enough passes them."""


_NOTICE = "notice: "


def format_notice(sentence: str) -> str:
    """Return a sentence as a line of a job's message that :func:`find_notices` finds."""
    return f"{_NOTICE}{sentence}"


def find_notices(message: str) -> list[str]:
    """Return the notices in a job's message: what its author should know though the job ended well."""
    return [line.removeprefix(_NOTICE) for line in message.splitlines() if line.startswith(_NOTICE)]


@record
class Job(Record):
    """The tuning of one kernel and one problem on one device model, or only its compiling for one target.

    ``done`` counts configs with an outcome, ``total`` all configs (``None`` if the space cannot be counted),
    ``outcomes`` them by outcome. ``default_us`` and ``reference_us`` are the latencies of the declared default and the
    reference; the spreads are those of the final round, where it has been. ``best_figure`` and ``default_figure`` are
    the figures of the best config and of the default by another objective than latency. Times are Unix seconds.
    ``key_problem`` is ``None`` in jobs of older stores, which kept only the whole problem.
    """

    id: int
    kernel: KernelName
    problem: Problem
    device: DeviceModel
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
    best_spread_us: float | None = None
    default_us: float | None = None
    default_spread_us: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    message: str = ""
    cost: Mapping[str, float] = field(default_factory=dict)
    key_problem: KeyProblem | None = None
    best_figure: float | None = None
    default_figure: float | None = None

    @property
    def key(self) -> WinnerKey:
        """The key of the winner that the job looks for; jobs with equal keys do the same work."""
        problem = make_key_problem(self.problem) if self.key_problem is None else self.key_problem
        return WinnerKey(self.kernel, problem, self.device, self.objective)

    @property
    def objective(self) -> Objective:
        """The figure by which configs are judged."""
        return Objective(self.plan.objective)

    def to_wire(self) -> dict[str, Any]:
        """Return the protocol's job map."""
        wire = dataclasses.asdict(self)
        del wire["key_problem"]
        return wire | {"plan": self.plan.to_wire(), "objective": self.objective}
