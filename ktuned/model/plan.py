"""Plans of jobs: what to search by, how thoroughly to measure, and when to end."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any, ClassVar

from ktuned.model.objective import LATENCY, with_numerics
from ktuned.model.record import Record, record
from ktuned.model.values import Config


@record
class Preset(Record):
    """How thorough measurements are.

    Attributes:
        warmup: untimed launches before the timed ones.
        repetitions: least number of timed launches; they go on until the 95 % confidence interval of the median is
            within 1 %.
        timing_s: longest time for that.
        finalists: best configs that are measured again, in interleaved rounds.
        finalist_rounds: rounds of these.
        most_rounds: most rounds, if earlier ones contradict each other.
        straggler_times: how many times as long as the longest other compile the last one may take, when the job waits
            for nothing else.
        inputs: with exact numerics, the inputs on which outputs are compared: the problem's own, six hard ones, and
            other random numbers.
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
"""Default limit of a job's trials: enough for most spaces, and it ends the search of endless ones."""


UNTIL = ("budget", "converged")
"""What ends a job: its budget, or already the point where an improvement of more than 1 % is unlikely."""


@record
class Plan(Record):
    """The plan of a job for one space.

    Attributes:
        until: one of :data:`UNTIL`.
        compile_only: compile and measure nothing.
        configs: tried instead of the whole space, of which they are a part.
        again: repeat measurements that are known.
        objective: a text of :mod:`ktuned.model.objective`.
        no_share: ignore the team store, and share nothing with it.
        keep_going: go on even if all configs fail in the same way.
        anchor: with exact numerics, the config whose bits all others must have; None until it is chosen.
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

    # Fields that were added later: digests of kernels are made from the plan, and a new field must not change them all.
    _omitted: ClassVar = ("configs", "again", "objective", "no_share", "keep_going", "anchor")

    def to_wire(self) -> dict[str, Any]:
        """Return plain data, from which :meth:`from_wire` rebuilds the plan."""
        return {**vars(self), **({"configs": list(self.configs)} if self.configs else {})}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Plan:
        """Rebuild a plan from the data of :meth:`to_wire`."""
        return cls(**{**data, "configs": tuple(data.get("configs", ()))})


@record
class PlanDefaults(Record):
    """A project's budgets for kernel files that set none of their own; None leaves ktuned's default."""

    preset: str | None = None
    trials: int | None = None
    seconds: float | None = None
    numerics: str | None = None

    def apply_to(self, plan: Plan, given: Collection[str]) -> Plan:
        """Return a plan with these defaults, except those that the kernel file has ``given`` itself, by name."""
        wanted = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        wanted = {name: value for name, value in wanted.items() if name not in given}
        objective = with_numerics(plan.objective, wanted.pop("numerics", None))
        return dataclasses.replace(plan, objective=objective, **wanted)
