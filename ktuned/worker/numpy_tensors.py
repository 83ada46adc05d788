"""NumPy's arrays as tensors on the CPU, where torch is not installed. NumPy is imported when it is first used.

The methods are documented in :class:`~ktuned.worker.tensor_library.TensorLibrary`; docstrings here say how they work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktuned.model import UsageError

if TYPE_CHECKING:
    from ktuned.spec import Poison, TensorSpec

ALIGNMENT = 64
"""Alignment of torch's own allocations in bytes: a cache line."""

_NEEDS_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""Remedy for a dtype that NumPy lacks; torch for the CPU is enough."""


class NumPyTensors:
    """Implements :class:`ktuned.worker.tensor_library.TensorLibrary`."""

    word = "numpy.ndarray"

    @property
    def arithmetic(self) -> Any:
        """NumPy, imported on first use."""
        import numpy

        return numpy

    def seed_generator(self, number: int) -> None:
        """Seed NumPy's global generator, which takes 32 bits."""
        self.arithmetic.random.seed(number % 2**32)

    def make_tensor(self, spec: TensorSpec, name: str, seed_text: str, device: str) -> Any:
        """Make an array with the same bytes as torch's tensor."""
        from ktuned.spec import materialise_numpy

        if not hasattr(self.arithmetic, spec.dtype) and spec.dtype != "bool":
            raise UsageError(f"NumPy has no {spec.dtype}, and torch is not installed here", hint=_NEEDS_TORCH)
        try:
            return materialise_numpy(spec, name, seed_text)
        except MemoryError as error:
            raise RuntimeError(str(error)) from error

    def adopt_tensor(self, value: Any, device: str, moved: dict[int, Any] | None = None) -> Any:
        """Take arrays as they are, and NumPy's scalars as arrays."""
        return self.arithmetic.asarray(value) if type(value).__module__ == "numpy" else None

    def load_tensors(self, file: Path, device: str) -> dict[str, Any]:
        """Load a file; fails for dtypes that NumPy lacks."""
        from safetensors.numpy import load_file

        return dict(load_file(file))

    def save_tensors(self, tensors: Mapping[str, Any], file: Path) -> None:
        """Save contiguous copies: the format knows no strides."""
        from safetensors.numpy import save_file

        save_file({name: self.arithmetic.ascontiguousarray(value) for name, value in tensors.items()}, file)

    def find_guarded_kind(self, tensor: Any) -> str:
        """Guard arrays of plain numbers."""
        numpy = self.arithmetic
        return "cpu" if type(tensor) is numpy.ndarray and tensor.size > 0 and tensor.dtype.kind in "fiucb" else ""

    def count_element_bytes(self, tensor: Any) -> int:
        """Count the elements, not what they are a view of."""
        return int(tensor.nbytes)

    def find_extent(self, tensor: Any) -> tuple[int, int]:
        """Ask NumPy, which handles negative strides."""
        return find_extent(tensor)

    def find_allocation(self, tensor: Any) -> tuple[int, int]:
        """Follow the views to the array that owns the memory; memory that is not NumPy's is not known."""
        return find_allocation(tensor)

    def copy_into_memory(self, memory: Any, offset: int, tensor: Any) -> Any:
        """Copy into the buffer, which the array keeps alive."""
        first = offset + tensor.ctypes.data - find_extent(tensor)[0]
        copy = self.arithmetic.ndarray(tensor.shape, tensor.dtype, memory, first, tensor.strides)
        copy[...] = tensor
        return copy

    def read_layout(self, tensor: Any) -> tuple[object, ...]:
        """Return shape and dtype, and where the elements are."""
        return tensor.shape, tensor.dtype, tensor.strides, tensor.ctypes.data

    def clone_tensor(self, tensor: Any) -> Any:
        """Copy; an array with gaps or overlapping elements gets memory laid out like its own."""
        numpy = self.arithmetic
        size = find_extent(tensor)[1]
        if size == tensor.nbytes and tensor.flags.forc:
            return numpy.array(tensor, copy=True)
        return self.copy_into_memory(numpy.zeros(size, "uint8"), 0, tensor)

    def make_contiguous(self, tensor: Any) -> Any:
        """Copy even a contiguous array: it may be a small part of a large allocation."""
        return self.arithmetic.array(tensor, copy=True, order="C")

    def copy_elements(self, source: Any, target: Any) -> None:
        """Copy the elements."""
        target[...] = source

    def convert_like(self, tensor: Any, other: Any) -> Any:
        """Convert the dtype, then the shape."""
        return tensor.astype(other.dtype).reshape(other.shape)

    def move_to_device_of(self, tensor: Any, other: Any) -> Any:
        """Return the array itself: there is one device."""
        return tensor

    def poison_tensor(self, tensor: Any) -> None:
        """Fill real and imaginary parts."""
        for bits, poison in self._view_parts(tensor):
            bits[...] = poison.pattern

    def view_bits(self, tensor: Any) -> list[tuple[Any, tuple[int, int]]]:
        """View the real and the imaginary parts as unsigned integers."""
        return [(bits, (poison.pattern, poison.other)) for bits, poison in self._view_parts(tensor)]

    def are_equal_bits(self, one: Any, other: Any) -> bool:
        """Compare the elements."""
        return bool((one == other).all())

    def find_unwritten(self, tensor: Any) -> Any:
        """Find elements all of whose parts are poison.

        In narrow dtypes the poison is an ordinary number. There, the elements count only if the whole array holds it.
        """
        numpy = self.arithmetic
        still = numpy.ones(tensor.shape, "bool")
        for bits, poison in self._view_parts(tensor):
            still &= bits == poison.pattern
            if not poison.is_distinct and not still.all():
                still[...] = False
        return still

    def are_same_tensors(self, one: Any, other: Any) -> bool:
        """Compare the parts."""
        parts = zip(self._view_parts(one), self._view_parts(other), strict=True)
        return all(bool((bits == others).all()) for (bits, _), (others, _) in parts)

    def digest_tensors(self, tensors: Sequence[Any]) -> str:
        """Hash the elements in their order."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in tensors:
            digest.update(self.arithmetic.ascontiguousarray(tensor).reshape(-1).view("uint8"))
        return digest.hexdigest()

    def read_digests(self, digests: Sequence[str]) -> list[str]:
        """Return the texts: they were computed at once."""
        return list(digests)

    def find_number_kind(self, tensor: Any) -> str:
        """Ask the dtype."""
        return {"c": "complex", "f": "float"}.get(tensor.dtype.kind, "int")

    def cast_tensor(self, tensor: Any, dtype: str) -> Any:
        """Convert, also scalars that arithmetic has made of arrays without dimensions."""
        return self.arithmetic.asarray(tensor).astype(dtype)

    def round_number(self, number: float, element: Any) -> object:
        """Round through a scalar of the dtype."""
        return element.dtype.type(number).item()

    def silence_warnings(self) -> AbstractContextManager[object]:
        """Suppress NumPy's warnings."""
        quiet: AbstractContextManager[object] = self.arithmetic.errstate(all="ignore")
        return quiet

    def _view_parts(self, tensor: Any) -> list[tuple[Any, Poison]]:
        """Return real and imaginary parts as unsigned integers, with their poison."""
        from ktuned.spec import look_up_poison

        poison = look_up_poison(str(tensor.dtype))
        parts = [tensor.real, tensor.imag] if tensor.dtype.kind == "c" else [tensor]
        return [(part.view(f"u{poison.width // 8}"), poison) for part in parts]


def find_extent(array: Any) -> tuple[int, int]:
    """Return the address of an array's lowest byte, and how many bytes lie up to its highest."""
    from numpy.lib.array_utils import byte_bounds

    if not array.size:
        return array.ctypes.data, 0
    low, high = byte_bounds(array)
    return int(low), int(high - low)


def find_allocation(array: Any) -> tuple[int, int]:
    """Return the extent of the array that owns a view's memory."""
    owner = array
    while type(owner.base).__module__ == "numpy":
        owner = owner.base
    return find_extent(owner)
