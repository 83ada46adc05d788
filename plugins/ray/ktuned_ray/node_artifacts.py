"""Artifacts on a node: those that came with requests, or were compiled there, below a keeper's directory.

They are kept within a cap by removing the oldest; one that is needed again is carried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from ktuned.bridge import CallFailed
from ktuned.ipc import locate_artifact, replies
from ktuned.model import StoreError
from ktuned.store import Artifacts
from ktuned_ray import parcels

CAP_BYTES: Final = 4 << 30
"""Bytes of artifacts on a node: a large job's, and little beside the disk of a machine with GPUs."""

LOOK_S: Final = 10.0
"""Interval of looks at their size while some came."""


class NodeArtifacts:
    """The artifacts below a keeper's directory, ``home``."""

    def __init__(self, home: Path, *, cap_bytes: int = CAP_BYTES, look_s: float = LOOK_S) -> None:
        self._home = home
        self._artifacts = Artifacts(home / "artifacts", cap_bytes)
        self._look_s = look_s
        self._news = anyio.Event()

    async def take(self, given: Mapping[str, bytes]) -> None:
        """Put parcels that came with a request where workers find them.

        Raises:
            CallFailed: one cannot be written, or is none.
        """

        def write() -> None:
            for name, data in given.items():
                parcels.unpack(name, data, self._home)

        try:
            await anyio.to_thread.run_sync(write)
        except (OSError, parcels.BadParcel) as error:
            raise CallFailed("parcel", f"a parcel cannot be kept: {error}") from error
        self._news.set()

    async def packed(self, item: Any) -> bytes:
        """Return a compiled unit's artifact, to travel with the item; nothing of another item, or of a large one."""
        if not isinstance(item, replies.CompiledUnit) or item.outcome is not None:
            return b""
        self._news.set()
        place = locate_artifact(self._home / "artifacts", item.artifact or item.key)
        with suppress(OSError):
            return await anyio.to_thread.run_sync(parcels.pack_small, place) or b""
        return b""

    async def run(self) -> None:
        """Keep them within the cap, until cancelled."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            with suppress(StoreError):
                await self._artifacts.collect_garbage(())
            await anyio.sleep(self._look_s)
