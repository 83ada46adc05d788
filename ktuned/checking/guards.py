"""Guards around all tensors of a problem, on the CPU and on GPUs.

A kernel that writes outside its tensors must be caught, and must not spoil the data by which later configs are checked.
So ktuned places every tensor itself, in memory that reveals such a write (:mod:`ktuned.checking.guard_pages` stops the
process at a guard page, :mod:`ktuned.checking.guard_bands` compares bands of a pattern). There are two kinds:

========  ==========================================================================================================
placed    what launches work on; only the bytes around them are watched
kept      ktuned's own copies (inputs, expected outputs); once *sealed*, not a byte of them may change
========  ==========================================================================================================

Damage is looked for after the last launch of a config, so that it is charged to the config that caused it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ktuned.checking.guard_bands import GuardBands
from ktuned.checking.guard_pages import GuardPages
from ktuned.checking.placement import Damage, Region, Span, find_spans, place_without_guards
from ktuned.checking.tensor_library import find_library


class Guards:
    """Allocates a problem's tensors so that accesses outside of them are noticed.

    Args:
        is_active: whether there are guards. A sanitizer needs ordinary tensors, because it knows their exact bounds.
    """

    def __init__(self, *, is_active: bool = True) -> None:
        self._by_device: Mapping[str, GuardPages | GuardBands] = (
            {"cpu": GuardPages(), "cuda": GuardBands()} if is_active else {}
        )

    def find_spans(self, values: Mapping[str, Any]) -> list[Span]:
        """Return how tensors lie relative to each other in memory. A tensor that is not plain numbers is in no span."""
        kinds = {name: find_library(value).find_guardable_kind(value) for name, value in values.items()}
        alike = [
            [name for name in values if kinds[name] == kind] for kind in dict.fromkeys(filter(None, kinds.values()))
        ]
        return [span for names in alike for span in find_spans({name: values[name] for name in names})]

    def place_tensors(self, values: Mapping[str, Any], spans: Iterable[Span]) -> dict[str, Any]:
        """Return copies of tensors for launches to work on; they replace earlier ones with the same names.

        Tensors of one span keep the distances that :meth:`find_spans` has found. Tensors in no span are cloned.
        """
        placed: dict[str, Any] = {}
        for span in spans:
            first = values[next(iter(span.offsets))]
            guards = self._find_device_guards(first)
            if guards is not None:
                placed |= guards.place_span(span, values)
            elif not span.is_plain(values) and find_library(first).find_guardable_kind(first) == "cpu":
                placed |= place_without_guards(span, values)
        return {
            name: placed[name] if name in placed else find_library(value).clone_tensor(value)
            for name, value in values.items()
        }

    def keep_copy(self, name: str, value: Any) -> Any:
        """Return a copy of a tensor that no launch may change; without guards, the tensor itself.

        ``name`` is what messages call it.
        """
        guards = self._find_device_guards(value)
        return value if guards is None else guards.keep_copy(name, value)

    def _find_device_guards(self, value: Any) -> GuardPages | GuardBands | None:
        """Return the guards for a tensor; ``None`` if its device has none, or it is not plain numbers."""
        return self._by_device.get(find_library(value).find_guardable_kind(value))

    def seal_copies(self) -> None:
        """Protect the kept copies: their present contents must stay. Does nothing if they are sealed already."""
        for guards in self._by_device.values():
            guards.seal_copies()

    @contextmanager
    def unseal_temporarily(self) -> Iterator[None]:
        """Let user code write to the kept copies for a while."""
        for guards in self._by_device.values():
            guards.unseal_copies()
        try:
            yield
        finally:
            self.seal_copies()

    def find_damage(self) -> Damage | None:
        """Return what was damaged outside the placed tensors since the last call. Waits for the device."""
        looks = (guards.find_damage() for guards in self._by_device.values())
        damages = [damage for damage in looks if damage is not None]
        return damages[0] if damages else None

    def make_intact_flag(self) -> Any:
        """Return a flag on the device that is true if nothing is damaged, without waiting for it.

        It is ``None`` if no guarded tensor is on a GPU, because on a CPU :meth:`find_damage` need not wait.
        """
        flags = [flag for guards in self._by_device.values() if (flag := guards.make_intact_flag()) is not None]
        return flags[0] if flags else None

    def list_guarded_regions(self) -> Iterable[Region]:
        """Return the allocations whose guards stop the process, so that a fault's address can be named."""
        pages = self._by_device.get("cpu")
        return pages.list_guarded_regions() if isinstance(pages, GuardPages) else ()
