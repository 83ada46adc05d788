"""Poison: the content of an output before a launch, by which elements are recognized that a kernel does not write.

Floating and complex outputs hold a NaN with a payload that no arithmetic makes, integers an odd number near the end of
their range. Types too narrow for either hold a value that a kernel may well write. Such an output counts as unwritten
only if all of it holds the poison. But its timed launches begin with two patterns in turn, so that an unwritten element
differs from one launch to the next.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

_DISTINCT: dict[str, int] = {
    "float64": 0x7FF8_DEAD_DEAD_DEAD,
    "float32": 0x7FC0_DEAD,
    "float16": 0x7EAD,
    "bfloat16": 0x7FDE,
    "float8_e4m3fn": 0xFF,
    "float8_e5m2": 0xFE,
    "int64": 0x7EAD_DEAD_DEAD_DEAD,
    "int32": 0x7EAD_DEAD,
    "int16": 0x7EAD,
    "uint64": 0xDEAD_DEAD_DEAD_DEAD,
    "uint32": 0xDEAD_DEAD,
    "uint16": 0xDEAD,
}
"""Bits that no kernel writes by accident, by dtype; these quiet NaNs differ from the NaNs that conversions give."""

_ORDINARY: dict[str, tuple[int, int]] = {
    "float8_e4m3fnuz": (0x80, 0x7F),
    "float8_e5m2fnuz": (0x80, 0x7F),
    "int8": (0x7F, 0x80),
    "uint8": (0xFF, 0x00),
    "bool": (0x01, 0x00),
}
"""Two poisons by dtype: the bits of the only NaN, the largest value, or ``True``; and for every other launch, those of
the largest value, the smallest, or ``False``.
"""

_PART_DTYPES = {"complex128": "float64", "complex64": "float32"}


class Poison(NamedTuple):
    """The poison of a dtype, as unsigned numbers.

    Attributes:
        width: bits of an element, or of one part of a complex one.
        pattern: the bits with which an output is filled.
        other: the bits with which it is filled before every other timed launch.
        is_distinct: whether no kernel writes the bits by accident; then both patterns are the same.
    """

    width: int
    pattern: int
    other: int
    is_distinct: bool

    @property
    def signed_patterns(self) -> tuple[int, int]:
        """Both patterns, as numbers of a signed type of the same width."""
        return _to_signed(self.pattern, self.width), _to_signed(self.other, self.width)


def look_up_poison(dtype: str) -> Poison:
    """Return the poison of a dtype; a complex one has that of its parts."""
    dtype = _PART_DTYPES.get(dtype, dtype)
    digits = re.search(r"\d+", dtype)
    distinct = _DISTINCT.get(dtype)
    pattern, other = _ORDINARY.get(dtype, (0, 0)) if distinct is None else (distinct, distinct)
    return Poison(int(digits[0]) if digits else 8, pattern, other, distinct is not None)


def fill_with_poison(target: torch.Tensor) -> torch.Tensor:
    """Fill a tensor in place with its dtype's poison; return it."""
    bits, poison = view_as_bits(target), find_poison(target)
    # Fill on the tensor's device: a copy from the host would cost more than all the other work of a trial there.
    bits.fill_(poison.signed_patterns[0])
    return target


def view_as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's memory as signed integers of the elements' size, complex numbers as two."""
    import torch

    plain = torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor
    # torch cannot fill or compare every unsigned dtype, but it can view each as the signed one of its size.
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]
    return plain.view(signed)


def find_poison(tensor: torch.Tensor) -> Poison:
    """Return the poison of a tensor's dtype."""
    return look_up_poison(str(tensor.dtype).removeprefix("torch."))


def _to_signed(pattern: int, width: int) -> int:
    return pattern - (1 << width if pattern >> (width - 1) else 0)
