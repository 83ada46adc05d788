"""The ``[team]`` table of ``config.toml``: the daemon's settings hold it, and its parts follow it."""

from __future__ import annotations

import hashlib
import math
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ktuned.team.storage import shown

REDIS: Final = ("redis", "rediss", "unix")
"""Schemes of URLs of a Redis or Valkey."""

DAY_S: Final = 86_400.0

MIN_PULL_S: Final = 5.0
"""The shortest interval of looks at the store: below it requests cost more than what they find."""


class TeamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The team's store: where it is, and what is done with it; nothing without a ``url``."""

    url: str = ""
    read_only: bool = False
    trust_artifacts: bool = False
    cap_gib: float = 1.0
    retention_days: float = 180.0
    pull_s: float = 300.0

    @property
    def is_on(self) -> bool:
        """True if there is a store."""
        return bool(self.url)

    @property
    def cap_bytes(self) -> int:
        """The bytes that all objects may take."""
        return int(self.cap_gib * 2**30)

    @property
    def retention_s(self) -> float:
        """The time after which an object is removed; 0 is never."""
        return self.retention_days * DAY_S

    @property
    def identity(self) -> str:
        """Identifies the store, whatever the credentials."""
        parts = urlsplit(self.url)
        place = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        return hashlib.sha256(place.encode()).hexdigest()[:16]

    def fault(self) -> str:
        """Return the first field that cannot be followed and why; nothing if all can be."""
        if self.url and (wrong := _wrong(self.url)):
            return f"url is {shown(self.url)!r}: {wrong}"
        if not 0 < self.cap_gib < math.inf:
            return f"cap_gib is {self.cap_gib}: give GiB above 0"
        if not 0 <= self.retention_days < math.inf:
            return f"retention_days is {self.retention_days}: give days, or 0 for ever"
        if not MIN_PULL_S <= self.pull_s < math.inf:
            return f"pull_s is {self.pull_s}: give {MIN_PULL_S:g} s or more"
        return ""


def _wrong(url: str) -> str:
    """Return what is wrong with a URL; nothing if it may be used."""
    if url.startswith(("/", "~")):
        return ""
    try:
        parts = urlsplit(url)
        has_port = bool(parts.netloc) and parts.port is not None
    except ValueError:
        # Its words may repeat a password.
        return "it cannot be read; write special characters of a password as %XX"
    if "://" not in url:
        return "give a full path, s3://BUCKET/PREFIX or redis://HOST:PORT/DATABASE"
    if "@" not in parts.netloc and parts.scheme in REDIS and "@" in url:
        return "write special characters of its password as %XX"
    if parts.scheme == "file" and parts.netloc:
        return "give a full path: file:///srv/team"
    if has_port and not parts.hostname:
        return "it names no host"
    return ""
