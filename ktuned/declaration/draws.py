"""Random contents of tensors, with equal bytes on every device: a counter-based generator of integer operations.

Word ``i`` of a stream is ``mix_bits(key + (i + 1) · gamma)`` in 64 bits, as in SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014). No word depends on another, so that each device can make its
own. Elements take the words' bits in order, the low ones first. Floats are made by conversions, one multiplication and
one addition, each rounded once as IEEE 754 demands. torch on the CPU, torch on CUDA and NumPy do all of these alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

_GAMMA = 0x9E37_79B9_7F4A_7C15
_MIXERS = ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB), (31, 1))

_TABLE_BITS = 12
_TABLE_ONE = 1 << 20
"""The unit of the normal distribution's table. Its entries are integers, so that the sum of two is exact."""

_DISTINCT_FLOATS = 1 << 24
"""float32 represents every whole number up to this one."""

_LOW_32 = (1 << 32) - 1


class Arrays(Protocol):
    """The operations that drawing needs, by torch on one device or by NumPy; arrays also support ``+ * & ^ >>``."""

    chunk: int
    """Words that are drawn at once: few enough for a core's cache, or many enough for a GPU."""

    def make_counters(self, first: int, count: int) -> Any:
        """Return ``first``, ``first + 1``, … as ``count`` int64."""

    def split_words(self, words: Any, bits: int) -> Any:
        """Return int64 words as signed integers of 16, 32 or 64 bits, the low part of each word first."""

    def convert_dtype(self, array: Any, dtype: str) -> Any:
        """Return a new array, which may be changed, as int64, float32 or float64, rounded to nearest even."""

    def make_table(self, entries: Sequence[int]) -> Any:
        """Return numbers as an array of float32."""

    def take_entries(self, table: Any, places: Any) -> Any:
        """Return a new array, which may be changed, of a table's entries at some places."""

    def store_values(self, target: Any, place: int, values: Any, dtype: str) -> None:
        """Round values to a dtype, into the elements of an array of this dtype from ``place``."""


def derive_key(text: str) -> int:
    """Return the key of a text's own stream."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def generate_words(arrays: Arrays, key: int, first: int, count: int) -> Any:
    """Return ``count`` random words (int64) of a stream, from number ``first``."""
    z = arrays.make_counters(first + 1, count)
    z *= to_signed(_GAMMA)
    z += to_signed(key)
    return mix_bits(z)


def mix_bits(z: Any) -> Any:
    """Mix the bits of each int64 word in place; different words stay different."""
    for shift, factor in _MIXERS:
        z ^= _shift_right(z, shift)
        if factor != 1:
            z *= to_signed(factor)
    return z


def count_uniform_bits(dtype: str) -> int:
    """Return how many bits a uniform element of a dtype takes: more than its significand holds."""
    if dtype in ("float64", "complex128"):
        return 64
    return 32 if dtype in ("float32", "complex64") else 16


def make_uniform(arrays: Arrays, drawn: Any, bits: int, low: float, high: float) -> Any:
    """Map signed integers of ``bits`` bits to floats in ``[low, high)``: float64 from 64 bits, else float32.

    The numbers lie on a grid of 2^53, 2^24 or 2^16 points, and are exact where ``low`` and ``high`` are powers of two.
    """
    used_bits = {64: 53, 32: 24, 16: 16}[bits]
    x = arrays.convert_dtype(
        drawn >> (bits - used_bits) if used_bits < bits else drawn, "float64" if bits == 64 else "float32"
    )
    half = 1 << (used_bits - 1)
    if low == -high:
        x *= high / half
        return x
    x += float(half)
    x *= high / half / 2 - low / half / 2
    x += low
    return x


def make_integers(arrays: Arrays, drawn: Any, bits: int, low: int, high: int) -> Any:
    """Map signed integers of ``bits`` bits to int64 in ``[low, high)``, by the upper bits of a product.

    Their chances differ by at most ``(high - low) / 2^bits``, relatively.
    """
    count = high - low
    z = arrays.convert_dtype(drawn, "int64")
    if bits == 32:
        z &= _LOW_32
        z *= count
        z >>= 32
    else:
        z = _multiply_high(z, count)
    z += low
    return z


def count_integer_bits(low: int, high: int) -> int:
    """Return how many bits an integer element takes."""
    return 32 if high - low <= 1 << 16 else 64


def fits_float32_exactly(low: int, high: int) -> bool:
    """Return whether float32 represents all whole numbers of a range, so that narrower formats round only once."""
    return max(abs(low), abs(high)) <= _DISTINCT_FLOATS


def make_normal(arrays: Arrays, table: Any, drawn: Any, dtype: str) -> Any:
    """Map signed integers of 32 bits to floats with mean 0 and deviation 1.

    Each is the sum of two entries of the ``table`` of :func:`compute_quantiles`, scaled. The mean is exactly 0, the
    deviation 1 within 1e-6, the kurtosis 2.99; no number is beyond ±5.2.
    """
    mask = (1 << _TABLE_BITS) - 1
    x = arrays.take_entries(table, drawn & mask)
    x += arrays.take_entries(table, (drawn >> _TABLE_BITS) & mask)
    if dtype != "float32":
        x = arrays.convert_dtype(x, dtype)
    x *= 1 / _TABLE_ONE
    return x


@cache
def compute_quantiles() -> tuple[int, ...]:
    """Return the normal distribution's quantiles at the middles of 4,096 equal parts, with a deviation of √½.

    Rounded to 2^-20 they are the same on every machine: libraries' logarithms differ by a billionth of that.
    """
    # Imported here, because it imports fractions and decimal: 5 ms, which workers that draw nothing save.
    from statistics import NormalDist

    count = 1 << _TABLE_BITS
    inverse = NormalDist().inv_cdf
    upper = [inverse((2 * place + 1) / (2 * count)) for place in range(count // 2, count)]
    scale = _TABLE_ONE * (0.25 * count / sum(value * value for value in upper)) ** 0.5
    rounded = [round(value * scale) for value in upper]
    return (*(-value for value in reversed(rounded)), *rounded)


def _multiply_high(z: Any, count: int) -> Any:
    """Return the upper 64 bits of the products of unsigned 64-bit words and a number, by way of 32-bit parts."""
    high, low = _shift_right(z, 32), z & _LOW_32
    count_high, count_low = count >> 32, count & _LOW_32
    cross, other = high * to_signed(count_low), low * to_signed(count_high)
    carry = _shift_right(low * to_signed(count_low), 32) + (cross & _LOW_32) + (other & _LOW_32)
    return high * to_signed(count_high) + _shift_right(cross, 32) + _shift_right(other, 32) + _shift_right(carry, 32)


def _shift_right(z: Any, shift: int) -> Any:
    """Shift to the right and fill with zeros: an int64's own shift repeats the sign."""
    return (z >> shift) & ((1 << (64 - shift)) - 1)


def to_signed(number: int) -> int:
    """Return the int64 with the same bits as an unsigned number."""
    return number - (1 << 64) if number >> 63 else number
