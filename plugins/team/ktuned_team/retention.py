"""Decides which objects a sweep removes, and which are the newest at an address. No IO."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ktuned_team.calls import Entry
from ktuned_team.objects import ObjectName


def select_newest(entries: Iterable[Entry], addresses: Collection[str], most: int) -> list[Entry]:
    """Return the newest winners at each of some addresses."""
    by_address: dict[str, list[Entry]] = {}
    for entry in entries:
        parts = ObjectName.parse(entry.name)
        if parts is not None and parts.address in addresses:
            by_address.setdefault(parts.address, []).append(entry)
    return [entry for entries in by_address.values() for entry in sorted(entries, key=_order_newest_first)[:most]]


def _order_newest_first(entry: Entry) -> tuple[float, str]:
    return -entry.modified, entry.name


def select_surplus(entries: Collection[Entry], now: float, retention_s: float, cap_bytes: int) -> list[str]:
    """Return the names of the objects to remove: expired ones, then the oldest until the cap holds.

    With a retention of 0 nothing expires. Ages are by the storage's clock. Our clock may be ahead of it, so ``now`` is
    limited to the time of the newest object, which is recent because a sweep follows a write.
    """
    ordered = sorted(entries, key=lambda entry: (entry.modified, entry.name))
    now = min(now, ordered[-1].modified) if ordered else now
    expired = [entry for entry in ordered if retention_s and entry.modified < now - retention_s]
    remaining = ordered[len(expired) :]
    size = sum(entry.size for entry in remaining)
    removed = [entry.name for entry in expired]
    for entry in remaining:
        if size <= cap_bytes:
            break
        removed.append(entry.name)
        size -= entry.size
    return removed
