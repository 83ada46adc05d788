"""Poison: what an output holds before a launch, so that elements that a kernel does not write can be recognized.

Floating and complex outputs hold a NaN with a payload that no arithmetic makes, integers an odd number near the end of
their range. Types too narrow for either hold a value that a kernel may well write. Such an output counts as unwritten
only if it holds nothing else; but its timed launches begin with two patterns in turn, so that an element that is not
written differs from one launch to the next.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

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
"""Bits that no kernel writes by accident, by dtype; these quiet NaNs differ from those that conversions give."""

_ORDINARY: dict[str, int] = {
    "float8_e4m3fnuz": 0x80,
    "float8_e5m2fnuz": 0x80,
    "int8": 0x7F,
    "uint8": 0xFF,
    "bool": 0x01,
}
"""The only NaN, the largest value, or ``True``."""

_OTHER: dict[str, int] = {"float8_e4m3fnuz": 0x7F, "float8_e5m2fnuz": 0x7F, "int8": 0x80, "uint8": 0x00, "bool": 0x00}
"""Every other launch's poison: the largest value, the smallest, or ``False``."""

_PART_DTYPES = {"complex128": "float64", "complex64": "float32"}


def look_up_poison(dtype: str) -> tuple[int, int]:
    """Return the width of a real dtype in bits, and its poison as an unsigned number."""
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 8, _DISTINCT.get(dtype, _ORDINARY.get(dtype, 0))


def look_up_other_poison(dtype: str) -> int:
    """Return the poison of every other launch: another value, for a dtype without a distinct poison."""
    pattern = look_up_poison(_PART_DTYPES.get(dtype, dtype))[1]
    return _OTHER.get(dtype, pattern)


def has_distinct_poison(dtype: str) -> bool:
    """Return whether no kernel writes a real dtype's poison by accident."""
    return dtype in _DISTINCT


def fill_with_poison(target: torch.Tensor) -> torch.Tensor:
    """Fill a tensor in place with its dtype's poison; return it."""
    bits, pattern, _ = _view_with_poison(target)
    # On the tensor's device: a copy from the host would cost more than everything else that a trial does there.
    bits.fill_(pattern)
    return target


def find_unwritten(target: torch.Tensor) -> torch.Tensor:
    """Return where a poisoned tensor was not written, as bools of its shape."""
    bits, pattern, is_distinct = _view_with_poison(target)
    still: torch.Tensor = bits == pattern
    if target.dtype.is_complex:
        still = still.all(-1)
    if not is_distinct and not bool(still.all()):
        still.zero_()
    return still


def hold_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one dtype and shape hold the same bits, NaNs included."""
    import torch

    return torch.equal(view_as_bits(one), view_as_bits(other))


def view_as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's memory as signed integers of the elements' size, complex numbers as two."""
    import torch

    plain = torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor
    # torch cannot fill or compare every unsigned dtype, but it can view each as the signed one of its size.
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]
    return plain.view(signed)


def look_up_signed_poisons(tensor: torch.Tensor) -> tuple[int, int]:
    """Return a tensor's poison and that of every other launch, as numbers of the type of :func:`view_as_bits`."""
    name = str(tensor.dtype).removeprefix("torch.")
    width, pattern = look_up_poison(_PART_DTYPES.get(name, name))
    return _to_signed(pattern, width), _to_signed(look_up_other_poison(name), width)


def _to_signed(pattern: int, width: int) -> int:
    return pattern - (1 << width if pattern >> (width - 1) else 0)


def _view_with_poison(tensor: Any) -> tuple[torch.Tensor, int, bool]:
    name = str(tensor.dtype).removeprefix("torch.")
    width, pattern = look_up_poison(_PART_DTYPES.get(name, name))
    return view_as_bits(tensor), _to_signed(pattern, width), has_distinct_poison(_PART_DTYPES.get(name, name))
