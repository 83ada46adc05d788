"""Winners, and known results of configs, as the store keeps them."""

from __future__ import annotations

from collections.abc import Mapping

from ktuned.model import LATENCY, Config, FrozenStruct, Objective, Outcome, Problem, WinnerKey, select_figure
from ktuned.store.contexts import Context


class KnownConfig(FrozenStruct):
    """A config and its result, without the details, which would take ten times as long to read.

    ``text`` is the config as canonical text; ``figure`` is its figure by the objective that the reader asked for.
    """

    text: str
    config: Config
    outcome: Outcome
    figure: float | None = None
    compile_s: float = 0.0


class Winner(FrozenStruct):
    """The best valid trial of a (kernel, problem, device model) by an objective, with the context of its measurement.

    It ``is_final`` once it was decided by a final round. ``note`` says why it is worse than the config that was served
    before. ``decided`` is a Unix time in s.
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
    metrics: Mapping[str, float] = {}
    objective: Objective = LATENCY

    @property
    def key(self) -> WinnerKey:
        """The key whose winner it is."""
        return self.context.key_for(self.objective)

    @property
    def figure(self) -> float | None:
        """The figure by which it won."""
        return select_figure(self.objective, self.latency_us, self.metrics)
