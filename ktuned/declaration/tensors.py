"""The tensors that a kernel is measured on: declared by shape, dtype and fill, and made identically for every config.

Declaring one needs no torch. :func:`materialise` makes its content on the device itself, from a key, with the same
bytes on every device (:mod:`ktuned.declaration.draws`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ktuned.declaration import draws
from ktuned.declaration.hard_inputs import HARD_FILLS, draw_hard_numbers
from ktuned.declaration.poisons import fill_with_poison, look_up_poison, view_as_bits
from ktuned.model import UsageError, listed

if TYPE_CHECKING:
    import numpy
    import torch

    from ktuned.backends import Layout
    from ktuned.declaration.draws import Arrays

FLOATS = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
)
COMPLEX = ("complex64", "complex128")
INTEGER_BITS = {
    f"{sign}int{bits}": (0, 2**bits) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
"""Integer dtypes and the half-open ranges of their values."""

DTYPES = (*FLOATS, *COMPLEX, *INTEGER_BITS, "bool")
"""The torch dtypes that a tensor may have, by name."""

FILLS = ("auto", "integer", "uniform", "normal", "zeros", "ones", "empty")

UNIFORM_RANGE = (-1.0, 1.0)
"""Small and centred, so that the sums of a long half-precision product neither overflow nor lose their digits."""

INTEGER_RANGE = (-3, 4)
"""Small integers (unsigned dtypes: from 0): their products and sums are exact in float32 for any usual length."""

_SEED_STEP = 0x9E37_79B9_7F4A_7C15
"""Distance between related seeds: 2^64 divided by the golden ratio, which no two small seeds differ by."""

LARGEST_DRAWN = 2**63 - 1
"""The largest integer that is drawn: integers are drawn as int64, also for uint64."""

_LARGEST = {
    "float16": 65504.0,
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
}
"""The largest number of each dtype with a small range; random numbers are clipped to it."""

_PART_DTYPES = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the two parts of a complex number."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared tensor; see :func:`tensor`.

    With a ``file``, the content is read from that safetensors file, under the tensor's name. Such a file never changes,
    because it is named by the digest of its content.

    Drop-ins record how an application's tensors lie in memory: ``remainder`` is the distance of the first element from
    the last multiple of 256 bytes. ``memory`` names the tensor in whose memory this one lies, ``offset`` bytes after
    its start; it is the tensor's own name if others lie in its memory, and empty if none do.
    """

    shape: tuple[int, ...]
    dtype: str
    fill: str
    output: bool
    seed: int | None
    low: float | None
    high: float | None
    file: str = ""
    remainder: int = 0
    memory: str = ""
    offset: int = 0

    @property
    def resolved_fill(self) -> str:
        """The fill; for ``auto``, the fill that this tensor gets."""
        if self.fill != "auto":
            return self.fill
        if self.output:
            return "empty"
        return "uniform" if self.dtype in FLOATS or self.dtype in COMPLEX else "integer"

    @property
    def may_be_hard(self) -> bool:
        """True if the tensor may hold any number. A tensor with a declared range gets no numbers outside it."""
        is_random = self.resolved_fill in ("uniform", "normal") and not self.file
        return is_random and self.low is None and self.high is None

    def reseed(self, number: int) -> TensorSpec:
        """Return the tensor with other random numbers, if it has its own seed; others follow the problem's seed."""
        return self if self.seed is None else replace(self, seed=self.seed + number * _SEED_STEP)

    @property
    def range(self) -> tuple[float, float]:
        """The half-open range ``[low, high)`` that ``uniform`` and ``integer`` draw from."""
        if self.resolved_fill == "uniform":
            low, high = UNIFORM_RANGE
        elif self.dtype == "bool":
            low, high = 0, 2
        else:
            low, high = INTEGER_RANGE
            low = max(low, INTEGER_BITS.get(self.dtype, (low,))[0])
        return (low if self.low is None else self.low, high if self.high is None else self.high)


def tensor(
    shape: int | Iterable[int],
    dtype: Any = "float32",
    fill: str = "auto",
    *,
    output: bool = False,
    seed: int | None = None,
    low: float | None = None,
    high: float | None = None,
) -> TensorSpec:
    """Declare a tensor of a kernel's inputs.

    Fills: ``uniform`` draws from ``[low, high)``, by default ``[-1, 1)``; ``integer`` draws whole numbers from
    ``[low, high)``, by default -3 to 3 (unsigned: 0 to 3; bool: a coin), also for floating dtypes; ``normal`` has
    mean 0 and deviation 1; ``zeros``; ``ones``; ``empty`` is poisoned (see :mod:`ktuned.declaration.poisons`). ``auto``
    is ``empty`` for an output, ``uniform`` for floating dtypes and ``integer`` for the others.

    ``dtype`` is a torch dtype or its name. ``output`` marks a tensor that the kernel writes and that is checked.
    Without a ``seed``, one is derived from the tensor's name and problem.

    Raises:
        UsageError: an argument is not valid.
    """
    if fault := _find_shape_fault(shape):
        raise UsageError(f"tensor: {fault}")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    for size in sizes:
        if type(size) is not int or size < 0:
            raise UsageError(f"tensor: the shape {sizes!r} holds {size!r}, which is not an int >= 0")
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UsageError(f"tensor: there is no dtype {name!r} {listed(DTYPES, near=name)}")
    if fill not in FILLS:
        raise UsageError(f"tensor: there is no fill {fill!r} {listed(FILLS, near=str(fill))}")
    if seed is not None and type(seed) is not int:
        raise UsageError(f"tensor: the seed {seed!r} is not an int")
    for limit in (low, high):
        if limit is not None and not math.isfinite(limit):
            raise UsageError(f"tensor: the limit {limit!r} is not finite")
    spec = TensorSpec(sizes, name, fill, bool(output), seed, low, high)
    if fault := _find_fill_fault(spec):
        raise UsageError(f"tensor: {fault}")
    return spec


def _find_shape_fault(shape: object) -> str:
    if isinstance(shape, float):
        return f"the shape {shape!r} is not an int; // divides ints"
    is_one = isinstance(shape, Iterable) and not isinstance(shape, str)
    return "" if is_one or isinstance(shape, int) else f"the shape {shape!r} is neither an int nor a tuple of ints"


def find_layout(entry: Any) -> Layout | None:
    """Return the dtype, shape and strides of an entry of ``inputs``: a :class:`TensorSpec`, a tensor or an array.

    A sparse tensor has no strides, and thus no layout.
    """
    if isinstance(entry, TensorSpec):
        strides = tuple(math.prod(entry.shape[axis + 1 :]) for axis in range(len(entry.shape)))
        return entry.dtype, entry.shape, strides
    from ktuned.backends import read_layout

    return read_layout(entry)


def materialise(spec: TensorSpec, name: str, seed_text: str, device: str) -> torch.Tensor:
    """Make a tensor on the device itself.

    Args:
        spec: its declaration.
        name: its name among the inputs.
        seed_text: gives, together with ``name``, the key of the random numbers, unless the spec has a seed. Equal texts
            give equal bytes in any process, on any device, and in :func:`materialise_numpy`.
        device: ``cpu`` or ``cuda:0``.
    """
    import torch

    from ktuned.declaration.arrays import TorchArrays

    dtype = getattr(torch, spec.dtype)
    if spec.file:
        found: torch.Tensor = _read_file(spec, name, "pt").to(device)
        return found
    fill = spec.resolved_fill
    if fill == "empty":
        return fill_with_poison(torch.empty(spec.shape, dtype=dtype, device=device))
    if fill in ("zeros", "ones"):
        return torch.full(spec.shape, int(fill == "ones"), dtype=torch.int8, device=device).to(dtype)
    part = _PART_DTYPES.get(spec.dtype, spec.dtype)
    count = math.prod(spec.shape) * (1 + (part != spec.dtype))
    arrays = TorchArrays(device)
    made = arrays.make_empty(count, part)
    _draw_elements(arrays, spec, part, _derive_key(spec, name, seed_text), made, view_as_bits(made))
    return (torch.view_as_complex(made.view(-1, 2)) if part != spec.dtype else made).view(spec.shape)


def materialise_numpy(spec: TensorSpec, name: str, seed_text: str) -> numpy.ndarray[Any, Any]:
    """Make a tensor as a NumPy array with the same bytes as :func:`materialise`.

    NumPy has no bfloat16 and no float8: their arrays hold the bits, as uint16 or uint8.
    """
    import numpy

    from ktuned.declaration.arrays import NumPyArrays

    if spec.file:
        found: numpy.ndarray[Any, Any] = _read_file(spec, name, "np")
        return found
    arrays = NumPyArrays()
    fill = spec.resolved_fill
    part = _PART_DTYPES.get(spec.dtype, spec.dtype)
    count = math.prod(spec.shape) * (1 + (part != spec.dtype))
    if fill == "empty":
        poison = look_up_poison(part)
        made = numpy.full(count, poison.pattern, f"uint{poison.width}").view(arrays.find_holding_dtype(part))
    else:
        made = arrays.make_empty(count, part)
        if fill in ("zeros", "ones"):
            arrays.store_values(made, 0, numpy.zeros(count, "float32"), part)
            step = 1 + (part != spec.dtype)
            if fill == "ones":
                arrays.store_values(made[::step], 0, numpy.ones(count // step, "float32"), part)
        else:
            bits = made.view(f"int{8 * made.itemsize}")
            _draw_elements(arrays, spec, part, _derive_key(spec, name, seed_text), made, bits)
    return (made.view(spec.dtype) if part != spec.dtype else made).reshape(spec.shape)


def _read_file(spec: TensorSpec, name: str, framework: str) -> Any:
    """Read the tensor with this name from the spec's file, for a ``framework`` of safetensors (``pt`` or ``np``).

    Raises:
        RuntimeError: the file is not there, or holds no such tensor.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(spec.file, framework=framework) as held:
            found = held.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise RuntimeError(f"{spec.file}: {error}") from error
    if (tuple(found.shape), str(found.dtype).removeprefix("torch.")) != (spec.shape, spec.dtype):
        raise RuntimeError(f"{spec.file} holds {name} as {found.dtype} of {tuple(found.shape)}")
    return found


def _draw_elements(arrays: Arrays, spec: TensorSpec, part: str, key: int, made: Any, bits: Any) -> None:
    """Fill the array ``made`` with a random tensor's elements; ``bits`` is the same memory as integers."""
    if spec.resolved_fill in HARD_FILLS:
        for place, values in draw_hard_numbers(arrays, spec.resolved_fill, part, len(made), key):
            bits[place : place + len(values)] = values
        return
    for place, values in _draw_values(arrays, spec, part, len(made), key):
        arrays.store_values(made, place, values, part)


def _draw_values(arrays: Arrays, spec: TensorSpec, part: str, count: int, key: int) -> Iterator[tuple[int, Any]]:
    """Yield the values of a random tensor's elements in chunks, each with the place of its first element."""
    fill = spec.resolved_fill
    low, high = spec.range
    whole = int(low), int(high)
    bits = 32
    if fill == "integer":
        bits = draws.count_integer_bits(*whole)
    elif fill == "uniform":
        bits = draws.count_uniform_bits(part)
    table = arrays.make_table(draws.compute_quantiles()) if fill == "normal" else None
    largest = _LARGEST.get(part, math.inf)
    each = 64 // bits
    for first in range(0, -(-count // each), arrays.chunk):
        place = first * each
        number = min(count - place, arrays.chunk * each)
        drawn = arrays.split_words(draws.generate_words(arrays, key, first, -(-number // each)), bits)[:number]
        if fill == "uniform":
            values = draws.make_uniform(arrays, drawn, bits, low, high)
        elif fill == "normal":
            values = draws.make_normal(arrays, table, drawn, "float64" if part == "float64" else "float32")
        else:
            values = draws.make_integers(arrays, drawn, bits, *whole)
            if part in FLOATS and not draws.fits_float32_exactly(*whole):
                # All libraries round float32 to narrower formats in the same way, but perhaps not int64.
                values = arrays.convert_dtype(values, "float64" if part == "float64" else "float32")
        if max(-low, high) > largest:
            # Libraries convert larger numbers differently.
            values = values.clip(-largest, largest)
        yield place, values


def _derive_key(spec: TensorSpec, name: str, seed_text: str) -> int:
    return draws.derive_key(f"seed {spec.seed}" if spec.seed is not None else f"{seed_text}\0{name}")


def _find_fill_fault(spec: TensorSpec) -> str:
    fill = spec.resolved_fill
    continuous = spec.dtype in FLOATS or spec.dtype in COMPLEX
    if fill in ("uniform", "normal") and not continuous:
        return f"{spec.dtype} cannot be filled {fill!r}: use fill='integer'"
    if spec.low is None and spec.high is None:
        return ""
    if fill not in ("uniform", "integer"):
        return f"low and high have no effect with the fill {fill!r}"
    low, high = spec.range
    if not low < high:
        return f"low={low!r} is not below high={high!r}"
    if fill == "integer" and (low != int(low) or high != int(high)):
        return f"the fill 'integer' needs whole numbers, not low={low!r}, high={high!r}"
    first, end = INTEGER_BITS.get(spec.dtype, (0, 2) if spec.dtype == "bool" else (-math.inf, math.inf))
    if low < first or high > (min(end, LARGEST_DRAWN) if fill == "integer" else end):
        return f"{spec.dtype} cannot hold all values of [{low}, {high}), or ktuned cannot draw them"
    return ""
