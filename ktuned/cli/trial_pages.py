"""All trials of a kernel, from as many requests as they take.

A module of its own: two commands use it, and neither is a part of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktuned.model import canonical
from ktuned_client import Client

PAGE = 2_000
"""Trials in one request: the daemon's limit, which is lower where details are asked for."""

_DEADLINE_S = 60.0


def all_trials(client: Client, *, page: int = PAGE, **chosen: Any) -> list[dict[str, Any]]:
    """Return all trials that ``results`` chooses, in the order of its table."""
    found: list[dict[str, Any]] = []
    before: dict[str, int] = {}
    while True:
        more = client.call("results", limit=page, order="newest", deadline_s=_DEADLINE_S, **before, **chosen)["trials"]
        # A daemon of an earlier version does not know `before`, and would return the first page for ever.
        if not more or more[0]["id"] >= before.get("before", more[0]["id"] + 1):
            return sorted(found, key=_table_key)
        found += more
        before = {"before": min(trial["id"] for trial in more)}


def _table_key(trial: Mapping[str, Any]) -> tuple[bool, str, str, float, int]:
    """Return the place of a trial in a table: the fastest of each problem and device first, then those without."""
    latency = trial["latency_us"]
    return latency is None, canonical(trial["problem"]), trial["device"], latency or 0.0, trial["id"]
