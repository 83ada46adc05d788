"""Inputs besides a problem's own, on which configs may leave other bits than the anchor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ktuned.worker.tensor_library import library_of

if TYPE_CHECKING:
    from ktuned.spec import TensorSpec

KEPT_BYTES = 1 << 28
"""Memory for inputs that are kept for the next config; larger ones are made for each, which takes as long as a copy."""

Change = Callable[[int, "TensorSpec"], "TensorSpec | None"]
"""Returns a tensor with other content, by its place among a kernel's inputs; ``None`` where it stays as it is."""


class OtherInputs:
    """The inputs by their number; ``make`` makes the tensors that a change gives, with a seed."""

    def __init__(self, make: Callable[[Change, int], dict[str, Any]]) -> None:
        self._make = make
        self._kept: dict[int, Mapping[str, Any]] = {}
        self._room = KEPT_BYTES

    def find_tensors(self, number: int) -> Mapping[str, Any]:
        """Return the tensors that differ in the inputs of a number; none where the kernel has no such inputs."""
        if number not in self._kept:
            made = self._make(*_change_of(number)) if number else {}
            size = sum(library_of(tensor).size(tensor) for tensor in made.values())
            if size > self._room:
                return made
            self._room -= size
            self._kept[number] = made
        return self._kept[number]


def _change_of(number: int) -> tuple[Change, int]:
    """Return what inputs of a number have in another tensor's place, and the seed of their random numbers."""
    from ktuned.spec import EVERYWHERE, HARD_FILLS

    if number > len(HARD_FILLS):
        seed = number - len(HARD_FILLS)
        return (lambda place, entry: _reseeded(entry, seed)), seed
    fill = HARD_FILLS[number - 1]
    step = 1 if fill in EVERYWHERE else 2
    return (lambda place, entry: replace(entry, fill=fill) if entry.may_be_hard and not place % step else None), 0


def _reseeded(entry: TensorSpec, seed: int) -> TensorSpec | None:
    is_random = entry.resolved_fill in ("uniform", "normal", "integer") and not entry.file
    return entry.reseed(seed) if is_random else None
