"""The daemon's calls to the bridge about a team's storage; only names and bytes cross.

Every call names the storage by its URL, so that the bridge may be killed and started again between any two of them.
"""

from __future__ import annotations

from typing import ClassVar, Final, Never

from ktuned.bridge import Call
from ktuned.model import Record, record

MAX_FETCHED: Final = 1_000
"""Objects in one fetch, most of them a kilobyte: a first look at a large kernel takes several."""


@record
class Listed(Record):
    """An object in a listing; ``modified`` is Unix time in s."""

    name: str
    size: int
    modified: float


@record
class Listing(Record):
    """The winners that were found."""

    entries: tuple[Listed, ...]


@record
class FindWinners(Call[Listing, Never]):
    """Find the newest winners of a kernel at some addresses; however many there are, no more than ``most`` of each."""

    operation: ClassVar = "team.find"

    url: str
    kernel_prefix: str
    addresses: tuple[str, ...]
    most: int


@record
class Fetched(Record):
    """The end of a fetch: which objects are gone, and why others could not be read, though the storage answers."""

    missing: tuple[str, ...]
    unreadable: tuple[str, ...] = ()


@record
class Object(Record):
    """One object's bytes: one more than the limit if there are more."""

    name: str
    data: bytes


@record
class FetchObjects(Call[Fetched, Object]):
    """Fetch objects, each an item; those that are gone are named in the reply."""

    operation: ClassVar = "team.fetch"

    url: str
    names: tuple[str, ...]
    limit: int


@record
class Stored(Record):
    """An object is there, whole."""

    name: str


@record
class StoreObject(Call[Stored, Never]):
    """Store an object, whole or not at all."""

    operation: ClassVar = "team.store"

    url: str
    name: str
    data: bytes


@record
class Swept(Record):
    """A sweep's result: how many objects went, how many are left, and their bytes."""

    removed: int
    left: int
    left_bytes: int


@record
class SweepObjects(Call[Swept, Never]):
    """Remove what is past its time, then the oldest until the cap holds; nothing that ktuned has not named."""

    operation: ClassVar = "team.sweep"

    url: str
    retention_s: float
    cap_bytes: int
