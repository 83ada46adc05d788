"""All trials of a kernel, from as many requests as they take."""

from __future__ import annotations

import msgspec

from ktuned.model import ListedTrial, canonical
from ktuned.protocol import RESULTS, ResultsParams, call_method
from ktuned_client import Client

PAGE = 2_000
"""Trials in one request: the daemon's limit, which is lower where details are asked for."""

_DEADLINE_S = 60.0


def load_all_trials(client: Client, wanted: ResultsParams) -> list[ListedTrial]:
    """Return all trials that ``results`` chooses, in the order of its table."""
    found: list[ListedTrial] = []
    before: int | None = None
    while True:
        page = msgspec.structs.replace(wanted, limit=PAGE, order="newest", before=before)
        more = call_method(client, RESULTS, page, deadline_s=_DEADLINE_S).trials
        # A daemon of an earlier version does not know `before`, and would return the first page for ever.
        if not more or (before is not None and more[0].id >= before):
            return sorted(found, key=_table_key)
        found += more
        before = min(trial.id for trial in more)


def _table_key(trial: ListedTrial) -> tuple[bool, str, str, float, int]:
    """Return the place of a trial in a table: the fastest of each problem and device first, then those without."""
    latency = trial.latency_us
    return latency is None, canonical(trial.problem), trial.device, latency or 0.0, trial.id
