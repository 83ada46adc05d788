"""The kernel file's own metrics of a config, and what the config costs in the search on the open problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from ktuned.ipc import replies
from ktuned.measuring.launch_observer import LaunchObserver, Restart
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import (
    FrozenStruct,
    KernelFileError,
    Objective,
    Outcome,
    TrialResult,
    convert_to_cost,
    needs_metric,
    select_figure,
)


class Costs(FrozenStruct):
    """Computes the costs of configs.

    Attributes:
        objective: the figure by which the search compares configs, without its numerics.
        metrics: returns the kernel file's own metrics of a config, by its latency in µs.
    """

    objective: Objective
    metrics: Callable[[float], Mapping[str, float]]

    @property
    def by_latency(self) -> Callable[[float], float | None] | None:
        """Returns the cost of a latency in µs; ``None`` if the latency itself is the objective."""
        return self.compute_cost if needs_metric(self.objective) else None

    def compute_cost(self, latency_us: float) -> float | None:
        """Return what a config costs by the objective; ``None`` if the kernel file's metric fails."""
        try:
            known = self.metrics(latency_us) if needs_metric(self.objective) else {}
        except KernelFileError:
            return None
        return convert_to_cost(self.objective, select_figure(self.objective, latency_us, known))

    def compute_cost_range(self, result: TrialResult) -> replies.CostRange | None:
        """Return a measured config's cost and its interval; ``None`` if its latency was not measured now."""
        latency_us, detail = result.latency_us, result.detail
        if result.outcome is not Outcome.MEASURED or latency_us is None:
            return None
        costs = [self.compute_cost(end) for end in (detail.timing.low_us, detail.timing.high_us) if end]
        known = sorted(cost for cost in costs if cost is not None)
        cost = self.compute_cost(latency_us)
        return None if cost is None or not known else replies.CostRange(cost, known[0], known[-1])


class FileMetrics(LaunchObserver):
    """Adds the kernel file's own metrics. If one fails, all of them are left out, and the message says why."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def complete_result(self, timed: TrialResult, launches: TimedLaunches, restart: Restart) -> TrialResult:
        """Add the metrics."""
        if timed.outcome is not Outcome.MEASURED or timed.latency_us is None:
            return timed
        try:
            metrics = self._costs.metrics(timed.latency_us)
        except KernelFileError as error:
            return replace(timed, message=error.message).add_facts("profile", metrics_fault=error.message)
        return replace(timed, metrics={**timed.metrics, **metrics})
