"""Learning: names that only compiling or measuring was seen to read become part of their kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol
from weakref import WeakSet

import anyio
import msgspec
import structlog

from ktuned.catalog.catalog import Catalog
from ktuned.ipc import make_absolute
from ktuned.model import KernelInfo, Observation, WorkerError
from ktuned.protocol import NamesLearned, PublishEvent
from ktuned.store import Store, Winner

_log = structlog.get_logger()

MAX_LEARNED = 4_000
"""Most names of one kernel: several times a large library's headers. Each is looked at in every inspection."""


FEW_NAMES = 3
"""Names that a line of the log has; a large library reads thousands."""


class SourceChanged(WorkerError):
    """A worker has read other content than the kernel was inspected with, because files have changed since."""

    code = "source_changed"


class TooManyNames(WorkerError):
    """A kernel depends on too many files to watch."""

    code = "too_many_names"


class Follower(Protocol):
    """A job's work, which continues with newly learned names."""

    kernel: KernelInfo

    def adopt_learned_names(self, kernel: KernelInfo) -> None:
        """Replace the kernel by one with newly learned names."""


class Traces(msgspec.Struct, eq=False):
    """Learns names for kernels: in the catalog at once, so that they are watched, then in the store.

    ``publish`` announces them after that. Until then, lookups are answered from the state before.
    """

    catalog: Catalog
    store: Store
    publish: PublishEvent = lambda event: None
    _followers: WeakSet[Follower] = msgspec.field(default_factory=WeakSet)
    _lock: anyio.Lock = msgspec.field(default_factory=anyio.Lock)

    def add_follower(self, follower: Follower) -> None:
        """Tell a job's work about newly learned names for as long as the work exists."""
        self._followers.add(follower)

    async def replace_names(
        self, kernel: KernelInfo, names: Collection[str], entries: Sequence[Observation], valid: Sequence[Winner] = ()
    ) -> KernelInfo | None:
        """Replace names that a kernel has learned by others; return the new state.

        Return None, and change nothing, if the kernel is in another state by now. The ``valid`` winners of an earlier
        state hold in the new one.

        Raises:
            NotFound: the kernel is gone.
            StoreError: the names cannot be recorded.
        """
        async with self._lock:
            now = self.catalog.resolve_kernel(kernel.name)
            if now.digest != kernel.digest:
                return None
            learned = now.without_names(names).with_observed(entries)
            await self.store.learned.replace_names(learned, names, entries, valid)
            self.catalog.replace_learned(learned)
        self.publish(NamesLearned(kernel=learned.name, names=()))
        return learned

    async def learn_names(self, kernel: KernelInfo, found: Sequence[Observation]) -> None:
        """Learn the names that a worker has observed, which worked on this state of ``kernel``.

        Raises:
            SourceChanged: the worker has read other content than the kernel is known by now.
            TooManyNames: the kernel has too many names.
            NotFound: the kernel is gone.
            StoreError: the names cannot be recorded.
        """
        directory = self.catalog.find_kernel_environment(kernel).cwd
        placed = [one.convert_places(lambda path: make_absolute(path, directory)) for one in found]
        # Wait until the names are on the disk. Before, a job would store trials under contexts that nothing renames.
        async with self._lock:
            now = self.catalog.resolve_kernel(kernel.name)
            other = kernel.find_contradiction(placed) or now.find_contradiction(placed)
            if other is not None:
                raise SourceChanged(f"{other.name} changed while {kernel.name} was compiled or measured")
            # A name that the inspection itself has read needs no further entry.
            learned = now.with_observed(
                one for one in placed if one.name in now.learned or one.is_data or not one.is_run
            )
            if learned is now:
                return
            if len(learned.learned) > MAX_LEARNED:
                raise TooManyNames(
                    f"{kernel.name} reads more than {MAX_LEARNED} files besides its sources",
                    hint="use fewer include directories, or name those of libraries with -isystem",
                )
            fresh = [entry for name, entry in learned.learned.items() if name not in now.learned]
            changed = [entry for name, entry in learned.learned.items() if now.learned.get(name) != entry]
            self.catalog.update_learned(learned)
            for follower in [one for one in self._followers if one.kernel.name == learned.name]:
                follower.adopt_learned_names(self.catalog.add_learned_names(follower.kernel))
            await self.store.learned.learn_names(learned, changed, fresh)
        names = tuple(entry.name for entry in fresh)
        _log.info("names_learned", kernel=learned.name, count=len(names), first=list(names[:FEW_NAMES]))
        self.publish(NamesLearned(kernel=learned.name, names=names))
