"""All trials of a kernel, from as many requests as they take."""

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
    while True:
        before = {"before": found[-1]["id"]} if found else {}
        more = client.call("results", limit=page, order="newest", deadline_s=_DEADLINE_S, **before, **chosen)["trials"]
        if not more or (found and more[0]["id"] >= found[-1]["id"]):
            return sorted(found, key=_place)
        found += more


def _place(trial: Mapping[str, Any]) -> tuple[bool, str, str, float, int]:
    """Return the place of a trial in a table: the fastest of each problem and device first, then those without."""
    latency = trial["latency_us"]
    return latency is None, canonical(trial["problem"]), trial["device"], latency or 0.0, trial["id"]
