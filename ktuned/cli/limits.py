"""Shares of devices' limits, in words: ``71 % of memory bandwidth``.

A module of its own: tables, lines, lookups and the live screen use it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ktuned.model import Peaks, compute_shares
from ktuned.protocol import PEAKS, call_method
from ktuned_client import Client, DaemonError

Limits = Mapping[str, Peaks]
"""Measured limits by device model."""


def load_limits(client: Client) -> Limits:
    """Return the limits that ``ktuned doctor --peaks`` has measured; a daemon of an earlier version has none."""
    try:
        return {peaks.device: peaks for peaks in call_method(client, PEAKS).peaks}
    except DaemonError:
        return {}


def share_of(metrics: Mapping[str, float], known: Limits, device: str | None) -> str:
    """Return the share of the limit that is nearest, or an empty text where none is known."""
    peaks = known.get(device or "")
    found = [] if peaks is None else compute_shares(metrics, peaks)
    return str(found[0]) if found else ""
