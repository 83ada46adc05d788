"""Plans of jobs: how to search, how thoroughly to measure, and when to end."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import structs

from ktuned.model.frozen_struct import FrozenStruct
from ktuned.model.objective import JUDGED, LATENCY, with_numerics
from ktuned.model.values import Config


class Preset(FrozenStruct):
    """How thorough measurements are.

    Attributes:
        name: the preset's name.
        warmup: untimed launches before the timed ones.
        repetitions: least number of timed launches. More follow until the 95 % confidence interval of the median is
            within 1 %.
        timing_s: longest time for the timed launches of one config, in s.
        finalists: how many of the best configs are measured again, in interleaved rounds.
        finalist_rounds: how many such rounds there are.
        most_rounds: most rounds, if earlier ones contradict each other.
        straggler_times: when the job only waits for its last compile, how many times as long as the longest other
            compile it may take.
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
"""Default limit of a job's trials: enough for most spaces, and an end for searches of huge ones."""


UNTIL = ("budget", "converged")
"""When a job ends: at its budget, or earlier, when an improvement of more than 1 % is unlikely."""


class Plan(FrozenStruct):
    """The plan of a job for one space.

    Attributes:
        strategy: name of the search strategy.
        seed: seeds the search's random numbers.
        preset: name of the preset for measurements.
        trials: most trials.
        time_limit_s: longest time of the job; None for no limit.
        early_stop: gives up on configs that take this many times as long as the best config.
        deadlines: deadlines in s, by phase.
        compile_only: compile without measuring.
        until: one of :data:`UNTIL`.
        configs: the only configs to try; empty for the whole space.
        again: repeat measurements that are known.
        objective: a text of :mod:`ktuned.model.objective`.
        anchor: with exact numerics, the config whose bits all others must have; None until it is chosen.
    """

    strategy: str = "auto"
    seed: int = 0
    preset: str = "default"
    trials: int = DEFAULT_TRIALS
    time_limit_s: float | None = None
    early_stop: float = 3.0
    deadlines: Mapping[str, float] = {}
    compile_only: bool = False
    until: str = "budget"
    configs: tuple[Config, ...] = ()
    again: bool = False
    objective: str = LATENCY
    anchor: Config | None = None

    @property
    def is_judged(self) -> bool:
        """True if configs are judged: each is measured in a process of its own that is not trusted, and none wins."""
        return self.objective == JUDGED


class PlanDefaults(FrozenStruct):
    """A project's budgets for kernel files that set none of their own; None stands for ktuned's default."""

    preset: str | None = None
    trials: int | None = None
    time_limit_s: float | None = None
    numerics: str | None = None

    def apply_to(self, plan: Plan, given: Collection[str]) -> Plan:
        """Return a plan with these defaults, except those that the kernel file has ``given`` itself, by name."""
        wanted = {name: value for name, value in structs.asdict(self).items() if value is not None}
        wanted = {name: value for name, value in wanted.items() if name not in given}
        objective = with_numerics(plan.objective, wanted.pop("numerics", None))
        return structs.replace(plan, objective=objective, **wanted)
