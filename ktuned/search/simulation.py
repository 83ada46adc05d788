"""Replays a recorded space to a strategy: what it would have found, without a device."""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time

from ktuned.model import Outcome, Record, canonical, record
from ktuned.search.choice import Budget, choose
from ktuned.search.recorded import RecordedSpace

MAX_FRUITLESS = 1_000
"""Asks without a proposal after which a strategy is taken to have ended: every outcome is known at once here."""


@record
class Run(Record):
    """One search: the best objective after each trial, ``None`` as long as all failed; failed configs are trials.

    ``chosen`` is the strategy that worked, which for ``auto`` depends on the budget. ``converged_after`` is the trial
    after which it thought that little was left to find. ``worst_s`` and ``mean_s`` are its own processor time for a
    proposal.
    """

    strategy: str
    chosen: str
    seed: int
    best: tuple[float | None, ...]
    converged_after: int | None
    mean_s: float
    worst_s: float

    def to_plain(self) -> dict[str, object]:
        """Return what ``--json`` prints of it."""
        return {"strategy": self.strategy, "seed": self.seed, "best": list(self.best)}


def simulate(recorded: RecordedSpace, strategy: str, seed: int, trials: int) -> Run:
    """Search a recorded space for a number of trials, one at a time.

    Raises:
        UsageError: there is no such strategy, or it broke its promises.
    """
    objectives = recorded.by_config()
    chosen = choose(strategy, recorded.space(), seed, Budget(trials))
    best: list[float | None] = []
    spent: list[float] = []
    converged_after: int | None = None
    fruitless = 0
    while len(best) < trials and not chosen.strategy.finished and fruitless < MAX_FRUITLESS:
        began = process_time()
        proposed = chosen.strategy.ask(1)
        for config in proposed:
            value = objectives[canonical(config)]
            outcome = Outcome.LAUNCH_ERROR if value is None else Outcome.MEASURED
            chosen.strategy.tell(config, outcome, value)
            known = [entry for entry in (best[-1] if best else None, value) if entry is not None]
            best.append(min(known, default=None))
        spent.append(process_time() - began)
        fruitless = 0 if proposed else fruitless + 1
        if converged_after is None and chosen.strategy.converged:
            converged_after = len(best)
    return Run(
        strategy,
        chosen.name,
        seed,
        tuple(best),
        converged_after,
        sum(spent) / max(1, len(spent)),
        max(spent, default=0.0),
    )


def relative(runs: Sequence[Run], optimum: float, trials: int) -> float | None:
    """Return the mean of best ÷ optimum after a number of trials; ``None`` if some run had found nothing by then."""
    found = [run.best[min(trials, len(run.best)) - 1] if run.best else None for run in runs]
    known = [value for value in found if value is not None]
    if len(known) < len(found) or not known or not optimum:
        return None
    return sum(known) / len(known) / optimum
