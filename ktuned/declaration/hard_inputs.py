"""Hard inputs: random numbers, made bit by bit, on which arithmetic that looks equal gives different results.

Two configs that add in another order, contract a product, flush denormals or rewrite ``x + 0`` agree on most numbers.
On each kind of input here, some such pair differs:

================  ==================================================================================================
fill              the numbers
================  ==================================================================================================
``magnitudes``    of very different size, so that sums depend on their order
``cancelling``    pairs of opposite numbers that differ in the last bit, so that a sum consists of rounding errors
``denormals``     below the smallest normal number, where some arithmetic takes them for zero; in runs among zeros,
                  because a CPU takes a hundred times as long for a denormal
``signed_zeros``  0 and -0
``infinities``    one in sixteen is infinite, the others are ordinary
``nans``          one in sixteen is a NaN with a payload of its own, the others are ordinary
================  ==================================================================================================

The first two fill all tensors. The others fill every second tensor: the product of a special number and an ordinary one
is special, but the product of two special numbers often is not. All numbers are made by integer operations alone, as in
:mod:`ktuned.declaration.draws`, so that they have the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ktuned.declaration import draws
from ktuned.declaration.draws import Arrays
from ktuned.model import FrozenStruct

HARD_FILLS = ("magnitudes", "cancelling", "denormals", "signed_zeros", "infinities", "nans")

EVERYWHERE = frozenset({"magnitudes", "cancelling"})
"""Fills that all tensors of a kernel get at once; the others go to every second one."""

_RARE = 15
"""Mask of random bits. A number becomes an infinity or a NaN if all of these are zero: one in sixteen does."""

_RUN = 8
"""Binary logarithm of a run's length: a run is denormal or zero as a whole, so that its sum stays denormal."""

_WIDEST = 30
"""Magnitudes range from 2^-30 to 2^30, so that their products are finite in float32."""


class _Format(FrozenStruct):
    """A floating-point format: the bits of its exponent and of its significand."""

    exponent: int
    mantissa: int

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def sign_mask(self) -> int:
        return draws.to_signed(1 << (self.width - 1)) if self.width == 64 else 1 << (self.width - 1)

    @property
    def mantissa_mask(self) -> int:
        return (1 << self.mantissa) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa


_FORMATS = {
    "float64": _Format(11, 52),
    "float32": _Format(8, 23),
    "float16": _Format(5, 10),
    "bfloat16": _Format(8, 7),
    "float8_e4m3fn": _Format(4, 3),
    "float8_e4m3fnuz": _Format(4, 3),
    "float8_e5m2": _Format(5, 2),
    "float8_e5m2fnuz": _Format(5, 2),
}


def draw_hard_numbers(arrays: Arrays, fill: str, dtype: str, count: int, key: int) -> Iterator[tuple[int, Any]]:
    """Yield the bits (int64) of a tensor's elements in chunks, each with the place of its first element."""
    form = _FORMATS[dtype]
    # Each element takes a whole word: its bits also decide whether the element is special.
    for first in range(0, count, arrays.chunk):
        number = min(count - first, arrays.chunk)
        drawn = _make_bits(arrays, fill, form, draws.generate_words(arrays, key, first, number), is_start=not first)
        yield first, drawn * _mask_runs(arrays, first, number) if fill == "denormals" else drawn


def _mask_runs(arrays: Arrays, first: int, count: int) -> Any:
    """Return 1 for elements of runs that are not zero, else 0. One run in sixteen is not zero, and always the first."""
    run = arrays.make_counters(first, count) >> _RUN
    is_first = run == 0
    return arrays.convert_dtype(is_first | ((draws.mix_bits(run) & _RARE) == 0), "int64")


def _make_bits(arrays: Arrays, fill: str, form: _Format, z: Any, *, is_start: bool) -> Any:
    """Return the bits of numbers of a format from random words ``z``; ``is_start`` if they are a tensor's first."""
    # The low bits become the significand. The high bits, which are independent of them, decide all else.
    mantissa, chosen = z & form.mantissa_mask, z >> 56
    sign = (z >> 63) & form.sign_mask
    match fill:
        case "denormals":
            return sign | mantissa
        case "signed_zeros":
            return sign
        case "magnitudes":
            return sign | mantissa | _draw_exponents(form, z >> 53, min(_WIDEST, 2 * form.bias // 5))
        case "cancelling":
            made = sign | mantissa | _draw_exponents(form, z >> 53, 2)
            pairs = len(made) // 2
            # The second of each pair is the opposite of the first, and may differ in the last bit.
            last = made[1 : 2 * pairs : 2] & 1
            made[1 : 2 * pairs : 2] = (made[0 : 2 * pairs : 2] ^ form.sign_mask) ^ last
            return made
    ordinary = sign | mantissa | _draw_exponents(form, z >> 53, 2)
    special = sign | form.infinity
    if fill == "nans":
        # A NaN without a payload would be an infinity.
        special = special | mantissa | 1
    is_special = arrays.convert_dtype((chosen & _RARE) == 0, "int64")
    if is_start:
        # Even the smallest tensor gets one.
        is_special[:1] = 1
    return ordinary + is_special * (special - ordinary)


def _draw_exponents(form: _Format, random: Any, span: int) -> Any:
    """Return random exponents for magnitudes from 2^-span to 2^span, shifted to their place in the format."""
    return ((random & 0x3FF) % (2 * span + 1) + (form.bias - span)) << form.mantissa
