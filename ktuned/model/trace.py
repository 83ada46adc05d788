"""A kernel's trace: names of what was read for it, with digests of what was found there, and how these make a digest.

Inspection finds most of it. The rest is *learned*: compiling, loading and measuring show which other names were read.
A learned name belongs to its kernel from then on. Its part is added to the digest, so that names can be learned in any
order, and earlier digests of the kernel can be given that name, too. No IO.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ktuned.model.record import Record, record
from ktuned.model.values import sha256

ENVIRONMENT = "env:"
"""Prefix of a name that is an environment variable."""

DISTRIBUTION = "dist:"
"""Prefix of a name that is an installed distribution with all its files: ``dist:NAME``."""

UNOBSERVED = "unobserved:"
"""Prefix of a name that is no file: the reason why not all was observed of one version of the code
(``unobserved:VERSION:REASON``)."""

_BITS = 256


@record
class Observation(Record):
    """One entry of a trace: a name, and what was read there.

    ``name`` is a file's path relative to its project's directory, or begins with :data:`DISTRIBUTION` or
    :data:`ENVIRONMENT`. ``digest`` is the SHA-256 of the bytes, empty if there were none; ``meaning`` that of what
    decides results (the syntax of executed Python), empty if the bytes do. ``places`` are the paths that show a change:
    the file's, and those that its links lead over; in messages they are relative to the project, in the catalog
    absolute. ``is_source`` if it was read to make an artifact, ``is_data`` if it was read to make a problem's data,
    or to check.
    """

    name: str
    digest: str
    meaning: str = ""
    places: tuple[str, ...] = ()
    is_source: bool = False
    is_data: bool = False

    @property
    def decisive(self) -> str:
        """The digest that decides results."""
        return self.meaning or self.digest


def digest_variable(value: str | None) -> str:
    """Return the digest of an environment variable's value, absent for one that is not set."""
    # As in sha256(): not every command digests something.
    import hashlib

    return "" if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()


def extend_digest(digest: str, entries: Iterable[Observation]) -> str:
    """Return a digest with the parts of further entries, in whatever order and in however many steps they come."""
    total = _to_number(digest)
    for entry in entries:
        total += int(sha256(f"{entry.name}\0{entry.decisive}"), 16)
    return f"{total % (1 << _BITS):064x}"


def reduce_digest(digest: str, entries: Iterable[Observation]) -> str:
    """Return the digest that :func:`extend_digest` has added entries to."""
    total = _to_number(digest) - _to_number(extend_digest("0", entries))
    return f"{total % (1 << _BITS):064x}"


def add_digests(one: str, other: str) -> str:
    """Return one digest of two; :func:`extend_digest` may come before it, on either, or after it."""
    return f"{(_to_number(one) + _to_number(other)) % (1 << _BITS):064x}"


def add_captured(digest: str, captured: str) -> str:
    """Return the digest of a kernel's problem, for which inputs with the digest ``captured`` were captured, if any."""
    return add_digests(digest, sha256(f"captured\0{captured}")) if captured else digest


def find_news(known: Mapping[str, Observation], found: Iterable[Observation]) -> list[Observation]:
    """Return what is to be learned of observations: names that are new, or were not known to be read for that end."""
    news: dict[str, Observation] = {}
    for entry in found:
        before = news.get(entry.name) or known.get(entry.name)
        is_source, is_data = entry.is_source, entry.is_data
        if before is not None:
            is_source, is_data = is_source or before.is_source, is_data or before.is_data
        if before is None or (is_source, is_data) != (before.is_source, before.is_data):
            news[entry.name] = replace(entry, is_source=is_source, is_data=is_data)
    return list(news.values())


def _to_number(digest: str) -> int:
    try:
        return int(digest, 16)
    except ValueError:
        return int(sha256(digest), 16)
