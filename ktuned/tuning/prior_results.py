"""What the store knows that spares a job work: where to begin, what to leave for last, what need not be measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ktuned.model import Config, Context, Event, Outcome, Problem, Trial, TrialResult, Winner, canonical
from ktuned.store import Artifacts, Store
from ktuned.tuning.attempt import Attempt, Work

RECENT_GROUNDS = 4
"""Earlier states of a kernel that predict the next one: after quick saves the newest has tried but few configs."""

MAX_PREDICTED = 4_000
"""Earlier results that are read for one job: some 10 ms, and half a megabyte on the way to the worker."""

MAX_NEAR = 6
"""Winners of other problems and devices that are tried first: a fraction of any budget."""

_OWN_FIGURES = ("build", "facts", "content", "open_s")


@dataclass(frozen=True, slots=True)
class Order:
    """In which order a job tries its configs: ``first`` these, then what the strategy asks for, ``last`` those."""

    first: tuple[Config, ...]
    last: tuple[Config, ...]


@dataclass(frozen=True, slots=True)
class Past:
    """What became of a config on some ground; the newest ground counts."""

    config: Config
    outcome: Outcome
    latency_us: float | None


def order(seated: Config | None, default: Config | None, past: Sequence[Past], near: Sequence[Config] = ()) -> Order:
    """Return the most promising order, by results of earlier grounds (``past``, the newest first). No IO.

    The winner comes first, so that who looks up is soon served a fresh one that is no slower; then the default, which
    speed-ups are told against; then what was measured, the fastest of the newest ground first. What was hopelessly
    slow comes after the unknown, and what failed last of all. Where nothing was measured yet, ``near`` follows the
    default: the winners of near problems and of other devices.
    """
    known: dict[str, Past] = {}
    for entry in past:
        known.setdefault(canonical(entry.config), entry)
    first = {canonical(config): config for config in (seated, default) if config is not None}
    measured = {text: entry.config for text, entry in known.items() if entry.outcome is Outcome.MEASURED}
    first |= measured or {canonical(config): config for config in near}
    failed = [(text, entry) for text, entry in known.items() if text not in first]
    failed.sort(key=lambda pair: pair[1].outcome is not Outcome.SLOWER)
    return Order(tuple(first.values()), tuple(entry.config for _, entry in failed))


def nearest(context: Context, winners: Sequence[Winner]) -> list[Config]:
    """Return the winners' configs for other problems and devices, those of the most similar ones first. No IO.

    The distance of two sizes is the logarithm of their ratio. Any other difference counts as a factor of 16, another
    device as one of 2: how sizes change a kernel's best config is mostly alike on all of them.
    """
    wanted = json.loads(context.problem)
    found = [
        (_distance(wanted, winner.problem) + (0.0 if winner.context.device == context.device else 1.0), winner.config)
        for winner in winners
        if winner.context.key != context.key
    ]
    found.sort(key=lambda pair: pair[0])
    distinct = {canonical(config): config for _, config in found}
    return list(distinct.values())[:MAX_NEAR]


def _distance(one: Problem, other: Problem) -> float:
    total = 0.0
    for name in one.keys() | other.keys():
        value, another = one.get(name), other.get(name)
        if value == another:
            continue
        if _is_size(value) and _is_size(another):
            total += abs(math.log2(float(value) / float(another)))  # type: ignore[arg-type]
        else:
            total += 4.0
    return total


def _is_size(value: object) -> bool:
    return type(value) in (int, float) and float(value) > 0  # type: ignore[arg-type]


def chosen(measured: Sequence[Trial]) -> Trial | None:
    """Return the winner among a ground's measured trials: the finalists' decision, where there was one."""
    decided = [trial for trial in measured if trial.detail.get("rounds")]
    return min(decided or measured, key=lambda trial: trial.latency_us or 0.0, default=None)


def settled(store: Store, context: Context, finalists: int) -> Trial | None:
    """Return who won on a ground and is not seated any more: it is an old ground, that an undone edit restored."""
    seated = store.winner(context.key)
    if seated is not None and seated.context == context:
        return None
    return chosen(store.best_trials(context, 1, rounds=1) or store.best_trials(context, finalists))


class Experience:
    """What is known before one job's configs are tried."""

    def __init__(self, work: Work, store: Store, artifacts: Artifacts) -> None:
        self._work = work
        self._store = store
        self._artifacts = artifacts

    def order(self) -> Order:
        """Return the order in which to try configs."""
        context = self._work.context
        seated = self._store.winner(context.key)
        past = self._store.past(context, RECENT_GROUNDS, MAX_PREDICTED)
        found = [Past(trial.config, trial.outcome, trial.latency_us) for trial in past if trial.outcome is not None]
        near = nearest(context, self._store.winners(context.kernel))
        return order(None if seated is None else seated.config, self._work.kernel.default, found, near)

    def carried(self, attempt: Attempt) -> TrialResult | None:
        """Return the result of a compiled attempt whose twin was measured: equal bytes, called alike, on equal data."""
        files = self._artifacts.content(attempt.key) if attempt.files is None else attempt.files
        if not files:
            return None
        attempt.content = self._work.measured_content(attempt.build, files)
        twin = self._store.twin(attempt.content)
        if twin is None:
            return None
        detail = {name: value for name, value in twin.detail.items() if name not in _OWN_FIGURES}
        detail["carried_from"] = twin.detail.get("carried_from", twin.id)
        return attempt.result(Event.KNOWN, latency_us=twin.latency_us, spread_us=twin.spread_us, **detail)
