"""The daemon's calls to the bridge about a team's storage; they carry only names and bytes.

Every call names the storage by its URL, so the bridge may be killed and started again between any two calls.
"""

from __future__ import annotations

from typing import ClassVar, Final, Never

import msgspec

from ktuned.bridge import Call
from ktuned.ipc import replies

MAX_FETCHED: Final = 1_000
"""Most objects in one fetch, a kilobyte each; the first look at a large kernel takes several fetches."""


class Entry(msgspec.Struct, frozen=True):
    """An object in a listing; ``modified`` is Unix time in s, by the storage's clock."""

    name: str
    size: int
    modified: float


class Listing(msgspec.Struct, frozen=True):
    """The winners that were found."""

    entries: tuple[Entry, ...]


class FindWinners(Call[Listing, Never], frozen=True):
    """Find the newest winners of a kernel at some addresses, at most ``most`` at each."""

    operation: ClassVar = "team.find"

    url: str
    kernel_prefix: str
    addresses: tuple[str, ...]
    most: int


class Fetched(msgspec.Struct, frozen=True):
    """The end of a fetch: the objects that are gone, and why others cannot be read although the storage answers."""

    missing: tuple[str, ...]
    unreadable: tuple[str, ...] = ()


class Object(msgspec.Struct, frozen=True):
    """One object's bytes; one more than the limit if it is larger."""

    name: str
    data: bytes


class FetchObjects(Call[Fetched, Object], frozen=True):
    """Fetch objects, each as an item; the reply names those that are gone."""

    operation: ClassVar = "team.fetch"

    url: str
    names: tuple[str, ...]
    limit: int


class StoreObject(Call[replies.Empty, Never], frozen=True):
    """Store an object, whole or not at all."""

    operation: ClassVar = "team.store"

    url: str
    name: str
    data: bytes


class SweepObjects(Call[replies.Empty, Never], frozen=True):
    """Remove expired objects, then the oldest until the cap holds; objects with other names stay."""

    operation: ClassVar = "team.sweep"

    url: str
    retention_s: float
    cap_bytes: int
