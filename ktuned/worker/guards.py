"""Guards around all tensors of a problem, on whichever device each of them is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ktuned.ipc import Region
from ktuned.worker.damage import Damage, Memory
from ktuned.worker.device_memory import DeviceMemory
from ktuned.worker.host_memory import HostMemory
from ktuned.worker.tensor_library import library_of


class Guards:
    """Allocates a problem's tensors so that what a launch does outside of them is noticed.

    Without ``is_active`` they are ordinary tensors: a sanitizer knows the bounds of those better.
    """

    def __init__(self, *, is_active: bool = True) -> None:
        self._memories: Mapping[str, Memory] = {"cpu": HostMemory(), "cuda": DeviceMemory()} if is_active else {}

    def place(self, name: str, value: Any) -> Any:
        """Return a copy of a tensor for launches to work on, in place of an earlier one of this name."""
        memory = self._memory_for(value)
        return library_of(value).clone(value) if memory is None else memory.place(name, value)

    def keep(self, name: str, value: Any) -> Any:
        """Return a tensor, or a copy of it, that no launch may change; it is called ``name`` if one does."""
        memory = self._memory_for(value)
        return value if memory is None else memory.keep(name, value)

    def _memory_for(self, value: Any) -> Memory | None:
        """Return the memory for a tensor; ``None`` for one that is more than numbers in memory, or less."""
        return self._memories.get(library_of(value).guarded_on(value))

    def seal(self) -> None:
        """Take the contents of the tensors that are kept for what they must stay; again does nothing."""
        for memory in self._memories.values():
            memory.seal()

    @contextmanager
    def unsealed(self) -> Iterator[None]:
        """Let user code have the tensors that are kept."""
        for memory in self._memories.values():
            memory.unseal()
        try:
            yield
        finally:
            self.seal()

    def damage(self) -> Damage | None:
        """Return what was written outside the placed tensors since the last call; it waits for the device."""
        looks = (memory.damage() for memory in self._memories.values())
        found = [damage for damage in looks if damage is not None]
        return found[0] if found else None

    def intact(self) -> Any:
        """Return a flag on the device that :meth:`damage` would find none, without a wait; ``None`` without any there,
        and for guards that stop the process.
        """
        flags = [flag for memory in self._memories.values() if (flag := memory.intact()) is not None]
        return flags[0] if flags else None

    def regions(self) -> Iterable[Region]:
        """Return the allocations whose guards stop the process at once."""
        return [region for memory in self._memories.values() for region in memory.regions()]
