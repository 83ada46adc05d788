"""The arrays of torch and of NumPy that :mod:`ktuned.declaration.draws` works on; each is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ktuned.model import FrozenStruct

if TYPE_CHECKING:
    import torch

_CACHED_WORDS = 1 << 15
"""A chunk and its temporaries take 1 MiB, so that they stay in a core's cache."""

_GPU_WORDS = 1 << 22
"""A chunk and its temporaries take some 100 MiB, and are enough work for any GPU."""


class TorchArrays:
    """Tensors of torch on one device."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        self.chunk = _CACHED_WORDS if self._device.type == "cpu" else _GPU_WORDS

    def make_counters(self, first: int, count: int) -> Any:
        """Return an array of whole numbers from ``first``, on the device."""
        return self._torch.arange(first, first + count, dtype=self._torch.int64, device=self._device)

    def split_words(self, words: Any, bits: int) -> Any:
        """Return words as smaller signed integers."""
        return words.view(getattr(self._torch, f"int{bits}"))

    def convert_dtype(self, array: Any, dtype: str) -> Any:
        """Return a converted copy."""
        return array.to(getattr(self._torch, dtype), copy=True)

    def make_table(self, entries: Sequence[int]) -> Any:
        """Return numbers as float32."""
        return self._torch.tensor(entries, dtype=self._torch.float32, device=self._device)

    def take_entries(self, table: Any, places: Any) -> Any:
        """Return a table's entries."""
        return table.index_select(0, places)

    def make_empty(self, count: int, dtype: str) -> torch.Tensor:
        """Return a new tensor with any content."""
        return self._torch.empty(count, dtype=getattr(self._torch, dtype), device=self._device)

    def store_values(self, target: torch.Tensor, place: int, values: Any, dtype: str) -> None:
        """Round values to a tensor's dtype, into the elements from ``place``."""
        target[place : place + values.numel()] = values


class NumPyArrays:
    """Arrays of NumPy; bfloat16 and float8 are held as unsigned integers with their bits."""

    chunk = _CACHED_WORDS

    def __init__(self) -> None:
        import numpy

        self._numpy = numpy

    def make_counters(self, first: int, count: int) -> Any:
        """Return an array of whole numbers from ``first``, on the device."""
        return self._numpy.arange(first, first + count, dtype=self._numpy.int64)

    def split_words(self, words: Any, bits: int) -> Any:
        """Return words as smaller signed integers."""
        return words.view(f"<i{bits // 8}")

    def convert_dtype(self, array: Any, dtype: str) -> Any:
        """Return a converted copy."""
        return array.astype(dtype)

    def make_table(self, entries: Sequence[int]) -> Any:
        """Return numbers as float32."""
        return self._numpy.array(entries, self._numpy.float32)

    def take_entries(self, table: Any, places: Any) -> Any:
        """Return a table's entries."""
        return table[places]

    def make_empty(self, count: int, dtype: str) -> Any:
        """Return a new array with any content."""
        return self._numpy.empty(count, self.find_holding_dtype(dtype))

    def find_holding_dtype(self, dtype: str) -> str:
        """Return the NumPy dtype that holds a dtype of torch."""
        if dtype in _NARROW_FORMATS:
            return "uint16" if dtype == "bfloat16" else "uint8"
        return dtype

    def store_values(self, target: Any, place: int, values: Any, dtype: str) -> None:
        """Round values to a dtype, into the elements from ``place``."""
        if dtype in _NARROW_FORMATS:
            values = self._round_to_format(values.astype("float32"), _NARROW_FORMATS[dtype])
        target[place : place + values.size] = values

    def _round_to_format(self, x: Any, kind: _NarrowFormat) -> Any:
        """Return the bits of float32 numbers in a narrower format, rounded to nearest even; they are in its range."""
        np = self._numpy
        magnitude = np.abs(x).astype("float64")
        # Denormal numbers are as far apart as the smallest normal ones.
        exponent = np.maximum(np.frexp(magnitude)[1] - 1, 1 - kind.bias)
        exponent[magnitude == 0] = 1 - kind.bias
        steps = np.rint(np.ldexp(magnitude, kind.mantissa_bits - exponent)).astype("int64")
        bits = steps + ((exponent + kind.bias - 1).astype("int64") << kind.mantissa_bits)
        sign = np.signbit(x).astype("int64") << kind.sign_bit
        return bits | (sign if kind.has_negative_zero else np.where(bits == 0, 0, sign))


class _NarrowFormat(FrozenStruct):
    """A floating-point format that NumPy lacks."""

    sign_bit: int
    mantissa_bits: int
    bias: int
    has_negative_zero: bool = True


_NARROW_FORMATS = {
    "bfloat16": _NarrowFormat(15, 7, 127),
    "float8_e4m3fn": _NarrowFormat(7, 3, 7),
    "float8_e4m3fnuz": _NarrowFormat(7, 3, 8, has_negative_zero=False),
    "float8_e5m2": _NarrowFormat(7, 2, 15),
    "float8_e5m2fnuz": _NarrowFormat(7, 2, 16, has_negative_zero=False),
}
