"""Replays a recorded space to a strategy, to find out without a device how well it would have searched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from time import process_time

from ktuned.model import Config, EarlierSearch, Outcome, Record, canonical, record
from ktuned.search.choice import Budget, choose_strategy
from ktuned.search.recorded import RecordedSpace

MAX_FRUITLESS = 1_000
"""A strategy counts as ended after this many questions without a proposal: it cannot be waiting for outcomes here."""


@record
class ReplayedTrial(Record):
    """A config and its objective; ``None`` if it failed."""

    config: Config
    objective: float | None


@record
class SearchRun(Record):
    """One replayed search.

    Attributes:
        strategy: The name of the strategy, as requested.
        chosen: The strategy that searched; for ``auto`` it depends on the budget.
        seed: The seed.
        tried: The trials in order, including failed configs.
        converged_after: The number of trials after which the strategy had converged, if it had.
        mean_s, worst_s: The strategy's processor time for a proposal.
    """

    strategy: str
    chosen: str
    seed: int
    tried: tuple[ReplayedTrial, ...]
    converged_after: int | None
    mean_s: float
    worst_s: float

    @cached_property
    def best(self) -> tuple[float | None, ...]:
        """The best objective after each trial; ``None`` as long as all trials have failed."""
        found = accumulate((math.inf if one.objective is None else one.objective for one in self.tried), min)
        return tuple(None if value == math.inf else value for value in found)

    def to_plain(self) -> dict[str, object]:
        """Return the data that ``--json`` prints."""
        return {"strategy": self.strategy, "seed": self.seed, "best": list(self.best)}

    def as_earlier_search(self) -> EarlierSearch:
        """Return the measurements in the form in which a similar search can learn from them."""
        measured = [(one.config, one.objective) for one in self.tried if one.objective is not None]
        return EarlierSearch(tuple(config for config, _ in measured), tuple(cost for _, cost in measured))

    def trials_within(self, goal: float) -> int | None:
        """Return the number of trials until the best objective was at most ``goal``; ``None`` if it never was."""
        return next((done for done, value in enumerate(self.best, 1) if value is not None and value <= goal), None)


def replay_search(
    recorded: RecordedSpace,
    strategy: str,
    seed: int,
    trials: int,
    first: Sequence[Config] = (),
    goal: float = -math.inf,
    earlier: Sequence[EarlierSearch] = (),
) -> SearchRun:
    """Search a recorded space for a number of trials, one at a time, or until an objective is at most ``goal``.

    Args:
        recorded: The recorded space.
        strategy: The strategy's name.
        seed: The strategy's seed.
        trials: The most trials.
        first: Configs to try before the strategy's own, as in a job with prior results. Configs that the space does not
            hold are left out.
        goal: The objective at which the search ends.
        earlier: Similar searches, the most similar first.

    Raises:
        UsageError: There is no such strategy, or it broke its promises.
    """
    objectives = recorded.objectives_by_config()
    chosen = choose_strategy(strategy, recorded.to_space(), seed, Budget(trials))
    chosen.strategy.recall(earlier)
    given = {text: config for config in first if (text := canonical(config)) in objectives}
    waiting = list(given.values())
    tried: list[ReplayedTrial] = []
    proposal_s: list[float] = []
    converged_after: int | None = None
    fruitless = 0
    best = math.inf
    while (
        len(tried) < trials and best > goal and (waiting or not chosen.strategy.finished) and fruitless < MAX_FRUITLESS
    ):
        began = process_time()
        if waiting:
            proposed: Sequence[Config] = [waiting.pop(0)]
        else:
            proposed = [config for config in chosen.strategy.ask(1) if canonical(config) not in given]
        for config in proposed:
            value = objectives[canonical(config)]
            outcome = Outcome.LAUNCH_ERROR if value is None else Outcome.MEASURED
            chosen.strategy.tell(config, outcome, value)
            tried.append(ReplayedTrial(config, value))
            best = best if value is None else min(best, value)
        proposal_s.append(process_time() - began)
        fruitless = 0 if proposed else fruitless + 1
        if converged_after is None and chosen.strategy.converged:
            converged_after = len(tried)
    return SearchRun(
        strategy,
        chosen.name,
        seed,
        tuple(tried),
        converged_after,
        sum(proposal_s) / max(1, len(proposal_s)),
        max(proposal_s, default=0.0),
    )


def mean_relative_best(runs: Sequence[SearchRun], optimum: float, trials: int) -> float | None:
    """Return the mean of best ÷ optimum after a number of trials; ``None`` if a run had measured nothing by then."""
    found = [run.best[min(trials, len(run.best)) - 1] if run.best else None for run in runs]
    known = [value for value in found if value is not None]
    if len(known) < len(found) or not known or not optimum:
        return None
    return sum(known) / len(known) / optimum
