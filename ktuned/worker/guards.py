"""Guards around all tensors of a problem, on whichever device each of them is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ktuned.ipc import Region
from ktuned.worker.damage import Damage, Memory
from ktuned.worker.device_memory import DeviceMemory
from ktuned.worker.host_memory import HostMemory
from ktuned.worker.placement import Span, find_spans, place_plainly
from ktuned.worker.tensor_library import library_of


class Guards:
    """Allocates a problem's tensors so that what a launch does outside of them is noticed.

    Without ``is_active`` they are ordinary tensors: a sanitizer knows the bounds of those better.
    """

    def __init__(self, *, is_active: bool = True) -> None:
        self._memories: Mapping[str, Memory] = {"cpu": HostMemory(), "cuda": DeviceMemory()} if is_active else {}

    def find_spans(self, values: Mapping[str, Any]) -> list[Span]:
        """Return how tensors lie to each other; what is more than numbers in memory, or less, is in no span."""
        kinds = {name: library_of(value).guarded_on(value) for name, value in values.items()}
        alike = [
            [name for name in values if kinds[name] == kind] for kind in dict.fromkeys(filter(None, kinds.values()))
        ]
        return [span for names in alike for span in find_spans({name: values[name] for name in names})]

    def place(self, values: Mapping[str, Any], spans: Iterable[Span]) -> dict[str, Any]:
        """Return copies of tensors for launches to work on, in place of earlier ones of these names.

        Those of a span lie in it as they do in what :meth:`find_spans` has seen.
        """
        placed: dict[str, Any] = {}
        for span in spans:
            first = values[next(iter(span.offsets))]
            memory = self._memory_for(first)
            if memory is not None:
                placed |= memory.place(span, values)
            elif not span.is_plain(values) and library_of(first).guarded_on(first) == "cpu":
                placed |= place_plainly(span, values)
        return {name: placed[name] if name in placed else library_of(one).clone(one) for name, one in values.items()}

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
