"""The lead of a job: a winner that others share for its context. No IO.

The shared config is tried first, together with the configs that are served here. If it is as good here as where it was
found, the job needs no search, and its final round is among these few configs. If not, the search continues.
"""

from __future__ import annotations

from collections.abc import Iterable

from ktuned.model import (
    Config,
    Objective,
    Outcome,
    Trial,
    canonical,
    convert_to_cost,
    is_maximized,
    name_unit,
)
from ktuned.sharing import Candidate, confirms_cost


class SharedLead:
    """A shared candidate and its outcome here; without a candidate there is no lead.

    Args:
        candidate: The shared candidate, if there is one.
        served: The configs that lookups are answered with here.
        objective: The figure by which configs are judged.
        is_decisive: Whether this lead may end the job.

    Attributes:
        configs: The configs to try first, in order.
    """

    def __init__(
        self,
        candidate: Candidate | None = None,
        served: Iterable[Config] = (),
        *,
        objective: Objective,
        is_decisive: bool = False,
    ) -> None:
        self._candidate = candidate
        self._objective = objective
        self._is_decisive = is_decisive
        self._cost: float | None = None
        self._outcome: Outcome | None = None
        wanted = [] if candidate is None else [candidate.config, *served]
        self.configs = tuple({canonical(config): config for config in wanted}.values())
        self._shared = "" if candidate is None else canonical(candidate.config)

    def record_trial(self, trial: Trial) -> None:
        """Take note of the outcome of a trial, which may be the candidate's."""
        if self._shared and canonical(trial.config) == self._shared:
            self._outcome = trial.outcome
            is_measured = trial.outcome is Outcome.MEASURED
            self._cost = convert_to_cost(self._objective, trial.figure(self._objective)) if is_measured else None

    @property
    def ends_job(self) -> bool:
        """True if no search is needed."""
        return self._is_decisive and self._candidate is not None and confirms_cost(self._candidate.cost, self._cost)

    def describe_lead(self) -> str:
        """Return a sentence about the shared config's outcome here; empty without a config or an outcome."""
        if self._candidate is None or self._outcome is None:
            return ""
        theirs = self._format_figure(self._candidate.cost)
        if self._cost is None:
            return f"the shared config, {theirs} where it was found, ended as {self._outcome} here"
        ours = self._format_figure(self._cost)
        if self.ends_job:
            return f"the shared config holds here, {ours}, {theirs} where it was found; nothing else was searched"
        if not confirms_cost(self._candidate.cost, self._cost):
            return f"the shared config takes {ours} here, {theirs} where it was found; the search went on"
        return ""

    def _format_figure(self, cost: float) -> str:
        return f"{1 / cost if is_maximized(self._objective) else cost:.4g} {name_unit(self._objective)}"
