"""Which objects a sweep removes, and which are the newest at an address. Decides; no IO."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ktuned_team.objects import ObjectName
from ktuned_team.storage import Entry


def newest(kept: Iterable[Entry], addresses: Collection[str], most: int) -> list[Entry]:
    """Return the newest winners at each of some addresses."""
    found: dict[str, list[Entry]] = {}
    for entry in kept:
        parts = ObjectName.parse(entry.name)
        if parts is not None and parts.address in addresses:
            found.setdefault(parts.address, []).append(entry)
    return [entry for entries in found.values() for entry in sorted(entries, key=_by_age)[:most]]


def _by_age(entry: Entry) -> tuple[float, str]:
    return -entry.modified, entry.name


def surplus(kept: Collection[Entry], now: float, retention_s: float, cap_bytes: int) -> list[str]:
    """Return the names of the objects to remove: those past their time, then the oldest until the cap holds.

    Without a retention (0) nothing is too old. Ages are by the storage's clock: where ours is ahead of it, the newest
    object's time is the present, for a sweep follows a write.
    """
    ordered = sorted(kept, key=lambda entry: (entry.modified, entry.name))
    now = min(now, ordered[-1].modified) if ordered else now
    expired = [entry for entry in ordered if retention_s and entry.modified < now - retention_s]
    rest = ordered[len(expired) :]
    size = sum(entry.size for entry in rest)
    removed = [entry.name for entry in expired]
    for entry in rest:
        if size <= cap_bytes:
            break
        removed.append(entry.name)
        size -= entry.size
    return removed
