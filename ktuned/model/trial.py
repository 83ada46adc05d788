"""Trials and winners, and the context of a measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ktuned.model.keys import DeviceModel, KernelName, KeyProblem, WinnerKey
from ktuned.model.objective import LATENCY, Objective, figure_of, is_exact
from ktuned.model.record import Record, record
from ktuned.model.values import Config, Outcome, Problem

MEASURING_VERSION = 4
"""Raised whenever measuring changes, so that latencies that were measured in two ways are never compared."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a measurement depends on, except the config."""

    kernel: KernelName
    problem: KeyProblem
    device: DeviceModel
    digest: str
    toolchain: str
    device_fingerprint: str
    measuring_version: int = MEASURING_VERSION

    @property
    def key(self) -> WinnerKey:
        """The key of the winner by latency, for which a measurement in this context competes."""
        return self.key_for(LATENCY)

    def key_for(self, objective: Objective) -> WinnerKey:
        """Return the key of the winner by an objective, for which a measurement in this context competes."""
        return WinnerKey(self.kernel, self.problem, self.device, objective)


@record
class TrialResult(Record):
    """Result of one config; the end of a name is the unit of its time.

    ``detail`` holds further facts of an outcome: ``phase``, ``signal``, ``stderr``, ``stdout``, ``max_error``,
    ``mismatched_ratio``, ``samples``, ``content`` (SHA-256 of the artifact's files).
    """

    outcome: Outcome
    latency_us: float | None = None
    spread_us: float | None = None
    compile_s: float = 0.0
    lane_s: float = 0.0
    message: str = ""
    artifact: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The kernel file's own figures, and the energy where it was measured."""
        return self.detail.get("metrics") or {}

    def figure(self, objective: Objective) -> float | None:
        """Return the figure by which an objective judges it, if it has one."""
        if is_exact(objective) and not self.detail.get("same_bits"):
            return None
        return figure_of(objective, self.latency_us, self.metrics)


@record
class Trial(Record):
    """One config tried on one problem on one device model, as the store keeps it.

    ``outcome`` is None while it runs. ``problem`` has only the values that enter the key. ``updated`` is a Unix time in
    s.
    """

    id: int
    job: int
    kernel: KernelName
    problem: Problem
    device: DeviceModel
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

    @property
    def metrics(self) -> Mapping[str, float]:
        """The kernel file's own figures, and the energy where it was measured."""
        return self.detail.get("metrics") or {}

    def figure(self, objective: Objective) -> float | None:
        """Return the figure by which an objective judges it, if it has one."""
        if is_exact(objective) and not self.detail.get("same_bits"):
            return None
        return figure_of(objective, self.latency_us, self.metrics)

    def to_wire(self) -> dict[str, Any]:
        """Return the protocol's trial map; it shares the trial's values, because copying samples takes time."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}


@record
class KnownConfig(Record):
    """A config and what a trial has found, without the details, which would take ten times as long to read.

    ``text`` is the config as canonical text; ``figure`` is by the objective that the reader asked for.
    """

    text: str
    config: Config
    outcome: Outcome
    figure: float | None = None
    compile_s: float = 0.0


@record
class Winner(Record):
    """The best valid trial of a (kernel, problem, device model) by an objective, with the context of its measurement.

    It ``is_final`` once a final round has decided it. ``note`` says why it is worse than the config that was served
    before.
    """

    context: Context
    trial: int
    problem: Problem
    config: Config
    latency_us: float
    spread_us: float | None
    artifact: str | None
    decided: float
    is_final: bool = False
    note: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    objective: Objective = LATENCY

    @property
    def key(self) -> WinnerKey:
        """The key of which it is the winner."""
        return self.context.key_for(self.objective)

    @property
    def figure(self) -> float | None:
        """The figure by which it won."""
        return figure_of(self.objective, self.latency_us, self.metrics)


@record
class EarlierSearch(Record):
    """Results of a search of the same kernel for another problem, or on another device.

    All costs are by one objective; less is better.
    """

    configs: tuple[Config, ...]
    costs: tuple[float, ...]
