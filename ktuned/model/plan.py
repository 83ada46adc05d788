"""Plans of jobs: strategy, seed, preset, budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from ktuned.model.objective import LATENCY, with_numerics
from ktuned.model.record import Record, record
from ktuned.model.values import Config


@record
class Preset(Record):
    """Thoroughness of measurements.

    ``warmup`` untimed runs; then batches until the 95 % confidence interval of the median is within 1 %, at least
    ``repetitions`` runs and at most ``timing_s`` seconds; the best ``finalists`` are measured again in
    ``finalist_rounds`` interleaved rounds, and in up to ``most_rounds`` where these contradict each other. When nothing
    but a compile is left, it may take ``straggler_times`` as long as the longest other one. Where numerics are exact,
    outputs are compared on so many ``inputs``: the problem's own, six hard ones, and other random numbers.
    """

    name: str
    warmup: int
    repetitions: int
    timing_s: float
    finalists: int
    finalist_rounds: int
    most_rounds: int = 0
    straggler_times: float | None = None
    inputs: int = 9


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("fast", 1, 5, timing_s=0.1, finalists=2, finalist_rounds=3, straggler_times=2, inputs=8),
        Preset("default", 2, 10, timing_s=0.5, finalists=5, finalist_rounds=5, most_rounds=15),
        Preset("thorough", 5, 20, timing_s=2.0, finalists=10, finalist_rounds=9, most_rounds=27, inputs=15),
    )
}

DEFAULT_TRIALS = 1000
"""Default limit of a job's trials: enough for most spaces, and an end for endless ones."""


UNTIL = ("budget", "converged")
"""Ends of a job: its budget, or the point before at which more than 1 % of improvement is unlikely."""


@record
class Plan(Record):
    """Plan of a job for a space: objective, strategy, seed, preset, budgets; or only compiling.

    ``until`` is in :data:`UNTIL`, ``objective`` a text of :mod:`ktuned.model.objective`. ``configs`` are tried in place
    of the space that they are part of; with ``again``, known measurements are repeated; with ``no_share`` nothing that
    others share is used, and nothing of it is shared. With ``keep_going`` a job whose configs all fail alike goes on.
    ``anchor`` is the config to whose bits exact numerics are to keep, once its own are known.
    """

    strategy: str = "auto"
    seed: int = 0
    preset: str = "default"
    trials: int = DEFAULT_TRIALS
    seconds: float | None = None
    early_stop: float = 3.0
    deadlines: Mapping[str, float] = field(default_factory=dict)
    compile_only: bool = False
    until: str = "budget"
    configs: tuple[Config, ...] = ()
    again: bool = False
    objective: str = LATENCY
    no_share: bool = False
    keep_going: bool = False
    anchor: Config | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return plain data; :meth:`from_wire` rebuilds it. What kernel files need not have is left out if unset.

        Digests of kernels are made of it: they stay what they were before there were such fields.
        """
        plain = dataclasses.asdict(self)
        plain["configs"] = [dict(config) for config in self.configs]
        plain["anchor"] = None if self.anchor is None else dict(self.anchor)
        unset = {"configs": [], "again": False, "objective": LATENCY, "no_share": False, "keep_going": False}
        unset |= {"anchor": None}
        return {name: value for name, value in plain.items() if name not in unset or value != unset[name]}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Plan:
        """Rebuild a plan from :meth:`to_wire`'s data."""
        return cls(**{**data, "configs": tuple(data.get("configs", ()))})


@record
class PlanDefaults(Record):
    """A project's budgets for kernel files that set none of their own; ``None`` leaves ktuned's."""

    preset: str | None = None
    trials: int | None = None
    seconds: float | None = None
    numerics: str | None = None

    def apply_to(self, plan: Plan, given: Collection[str]) -> Plan:
        """Return a plan with these defaults, except where the kernel file gave a value (``given``, by name)."""
        wanted = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        wanted = {name: value for name, value in wanted.items() if name not in given}
        objective = with_numerics(plan.objective, wanted.pop("numerics", None))
        return dataclasses.replace(plan, objective=objective, **wanted)
