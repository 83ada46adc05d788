"""Redis or Valkey as a team's storage: a key for each object, and a sorted set of all names.

::

    ktuned:NAME          the object's bytes
    ktuned:names         NAME <size> <time written>, all with the score 0, so that a range is a prefix

Both are written in one transaction, so a killed writer leaves all of an object or nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, TypeVar

import redis.asyncio
import redis.exceptions

from ktuned_team.calls import Entry
from ktuned_team.storage import (
    MAX_LISTED,
    OPERATION_S,
    Storage,
    StorageError,
    UnreadableObject,
    make_storage_error,
    within_deadline,
)

T = TypeVar("T")

PREFIX: Final = "ktuned:"
INDEX: Final = f"{PREFIX}names"


class RedisStorage(Storage):
    """Objects in a Redis database, which may have keys of other programs, too."""

    def __init__(self, url: str, *, deadline_s: float = OPERATION_S) -> None:
        self._url = url
        self._deadline_s = deadline_s
        try:
            self._client: Any = redis.asyncio.Redis.from_url(
                url, socket_timeout=deadline_s, socket_connect_timeout=deadline_s, protocol=2
            )
        except ValueError as error:
            raise make_storage_error(error, "it is not an address of Redis", url) from error

    async def list_entries(self, prefix: str) -> list[Entry]:
        """Return the objects whose names begin with a prefix."""
        start, end = f"[{prefix}", f"[{prefix}\xff"
        members = await self._run_command(
            "listing it", self._client.zrangebylex(INDEX, start, end, start=0, num=MAX_LISTED)
        )
        entries: dict[str, Entry] = {}
        for member in members:
            words = bytes(member).decode(errors="replace").split(" ")
            if len(words) == 3 and words[1].isdecimal() and words[2].isdecimal():
                entries[words[0]] = Entry(words[0], int(words[1]), float(words[2]))
        return list(entries.values())

    async def read(self, name: str, limit: int) -> bytes | None:
        """Return the first ``limit + 1`` bytes of a value."""
        held = self._client.getrange(f"{PREFIX}{name}", 0, limit)
        try:
            data = bytes(await self._run_command(f"reading {name}", held))
        except StorageError as error:
            if "WRONGTYPE" in error.message:
                raise UnreadableObject(error.message) from error
            raise
        return data or None

    async def write(self, name: str, data: bytes) -> None:
        """Set the value and add the name, in one transaction."""
        # The server's clock, because ages are compared between the members of a team.
        now, _ = await self._run_command(f"writing {name}", self._client.time())
        change = self._client.pipeline(transaction=True)
        change.set(f"{PREFIX}{name}", data)
        change.zremrangebylex(INDEX, f"[{name} ", f"[{name} \xff")
        change.zadd(INDEX, {f"{name} {len(data)} {now}": 0})
        await self._run_command(f"writing {name}", change.execute())

    async def remove(self, name: str) -> None:
        """Delete the value and its name, in one transaction."""
        change = self._client.pipeline(transaction=True)
        change.delete(f"{PREFIX}{name}")
        change.zremrangebylex(INDEX, f"[{name} ", f"[{name} \xff")
        await self._run_command(f"removing {name}", change.execute())

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _run_command(self, doing: str, work: Awaitable[T]) -> T:
        async with within_deadline(doing, self._url, self._deadline_s):
            try:
                return await work
            except (redis.exceptions.RedisError, OSError) as error:
                raise make_storage_error(error, doing, self._url) from error
