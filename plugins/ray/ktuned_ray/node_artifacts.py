"""Artifacts on a node, below a keeper's directory; they came with requests, or were compiled there.

Beyond a cap, the oldest are removed; an artifact that is needed again is carried again.
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
"""Most bytes of artifacts on a node: enough for a large job, and little for the disk of a machine with GPUs."""

CHECK_INTERVAL_S: Final = 10.0
"""Interval in seconds at which their size is checked, while new artifacts come."""


class NodeArtifacts:
    """The artifacts below a keeper's directory, ``home``."""

    def __init__(self, home: Path, *, cap_bytes: int = CAP_BYTES, check_interval_s: float = CHECK_INTERVAL_S) -> None:
        self._home = home
        self._artifacts = Artifacts(home / "artifacts", cap_bytes)
        self._check_interval_s = check_interval_s
        self._artifact_used = anyio.Event()

    async def take_parcels(self, given: Mapping[str, bytes]) -> None:
        """Unpack parcels that came with a request to where workers find them.

        Raises:
            CallFailed: one cannot be written, or is no parcel.
        """

        def unpack_all() -> None:
            for name, data in given.items():
                parcels.unpack_parcel(name, data, self._home)

        try:
            await anyio.to_thread.run_sync(unpack_all)
        except (OSError, parcels.BadParcel) as error:
            raise CallFailed("parcel", f"a parcel cannot be kept: {error}") from error
        self._artifact_used.set()

    async def pack_artifact(self, item: Any) -> bytes:
        """Return the packed artifact of a compiled unit; empty if it is too large, or the item is no compiled unit."""
        if not isinstance(item, replies.CompiledUnit) or item.outcome is not None:
            return b""
        self._artifact_used.set()
        place = locate_artifact(self._home / "artifacts", item.artifact or item.key)
        with suppress(OSError):
            return await anyio.to_thread.run_sync(parcels.pack_small_parcel, place) or b""
        return b""

    async def run_until_cancelled(self) -> None:
        """Keep artifacts within the cap, until cancelled."""
        while True:
            await self._artifact_used.wait()
            self._artifact_used = anyio.Event()
            with suppress(StoreError):
                await self._artifacts.collect_garbage(())
            await anyio.sleep(self._check_interval_s)
