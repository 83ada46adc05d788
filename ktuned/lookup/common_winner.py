"""Chooses the config that is best for a weighted set of problems (``best_for="all"`` in a kernel file). No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ktuned.model import Config, Context, Objective, Record, Trial, Winner, canonical, record

MAX_TRIALS = 256
"""How many trials of each problem compete, fastest first: a config that is best for all problems is among the best of
each, or does not exist."""


@record
class Common(Record):
    """The trial of the common config in one problem's context."""

    context: Context
    trial: Trial
    objective: Objective


def choose_common_config(tried: Sequence[tuple[float, Mapping[str, float]]], is_out: Iterable[str] = ()) -> str | None:
    """Return the config with the least weighted cost, as canonical text; ``None`` if none was measured on all problems.

    A config that failed on a problem, or was given up there as too slow, has no cost there, and is not chosen.

    Args:
        tried: For each problem its weight, and the costs of its configs: latencies, or costs by another objective.
        is_out: Configs that are not chosen, because the space no longer has them.
    """
    if not tried:
        return None
    everywhere = set.intersection(*(set(costs) for _, costs in tried)) - set(is_out)
    total = {text: sum(weight * costs[text] for weight, costs in tried) for text in everywhere}
    # Configs may have equal costs, for example twins; the text then decides, so that the choice is always the same.
    return min(total, key=lambda text: (total[text], text), default=None)


def replace_by_common_configs(winners: Iterable[Winner], common: Iterable[Common]) -> list[Winner]:
    """Return the winners, with the common config in place of each problem's own winner."""
    own = {winner.key: winner for winner in winners}
    for one in common:
        context, trial = one.context, one.trial
        key = context.key_for(one.objective)
        before = own.get(key)
        if trial.latency_us is None or (before is not None and _is_winner_of(before, context, trial.config)):
            continue
        served = Winner(
            context,
            trial.id,
            trial.problem,
            trial.config,
            trial.latency_us,
            trial.spread_us,
            trial.artifact,
            trial.updated,
            metrics=trial.metrics,
            objective=one.objective,
        )
        own[key] = served if before is None else replace(served, is_final=before.is_final)
    return list(own.values())


def _is_winner_of(winner: Winner, context: Context, config: Config) -> bool:
    return winner.context == context and canonical(winner.config) == canonical(config)
