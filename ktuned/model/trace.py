"""A kernel's trace: the names that were read for it, with digests of what was found there. No IO.

Inspection finds most of them. The rest is *learned*: compiling, loading and measuring show which other names are read.
A learned name belongs to its kernel from then on, and to its digest.

A digest must not depend on the order in which names are learned. And it must be possible to add a name later to an
earlier digest, under which results are already stored. So a digest is a number modulo 2^256, to which each name adds
the hash of its entry (:func:`extend_digest`), and from which it can be subtracted again (:func:`reduce_digest`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from ktuned.model.frozen_struct import FrozenStruct
from ktuned.model.values import sha256

ENVIRONMENT = "env:"
"""Prefix of a name that is an environment variable."""

DISTRIBUTION = "dist:"
"""Prefix of a name that stands for all files of an installed distribution: ``dist:NAME``."""

SITE, PREFIX, HOME = "site:", "prefix:", "~/"
"""Prefixes of names of files among installed packages, below the interpreter's prefix, in the user's home directory
(:mod:`ktuned.worker.names`)."""

_OF_EVERY_MACHINE = ("/usr/", "/lib/", "/lib32/", "/lib64/", "/bin/", "/sbin/", "/etc/", "/opt/")
"""Directories that have the same names on every machine."""

UNOBSERVED = "unobserved:"
"""Prefix of a name that gives a reason why one version of the code was not fully observed:
``unobserved:VERSION:REASON``.
"""

MADE = "made:"
"""Prefix of a name that stands for what repetitions make of a kernel's winner
(:mod:`ktuned.scheduling.repetition`)."""

ALL_VARIABLES = "*"
"""Stands for all variables of the environment, ktuned's own aside: a name that no variable can have."""

ATTRIBUTES = "//attributes"
"""End of a name that stands for a file's attributes, besides the name that stands for its bytes."""

NOISE = 3
"""After so many changes of an entry that changed nothing which was made, its changes count at repetitions only."""

_BITS = 256

_OWN_VARIABLES = ("LD_PRELOAD", "LD_AUDIT", "TMPDIR")
"""Variables that the daemon sets for a worker, besides those that begin with ``KTUNED_``."""


class Observation(FrozenStruct):
    """One entry of a trace: a name, and a digest of what was read there.

    Attributes:
        name: a file's path relative to what it belongs to, or a text with one of the prefixes above.
        digest: SHA-256 of the bytes; empty if nothing was there.
        meaning: SHA-256 of the syntax tree, for executed Python: it decides results instead of the bytes. Else empty.
        places: the paths to watch: the file's own path, and those of the links on the way. They are absolute in the
            catalog, and relative to the project in messages.
        is_source: whether it was read to make an artifact.
        is_data: whether it was read to make a problem's data, or to check outputs.
        is_run: whether the reference, a check or a launch has read it: making a winner again cannot show its effect.
        alike: values that were found to give the same; all of them count as the first.
    """

    name: str
    digest: str
    meaning: str = ""
    places: tuple[str, ...] = ()
    is_source: bool = False
    is_data: bool = False
    is_run: bool = False
    alike: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        """The digest of what was read, as far as it can decide results."""
        return self.meaning or self.digest

    @property
    def is_noise(self) -> bool:
        """Whether its changes count at repetitions only."""
        return len(self.alike) > NOISE

    @property
    def decisive(self) -> str:
        """The digest that decides results."""
        return self.alike[0] if self.is_noise or self.value in self.alike else self.value

    def with_equal_value(self, value: str) -> Observation:
        """Return the entry with an earlier value that gives the same as the present one."""
        return replace(self, alike=tuple(dict.fromkeys((self.value, *self.alike, value)))[: NOISE + 1])

    def convert_places(self, convert: Callable[[str], str]) -> Observation:
        """Return the entry with other paths: relative to another directory, or absolute."""
        return replace(self, places=tuple(map(convert, self.places)))


def is_own_variable(name: str) -> bool:
    """Return whether a variable is ktuned's own, and so no input of a kernel."""
    return name.startswith("KTUNED_") or name in _OWN_VARIABLES


def is_of_one_machine(name: str) -> bool:
    """Return whether a name may mean something else, or nothing, on another machine of the same user or team."""
    return name.startswith((MADE, HOME, "../", "/")) and not name.startswith(_OF_EVERY_MACHINE)


def describe_environment(environment: Mapping[str, str]) -> str:
    """Return the text that stands for all variables of an environment."""
    return "\0".join(sorted(f"{name}={value}" for name, value in environment.items() if not is_own_variable(name)))


def read_variable(name: str, environment: Mapping[str, str]) -> str | None:
    """Return a variable's value in an environment, or the text of all of them; None if it is not set."""
    return describe_environment(environment) if name == ALL_VARIABLES else environment.get(name)


def merge_stamps(held: str, more: str) -> str:
    """Return the stamp of a path with the parts of two stamps: its content, and after ``|`` its attributes."""
    (content, bar, attributes), (other, other_bar, others) = held.partition("|"), more.partition("|")
    merged = bar or other_bar
    return f"{content or other}{merged}{attributes or others}"


def digest_variable(value: str | None) -> str:
    """Return the digest of an environment variable's value; empty if it is not set."""
    # Imported here, like in sha256(), because commands that digest nothing should not wait for OpenSSL.
    import hashlib

    return "" if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()


def extend_digest(digest: str, entries: Iterable[Observation]) -> str:
    """Return a digest with further entries added. Neither their order nor the number of steps changes the result.

    An absent name adds nothing: it may be another name on another machine. If it appears, it is read, and so added.
    """
    total = _to_number(digest)
    for entry in entries:
        if entry.decisive:
            total += int(sha256(f"{entry.name}\0{entry.decisive}"), 16)
    return f"{total % (1 << _BITS):064x}"


def reduce_digest(digest: str, entries: Iterable[Observation]) -> str:
    """Return the digest to which :func:`extend_digest` has added these entries."""
    total = _to_number(digest) - _to_number(extend_digest("0", entries))
    return f"{total % (1 << _BITS):064x}"


def add_digests(one: str, other: str) -> str:
    """Return the sum of two digests. Adding an entry to the sum is the same as adding it to either of them."""
    return f"{(_to_number(one) + _to_number(other)) % (1 << _BITS):064x}"


def find_new_observations(known: Mapping[str, Observation], found: Iterable[Observation]) -> list[Observation]:
    """Return the observations to learn: those with new names, or that add a purpose or equal values to a known name."""
    news: dict[str, Observation] = {}
    for entry in found:
        before = news.get(entry.name) or known.get(entry.name)
        if before is None:
            news[entry.name] = entry
            continue
        purposes = (
            before.is_source or entry.is_source,
            before.is_data or entry.is_data,
            before.is_run or entry.is_run,
            before.alike or entry.alike,
        )
        if purposes != (before.is_source, before.is_data, before.is_run, before.alike):
            is_source, is_data, is_run, alike = purposes
            news[entry.name] = replace(before, is_source=is_source, is_data=is_data, is_run=is_run, alike=alike)
    return list(news.values())


def _to_number(digest: str) -> int:
    try:
        return int(digest, 16)
    except ValueError:
        return int(sha256(digest), 16)
