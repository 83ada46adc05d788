"""Earlier results that save a job work: where to begin, what to leave for last, what need not be measured again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import islice

import msgspec

from ktuned.catalog import Admission
from ktuned.model import (
    LATENCY,
    Config,
    Context,
    EarlierSearch,
    KernelInfo,
    KnownConfig,
    Objective,
    Outcome,
    Problem,
    Trial,
    Winner,
    canonical,
    cost_of,
    is_latency,
    sort_by_similarity,
)
from ktuned.store import Store
from ktuned.tuning.trial_detail import TrialDetail, rounds_name
from ktuned.tuning.trial_order import Order, begun_in_time, near_configs, order
from ktuned.tuning.work import Work

RECENT_CONTEXTS = 4
"""Earlier states of a kernel that predict the next one: after quick saves the newest has tried but few configs."""

MAX_PREDICTED = 4_000
"""Earlier results that are read for one job: some 30 ms on the loop, and half a megabyte on the way to the worker."""


BEST_OF_NEAREST = 6
"""The fastest configs of the nearest of them: its winner alone is rarely the best elsewhere, one of six often is."""

MAX_EARLIER = 4
"""Searches of other problems and devices that a strategy may learn from: it takes the nearest that hold enough."""

MAX_EARLIER_TRIALS = 200
"""Measurements of each, the fastest: what is slow elsewhere is slow here, and need not be known in detail."""

MANY_TRIALS = 64
"""Measured trials that are asked about at first when the fastest ones of the present space are looked for."""


def chosen(measured: Sequence[Trial], objective: Objective = LATENCY) -> Trial | None:
    """Return what won last among a context's measured trials: a final round's choice, or what has beaten it since.

    An earlier first figure below the choice's final one has beaten nothing: it was not measured beside it. Rounds by
    other figures than the latency may have been for another objective, with other finalists.
    """
    if not is_latency(objective):
        return min(measured, key=lambda trial: _cost(objective, trial.figure(objective)), default=None)
    finalists = [trial for trial in measured if TrialDetail.from_json(trial.detail).rounds]
    decided_at = max((trial.updated for trial in finalists), default=0.0)
    last = finalists + [trial for trial in measured if trial.updated > decided_at]
    return min(last, key=lambda trial: trial.latency_us or 0.0, default=None)


def _cost(objective: Objective, figure: float | None) -> float:
    cost = cost_of(objective, figure)
    return math.inf if cost is None else cost


async def admitted_prior_trials(
    store: Store,
    admission: Admission,
    kernel: KernelInfo,
    problem: Problem,
    context: Context,
    objective: Objective,
    limit: int,
    is_wanted: Callable[[Trial], bool] = lambda trial: True,
) -> list[Trial]:
    """Return the best measured trials of a context that are wanted, of the configs that the kernel's present space
    still holds.

    Raises:
        WorkerError: the space could not be asked.
    """
    many = max(MANY_TRIALS, limit)
    while True:
        measured = store.best_trials(context, many, objective=objective)
        wanted = [trial for trial in measured if is_wanted(trial)]
        verdicts = await admission.check_configs(kernel, problem, [trial.config for trial in wanted])
        found = [trial for trial, is_admitted in zip(wanted, verdicts, strict=True) if is_admitted]
        if len(found) >= limit or len(measured) < many:
            return found[:limit]
        many *= 4


async def restore(
    store: Store,
    admission: Admission,
    kernel: KernelInfo,
    problem: Problem,
    context: Context,
    objective: Objective,
    finalists: int,
    *,
    decided_only: bool = False,
) -> Winner | None:
    """Make the best known trial of a context its winner by an objective, if that is not so; return the winner made.

    An undone edit restores an old context with its winner. An edit of the space may have removed the winner's config:
    the best of those that are left follows it; with ``decided_only`` that must have been in a final round. A trial
    of a context that had no winner yet may be worse than what is served.

    Raises:
        WorkerError: the space could not be asked.
    """
    seated = store.get_winner(context.key_for(objective))
    if seated is not None and seated.context == context:
        (is_admitted,) = await admission.check_configs(kernel, problem, [seated.config])
        if is_admitted:
            return None
    name = rounds_name(kernel, objective)
    best = chosen(
        await admitted_prior_trials(store, admission, kernel, problem, context, objective, finalists), objective
    )
    if best is None:
        return None
    is_final = bool(best.detail.get(name))
    if decided_only and not is_final:
        return None
    return await store.decide_winner(best.id, objective=objective, is_final=is_final)


def earlier_searches(store: Store, winners: Sequence[Winner], objective: Objective) -> tuple[EarlierSearch, ...]:
    """Return what was measured in the contexts of the nearest winners, as costs by a job's objective."""
    searches = []
    for context in islice(dict.fromkeys(winner.context for winner in winners), MAX_EARLIER):
        found = store.measured_configs(context, MAX_EARLIER_TRIALS, objective=objective)
        known = [(one.config, cost) for one in found if (cost := cost_of(objective, one.figure)) is not None]
        searches.append(EarlierSearch(tuple(config for config, _ in known), tuple(cost for _, cost in known)))
    return tuple(searches)


class PriorResults:
    """The store's results that concern one job."""

    def __init__(self, work: Work, store: Store) -> None:
        self._work = work
        self._store = store
        self._compile_s: dict[str, float] = {}
        self._kept: set[str] = set()

    def expected_compile_s(self, config: Config) -> float:
        """Return what a config's compile took in an earlier state of the kernel; 0 if that is unknown."""
        return self._compile_s.get(canonical(config), 0.0)

    def order(self, served: Sequence[Config], lead: Sequence[Config] = (), *, slots: int = 1) -> Order:
        """Return the order in which to try configs; ``served`` are those that lookups were answered with."""
        context, objective = self._work.context, self._work.objective
        seated = self._store.get_winner(self._work.key)
        newest: dict[str, KnownConfig] = {}
        for known in self._store.load_past_searches(context, RECENT_CONTEXTS, MAX_PREDICTED, objective=objective):
            newest.setdefault(known.text, known)
            if known.compile_s:
                self._compile_s.setdefault(known.text, known.compile_s)
        past = list(newest.values())
        if objective != LATENCY:
            # Of those whose figure is unknown the fastest are as good a guess as any.
            past.sort(key=lambda known: _cost(objective, known.figure))
        plan = self._work.job.plan
        if len(past) <= plan.trials and plan.seconds is None:
            # All are tried. What is expected to be slow comes last, and may take longest to compile.
            measured = [known for known in past if known.outcome is Outcome.MEASURED]
            others = [known for known in past if known.outcome is not Outcome.MEASURED]
            past = begun_in_time(measured, slots, sum(known.compile_s for known in others)) + others
        winners = sort_by_similarity(self._work.key, self._store.list_winners(context.kernel))
        best = self._store.measured_configs(winners[0].context, BEST_OF_NEAREST) if winners else []
        near = near_configs(winners, [known.config for known in best])
        settled = self._store.failed_configs(context, MAX_PREDICTED)
        found = order(
            None if seated is None else seated.config, self._work.kernel.default, past, near, settled, served, lead
        )
        return msgspec.structs.replace(found, earlier=earlier_searches(self._store, winners, objective))

    def find_twin(self, content: str) -> Trial | None:
        """Return the trial of equal bytes, called alike, on equal data, if it has all figures.

        A job that is to measure ``again`` takes nothing over.
        """
        now = self._work.kernel.data_read
        twins = [] if self._work.job.plan.again else self._store.find_twins(content)
        twin = next((one for one in twins if self._has_read_the_same(one, now)), None)
        return None if twin is not None and self._work.lacks_figure(twin) else twin

    def _has_read_the_same(self, twin: Trial, now: Mapping[str, str]) -> bool:
        """Return whether all that a trial had read is as it was; what was learned later, it did not depend on."""
        name = TrialDetail.from_json(twin.detail).read
        read = self._store.load_fingerprint_versions(name) if name else {}
        return read is not None and all(now.get(place) == held for place, held in read.items())

    async def keep_read(self) -> str:
        """Keep what is known to be read for the kernel's data, and return its digest; empty if that is nothing."""
        read = self._work.kernel.data_read
        digest = sha256(canonical(read).encode()).hexdigest() if read else ""
        if digest and digest not in self._kept:
            await self._store.save_versions({digest: read})
            self._kept.add(digest)
        return digest
