"""The ``[share]`` table of ``config.toml``; also hides the secrets of its URL."""

from __future__ import annotations

import math
from typing import Final
from urllib.parse import urlsplit

import msgspec

DAY_S: Final = 86_400.0

MIN_PULL_S: Final = 5.0
"""The shortest interval at which the store is read: more frequent requests would cost more than they find."""


class ShareSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shared store: where it is, and how it is used.

    Attributes:
        url: Where the store is; empty if there is none.
        read_only: Whether winners are only read from it, and none published.
        cap_gib: How many GiB everything in the store may take.
        retention_days: Days after which a winner is removed; 0 is never.
        pull_s: Interval at which the store is read, in seconds.
    """

    url: str = ""
    read_only: bool = False
    cap_gib: float = 1.0
    retention_days: float = 180.0
    pull_s: float = 300.0

    @property
    def is_on(self) -> bool:
        """True if there is a store."""
        return bool(self.url)

    @property
    def cap_bytes(self) -> int:
        """How many bytes everything in the store may take."""
        return int(self.cap_gib * 2**30)

    @property
    def retention_s(self) -> float:
        """Seconds after which a winner is removed; 0 is never."""
        return self.retention_days * DAY_S

    def find_fault(self) -> str:
        """Return the first invalid field and what is wrong with it; empty if all are valid."""
        if self.url and (wrong := _find_url_fault(self.url)):
            return f"url is {hide_secrets(self.url)!r}: {wrong}"
        if not 0 < self.cap_gib < math.inf:
            return f"cap_gib is {self.cap_gib}: give GiB above 0"
        if not 0 <= self.retention_days < math.inf:
            return f"retention_days is {self.retention_days}: give days, or 0 for ever"
        if not MIN_PULL_S <= self.pull_s < math.inf:
            return f"pull_s is {self.pull_s}: give {MIN_PULL_S:g} s or more"
        return ""


def _find_url_fault(url: str) -> str:
    """Return why a URL is not valid; empty if it is well-formed, so that a plugin can judge it."""
    if url.startswith(("/", "~")):
        return ""
    try:
        parts = urlsplit(url)
        has_port = bool(parts.netloc) and parts.port is not None
    except ValueError:
        # The error's own message may repeat a password.
        return "it cannot be read; write special characters of a password as %XX"
    if "://" not in url:
        return "give a full path, s3://BUCKET/PREFIX or redis://HOST:PORT/DATABASE"
    if parts.scheme == "file" and parts.netloc:
        return f"give a full path: file:///{parts.netloc}{parts.path}"
    if has_port and not parts.hostname:
        return "it names no host"
    return ""


def hide_secrets(url: str) -> str:
    """Return a URL without anything that may be secret, for messages and logs.

    Hidden are everything before the last ``@``, since an unquoted password may contain any character, and the values of
    all parameters except ``db``.
    """
    if url.startswith(("/", "~")):
        return url
    scheme, mark, place = url.partition("://") if "://" in url else ("", "", url)
    hidden, at, rest = place.rpartition("@")
    if "?" in hidden:
        # The question mark may be part of a password, so nothing after it may be shown either.
        return f"{scheme}{mark}…"
    address, question, query = rest.partition("?")
    kept = "&".join(part if part.startswith("db=") else f"{part.partition('=')[0]}=…" for part in query.split("&"))
    return f"{scheme}{mark}{'…' if at else ''}{at}{address}{question}{kept if question else ''}"
