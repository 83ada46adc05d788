"""Earlier results that save a job work: the configs to try first, the configs to try last, and the measurements that
need no repetition.

Results of three kinds help, the most similar most:

* of exactly this context: a trial with an outcome is not repeated, and the best one may become the winner at once;
* of earlier states of the kernel: they predict which configs are fast, which fail, and how long their compiles take.
  The outcome of a *twin*, a trial with an equal artifact and equal data, is even taken over;
* of other problems and devices: their best configs are tried early.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from heapq import heappop, heappush

import msgspec
from msgspec.structs import replace

from ktuned.catalog import Admission
from ktuned.model import (
    RETRIED_BY_NEXT_JOB,
    Config,
    FrozenStruct,
    Objective,
    Outcome,
    TrialResult,
    WinnerKey,
    canonical,
    convert_to_cost,
    needs_metric,
    parse_key_problem,
)
from ktuned.protocol import Trial
from ktuned.store import KnownConfig, Store, Winner, count_octaves
from ktuned.tuning.job_brief import JobBrief, PresentKey

RECENT_CONTEXTS = 4
"""Earlier states of a kernel whose results count. After several quick saves, the newest states have few trials."""

MAX_PREDICTED = 4_000
"""Most earlier results that are read for a job: these take 30 ms on the event loop, and half a megabyte to send."""

BEST_OF_NEAREST = 6
"""Number of fastest configs of the nearest key that are tried early. Its winner is rarely the best here, but one of the
fastest six often is."""

MANY_TRIALS = 64
"""Trials in the first query for the fastest ones whose configs the present space still holds."""


def sort_by_similarity(key: WinnerKey, winners: Sequence[Winner]) -> list[Winner]:
    """Return the winners of all other keys, the most similar keys first.

    Another device or objective counts as a factor of 2 in a size, because the best config depends on sizes in much the
    same way.
    """
    problem = parse_key_problem(key.problem)

    def measure_difference(winner: Winner) -> float:
        others = (winner.context.device != key.device) + (winner.objective != key.objective)
        return count_octaves(problem, winner.problem) + others

    return sorted((winner for winner in winners if winner.key != key), key=measure_difference)


def find_last_winner(measured: Sequence[Trial], objective: Objective) -> Trial | None:
    """Return the trial that won last in a context: the final round's choice, or a later trial with a lower latency.

    A trial that was measured before the final round has not beaten its choice, even with a lower figure, because the
    two were not measured side by side. For an objective other than latency, the trial with the best figure is returned,
    because the rounds may have been for another objective, with other finalists.
    """
    if needs_metric(objective):
        return min(measured, key=lambda trial: _cost_or_infinity(objective, trial.figure(objective)), default=None)
    finalists = [trial for trial in measured if trial.detail.final.rounds]
    decided_at = max((trial.updated for trial in finalists), default=0.0)
    last = finalists + [trial for trial in measured if trial.updated > decided_at]
    return min(last, key=lambda trial: trial.latency_us or 0.0, default=None)


def _cost_or_infinity(objective: Objective, figure: float | None) -> float:
    cost = convert_to_cost(objective, figure)
    return math.inf if cost is None else cost


def complete_result(known: Trial, result: TrialResult) -> TrialResult:
    """Return the result of a measured trial that lacked a figure, with that figure added from a new ``result``.

    If the config failed this time, the failure is its result. An outcome that says nothing about the config changes
    nothing.
    """
    if result.outcome in RETRIED_BY_NEXT_JOB:
        return replace(known.result, outcome=Outcome.MEASURED)
    if result.outcome is not Outcome.MEASURED:
        return result
    found = result.detail.numerics
    return replace(
        known.result,
        outcome=Outcome.MEASURED,
        lane_s=known.lane_s + result.lane_s,
        metrics={**known.metrics, **result.metrics},
        detail=replace(known.detail, numerics=found) if found.bits or found.nondeterministic else known.detail,
    )


async def load_admitted_trials(
    store: Store,
    admission: Admission,
    key: PresentKey,
    limit: int,
    is_wanted: Callable[[Trial], bool] = lambda trial: True,
) -> list[Trial]:
    """Return the best measured trials of a key's context whose configs the kernel's present space still holds.

    Raises:
        WorkerError: The worker that has the space could not check the configs.
    """
    many = max(MANY_TRIALS, limit)
    while True:
        measured = store.list_best_trials(key.context, many, objective=key.objective)
        wanted = [trial for trial in measured if is_wanted(trial)]
        verdicts = await admission.check_configs(key.kernel, key.problem, [trial.config for trial in wanted])
        found = [trial for trial, is_admitted in zip(wanted, verdicts, strict=True) if is_admitted]
        if len(found) >= limit or len(measured) < many:
            return found[:limit]
        many *= 4


async def restore_winner(
    store: Store, admission: Admission, key: PresentKey, finalists: int, *, decided_only: bool
) -> Winner | None:
    """Make the best known trial of a key's context its winner, unless it has a winner that the space still holds.

    This is needed after an undone edit, which brings an old context back, and after an edit of the space that removed
    the winner's config. With ``decided_only`` the trial must have been in a final round: in a context without a winner,
    a trial's first figure may be worse than the config that is served.

    Returns:
        The new winner, or ``None`` if nothing changed.

    Raises:
        WorkerError: The worker that has the space could not check the configs.
    """
    incumbent = store.get_winner(key.winner_key)
    if incumbent is not None and incumbent.context == key.context:
        (is_admitted,) = await admission.check_configs(key.kernel, key.problem, [incumbent.config])
        if is_admitted:
            return None
    best = find_last_winner(await load_admitted_trials(store, admission, key, finalists), key.objective)
    if best is None:
        return None
    is_final = bool(best.detail.final.rounds)
    if decided_only and not is_final:
        return None
    return await store.decide_winner(best.id, objective=key.objective, is_final=is_final)


class PriorResults(msgspec.Struct, eq=False):
    """The store's results that concern one job."""

    brief: JobBrief
    store: Store
    _compile_s: dict[str, float] = {}
    _kept: set[str] = set()

    def predict_compile_s(self, config: Config) -> float:
        """Return how long a config's compile took in an earlier state of the kernel, in s; 0 if unknown."""
        return self._compile_s.get(canonical(config), 0.0)

    def plan_order(self, served: Sequence[Config], *, slots: int) -> TrialOrder:
        """Return the order in which to try configs, for a number of compile slots; see :func:`order_configs`."""
        context, objective = self.brief.context, self.brief.search_objective
        incumbent = self.store.get_winner(self.brief.key)
        newest: dict[str, KnownConfig] = {}
        for known in self.store.load_past_searches(context, RECENT_CONTEXTS, MAX_PREDICTED, objective=objective):
            newest.setdefault(known.text, known)
            if known.compile_s:
                self._compile_s.setdefault(known.text, known.compile_s)
        past = list(newest.values())
        plan = self.brief.job.plan
        if len(past) <= plan.trials and plan.time_limit_s is None:
            # All of them will be tried, so order them such that the last compiles end together.
            measured = [known for known in past if known.outcome is Outcome.MEASURED]
            others = [known for known in past if known.outcome is not Outcome.MEASURED]
            past = order_by_compile_time(measured, slots, sum(known.compile_s for known in others)) + others
        winners = sort_by_similarity(self.brief.key, self.store.list_winners(context.kernel))
        best = self.store.list_measured_configs(winners[0].context, BEST_OF_NEAREST) if winners else []
        near = choose_near_configs(winners, [known.config for known in best])
        failed_here = self.store.list_failed_configs(context, MAX_PREDICTED)
        return order_configs(
            None if incumbent is None else incumbent.config,
            self.brief.kernel.default,
            past,
            near,
            failed_here,
            served,
        )

    def find_twin(self, content: str) -> Trial | None:
        """Return a trial of equal bytes, called alike on equal data, if it has all figures that the job needs.

        A job that was asked to measure ``again`` has no twins.
        """
        twins = [] if self.brief.job.plan.again else self.store.find_twins(content)
        twin = next((one for one in twins if self._has_read_the_same(one)), None)
        return None if twin is not None and self.brief.lacks_figure(twin) else twin

    def _has_read_the_same(self, twin: Trial) -> bool:
        """Return whether all files and variables that a trial had read are unchanged. Later additions do not count."""
        name = twin.detail.profile.read
        read = self.store.load_fingerprint_versions(name) if name else {}
        now = self.brief.kernel.data_read
        return read is not None and all(now.get(place) == held for place, held in read.items())

    async def store_read_digest(self) -> str:
        """Store the files and variables that the kernel's data depends on; return their digest, or "" without any."""
        read = self.brief.kernel.data_read
        digest = sha256(canonical(read).encode()).hexdigest() if read else ""
        if digest and digest not in self._kept:
            await self.store.save_versions({digest: read})
            self._kept.add(digest)
        return digest


MAX_NEAR = 8
"""Most configs of other problems and devices that are tried first: a small part of any budget."""

LAST_OF_SLOT = 2
"""How many of the last configs, for each slot, start by their expected compile time, the longest first. With only one
for each slot, all slots would end with long compiles, and a single expectation is often wrong. More than two gain
nothing, and undo the strategy's order."""


class TrialOrder(FrozenStruct):
    """The order in which a job tries its configs.

    Attributes:
        first: Configs to try before those that the strategy proposes.
        last: Configs to try after those.
    """

    first: tuple[Config, ...]
    last: tuple[Config, ...]


def order_configs(
    incumbent: Config | None,
    default: Config | None,
    past: Sequence[KnownConfig],
    near: Sequence[Config] = (),
    failed_here: Sequence[KnownConfig] = (),
    served: Sequence[Config] = (),
) -> TrialOrder:
    """Return the most promising order, by results of earlier contexts.

    First come, in this order:

    1. the ``incumbent`` and the configs ``served`` to lookups, so that lookups soon have a fresh answer that is not
       slower; then the ``default``, to which speed-ups are relative;
    2. the measured configs of the ``past`` in their order (the newest context first, each context's fastest first); if
       there are none, the ``near`` configs: winners of near problems and of other devices;
    3. the configs that ``failed_here``, in exactly this context. They cost nothing, but count towards the budget. So a
       job that is requested again has nothing left to do, whatever its strategy would propose now.

    Last come the configs of the ``past`` that were hopelessly slow, and finally those that failed.
    """
    known: dict[str, KnownConfig] = {}
    for entry in past:
        known.setdefault(entry.text, entry)
    first = {canonical(config): config for config in (incumbent, *served, default) if config is not None}
    measured = {text: entry.config for text, entry in known.items() if entry.outcome is Outcome.MEASURED}
    first |= measured or {canonical(config): config for config in near}
    first |= {entry.text: entry.config for entry in failed_here}
    failed = [(text, entry) for text, entry in known.items() if text not in first]
    failed.sort(key=lambda pair: pair[1].outcome is not Outcome.SLOWER)
    return TrialOrder(tuple(first.values()), tuple(entry.config for _, entry in failed))


def choose_near_configs(winners: Sequence[Winner], best_of_nearest: Sequence[Config]) -> list[Config]:
    """Return configs to begin with: the nearest winner, the next best of its key, then the other winners."""
    configs = [winner.config for winner in winners]
    distinct = {canonical(config): config for config in [*configs[:1], *best_of_nearest, *configs[1:]]}
    return list(distinct.values())[:MAX_NEAR]


def order_by_compile_time(configs: Sequence[KnownConfig], slots: int, behind_s: float = 0.0) -> list[KnownConfig]:
    """Return configs in their order, except that long compiles start early enough to end with the others.

    Graham's rule ("Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17, 1969) starts the longest first,
    so that all slots end at about the same time. Here most configs keep their order, the most promising first. The rule
    is applied only to the last configs, and to the few whose compile takes longer than all those after it.

    Args:
        configs: The configs, the most promising first.
        slots: The number of compile slots.
        behind_s: The total compile time of configs that come after all of these.
    """
    window_s = LAST_OF_SLOT * sum(config.compile_s for config in configs) / max(1, len(configs))
    placed: deque[KnownConfig] = deque()
    postponed: list[tuple[float, int]] = []

    def place_config(number: int) -> None:
        nonlocal behind_s
        placed.appendleft(configs[number])
        behind_s += configs[number].compile_s

    for number in reversed(range(len(configs))):
        while postponed and postponed[0][0] * slots <= behind_s:
            place_config(heappop(postponed)[1])
        if configs[number].compile_s <= max(window_s, behind_s / slots):
            place_config(number)
        else:
            heappush(postponed, (configs[number].compile_s, number))
    while postponed:
        place_config(heappop(postponed)[1])
    return list(placed)
