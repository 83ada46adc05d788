"""Tensors that a kernel is measured on: declared by shape, dtype and fill, made identically for every config.

Declaring one needs no torch. :func:`materialise` makes it on the CPU, from a seed, and only then moves it, so that
every config and every device sees the same data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ktuned.model import UsageError, listed
from ktuned.spec.poisons import poison

if TYPE_CHECKING:
    import torch

    from ktuned.backends import Layout

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
"""Integer dtypes and the half-open range of what they hold."""

DTYPES = (*FLOATS, *COMPLEX, *INTEGER_BITS, "bool")
"""The torch dtypes that a tensor may have, by name."""

FILLS = ("auto", "integer", "uniform", "normal", "zeros", "ones", "empty")

UNIFORM_RANGE = (-1.0, 1.0)
"""Small and centred, so that the sums of a long half-precision product neither overflow nor lose their digits."""

INTEGER_RANGE = (-3, 4)
"""Small integers (unsigned dtypes: from 0): their products and sums are exact in float32 for any usual length."""

LARGEST_DRAWN = 2**63 - 1
"""torch draws integers as int64, for uint64 too."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared tensor; see :func:`tensor`."""

    shape: tuple[int, ...]
    dtype: str
    fill: str
    output: bool
    seed: int | None
    low: float | None
    high: float | None

    @property
    def resolved_fill(self) -> str:
        """The fill, with what ``auto`` means for this tensor spelt out."""
        if self.fill != "auto":
            return self.fill
        if self.output:
            return "empty"
        return "uniform" if self.dtype in FLOATS or self.dtype in COMPLEX else "integer"

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
    mean 0 and deviation 1; ``zeros``; ``ones``; ``empty`` is poisoned (see :mod:`ktuned.spec.poisons`). ``auto`` is
    ``empty`` for an output, ``uniform`` for floating dtypes and ``integer`` for the others.

    ``dtype`` is a torch dtype or its name. ``output`` marks what the kernel writes and checks look at. Without a
    ``seed``, one is derived from the tensor's name and problem.

    Raises:
        UsageError: an argument is not valid.
    """
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
    if fault := _fill_fault(spec):
        raise UsageError(f"tensor: {fault}")
    return spec


def layout(entry: Any) -> Layout:
    """Return the dtype, shape and strides of an entry of ``inputs``: a :class:`TensorSpec` or a torch.Tensor."""
    if isinstance(entry, TensorSpec):
        strides = tuple(math.prod(entry.shape[axis + 1 :]) for axis in range(len(entry.shape)))
        return entry.dtype, entry.shape, strides
    return str(entry.dtype).removeprefix("torch."), tuple(entry.shape), tuple(entry.stride())


def materialise(spec: TensorSpec, name: str, seed_text: str, device: str) -> torch.Tensor:
    """Make the tensor called ``name`` on ``device`` (``cpu``, ``cuda:0``).

    The seed is the spec's, or else the SHA-256 of ``seed_text`` and ``name``: equal texts give equal bits, in any
    process. Half and smaller dtypes are drawn in float32 and rounded.
    """
    import torch

    dtype = getattr(torch, spec.dtype)
    fill = spec.resolved_fill
    if fill == "empty":
        return poison(torch.empty(spec.shape, dtype=dtype, device=device))
    if fill in ("zeros", "ones"):
        return torch.full(spec.shape, int(fill == "ones"), dtype=torch.int8).to(dtype).to(device)
    generator = torch.Generator().manual_seed(_seed(spec, name, seed_text))
    low, high = spec.range
    if fill == "integer":
        drawn = torch.randint(int(low), int(high), spec.shape, generator=generator)
        return drawn.to(dtype).to(device)
    wide = torch.float64 if spec.dtype in ("float64", "complex128") else torch.float32
    shape = (*spec.shape, 2) if spec.dtype in COMPLEX else spec.shape
    drawn = torch.empty(shape, dtype=wide)
    drawn = drawn.normal_(generator=generator) if fill == "normal" else drawn.uniform_(low, high, generator=generator)
    return (torch.view_as_complex(drawn) if spec.dtype in COMPLEX else drawn).to(dtype).to(device)


def _seed(spec: TensorSpec, name: str, seed_text: str) -> int:
    if spec.seed is not None:
        return spec.seed % 2**63
    digest = hashlib.sha256(f"{seed_text}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _fill_fault(spec: TensorSpec) -> str:
    fill = spec.resolved_fill
    continuous = spec.dtype in FLOATS or spec.dtype in COMPLEX
    if fill in ("uniform", "normal") and not continuous:
        return f"{spec.dtype} cannot be filled {fill!r}; say fill='integer'"
    if spec.low is None and spec.high is None:
        return ""
    if fill not in ("uniform", "integer"):
        return f"low and high mean nothing to the fill {fill!r}"
    low, high = spec.range
    if not low < high:
        return f"low={low!r} is not below high={high!r}"
    if fill == "integer" and (low != int(low) or high != int(high)):
        return f"the fill 'integer' needs whole numbers, not low={low!r}, high={high!r}"
    first, end = INTEGER_BITS.get(spec.dtype, (0, 2) if spec.dtype == "bool" else (-math.inf, math.inf))
    if low < first or high > (min(end, LARGEST_DRAWN) if fill == "integer" else end):
        return f"{spec.dtype} cannot hold or be drawn from all of [{low}, {high})"
    return ""
