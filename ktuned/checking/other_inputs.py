"""Further inputs of a problem, for finding configs whose bits differ from the anchor's only on some inputs.

Inputs have numbers. Number 0 stands for the problem's own inputs, the next numbers for the hard fills (denormals,
infinities, NaN and others), and all higher numbers for other seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ktuned.checking.tensor_library import library_of

if TYPE_CHECKING:
    from ktuned.spec import TensorSpec

KEPT_BYTES = 1 << 28
"""Most memory for inputs that are kept for the next config. Others are made again, which takes about as long as
copying them."""

Change = Callable[[int, "TensorSpec"], "TensorSpec | None"]
"""Takes a tensor's place among the inputs and its declaration; returns another declaration, or ``None`` to keep it."""


class OtherInputs:
    """Makes inputs by their number, and keeps some of them."""

    def __init__(self) -> None:
        self._kept: dict[int, Mapping[str, Any]] = {}
        self._room = KEPT_BYTES

    def find_tensors(self, number: int, make: Callable[[Change, int], dict[str, Any]]) -> Mapping[str, Any]:
        """Return those tensors of the inputs with a number that differ from the problem's own; possibly none.

        ``make`` takes a change and a seed, and makes the tensors that differ. It is not kept: the problem's data would
        then refer to itself, and its memory would not be freed before Python collects reference cycles.
        """
        if number not in self._kept:
            made = make(*_choose_change(number)) if number else {}
            size = sum(library_of(tensor).count_element_bytes(tensor) for tensor in made.values())
            if size > self._room:
                return made
            self._room -= size
            self._kept[number] = made
        return self._kept[number]


def _choose_change(number: int) -> tuple[Change, int]:
    """Return the change that makes the inputs of a number, and the seed of their random numbers."""
    from ktuned.spec import EVERYWHERE, HARD_FILLS

    if number > len(HARD_FILLS):
        seed = number - len(HARD_FILLS)
        return (lambda place, entry: _reseed_random(entry, seed)), seed
    fill = HARD_FILLS[number - 1]
    step = 1 if fill in EVERYWHERE else 2
    return (lambda place, entry: replace(entry, fill=fill) if entry.may_be_hard and not place % step else None), 0


def _reseed_random(entry: TensorSpec, seed: int) -> TensorSpec | None:
    is_random = entry.resolved_fill in ("uniform", "normal", "integer") and not entry.file
    return entry.reseed(seed) if is_random else None
