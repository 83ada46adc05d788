"""Shares of devices' limits, in words: ``71 % of memory bandwidth``.

A module of its own: tables, lines, lookups and the live screen use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktuned.model import compute_shares
from ktuned_client import Client, DaemonError

Limits = Mapping[str, Mapping[str, Any]]
"""Measured limits (the protocol's maps) by device model."""


def load_limits(client: Client) -> Limits:
    """Return the limits that ``ktuned doctor --peaks`` has measured; a daemon of an earlier version has none."""
    try:
        return {peaks["device"]: peaks for peaks in client.call("peaks").get("peaks", ())}
    except DaemonError:
        return {}


def share_of(metrics: Mapping[str, float], known: Limits, device: str | None) -> str:
    """Return the share of the limit that is nearest, or an empty text where none is known."""
    found = compute_shares(metrics, known.get(device or "", {}))
    return str(found[0]) if found else ""
