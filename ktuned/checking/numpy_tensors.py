"""NumPy's arrays as tensors on the CPU, where torch is not installed. NumPy is imported when it is first used.

The docstrings of :class:`NumPyTensors` say what measuring needs of a tensor library; those of
:class:`~ktuned.checking.torch_tensors.TorchTensors` say how torch's tensors give it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktuned.model import UsageError

if TYPE_CHECKING:
    from ktuned.declaration import Poison, TensorSpec

ALIGNMENT = 64
"""Alignment of torch's own allocations in bytes: a cache line."""

PAIRS = ":pairs"
"""Ends the names of tensors that a safetensors file holds as pairs of float64, because it cannot hold complex128."""

_NEEDS_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""Remedy for a dtype that NumPy lacks; torch for the CPU is enough."""


class NumPyTensors:
    """The operations on tensors that measuring needs. ``type_name`` is the tensors' type, as messages name it."""

    type_name = "numpy.ndarray"

    @property
    def module(self) -> Any:
        """The library's module, for functions that both libraries have; imported when first used."""
        import numpy

        return numpy

    def seed_generator(self, number: int) -> None:
        """Seed the library's global generator, which a kernel file's ``inputs`` may draw from."""
        self.module.random.seed(number % 2**32)

    def make_tensor(self, spec: TensorSpec, name: str, seed_text: str, device: str) -> Any:
        """Make a tensor that a kernel file declares, with equal bytes in each library.

        Raises:
            RuntimeError: there is no memory for it.
            UsageError: the library lacks its dtype.
        """
        from ktuned.declaration import materialise_numpy

        if not hasattr(self.module, spec.dtype) and spec.dtype != "bool":
            raise UsageError(f"NumPy has no {spec.dtype}, and torch is not installed here", hint=_NEEDS_TORCH)
        try:
            return materialise_numpy(spec, name, seed_text)
        except MemoryError as error:
            raise RuntimeError(str(error)) from error

    def adopt_tensor(self, value: Any, device: str, moved: dict[int, Any] | None = None) -> Any:
        """Return a tensor of user code as a tensor of this library; ``None`` if the value is no tensor.

        ``moved`` collects the allocations that were copied to the device, by their address on the host, so that arrays
        which share memory still share it there.

        Raises:
            UsageError: the library cannot represent it.
        """
        return self.module.asarray(value) if type(value).__module__ == "numpy" else None

    def load_tensors(self, file: Path) -> dict[str, Any]:
        """Read the tensors of a safetensors file to the CPU."""
        from safetensors.numpy import load_file

        return {
            name.removesuffix(PAIRS): value.view("complex128")[..., 0] if name.endswith(PAIRS) else value
            for name, value in load_file(file).items()
        }

    def save_tensors(self, tensors: Mapping[str, Any], file: Path) -> None:
        """Write a safetensors file."""
        from safetensors.numpy import save_file

        saved = {}
        for name, value in tensors.items():
            copied = value.copy("C")
            if copied.dtype == "complex128":
                saved[f"{name}{PAIRS}"] = copied[..., None].view("float64")
            else:
                saved[name] = copied
        save_file(saved, file)

    def find_guardable_kind(self, tensor: Any) -> str:
        """Return the kind of a tensor's device, or nothing if the tensor cannot be guarded.

        Only plain numbers in strided memory can be: no sparse or quantized tensors, subclasses or lazy views.
        """
        numpy = self.module
        return "cpu" if type(tensor) is numpy.ndarray and tensor.size > 0 and tensor.dtype.kind in "fiucb" else ""

    def count_element_bytes(self, tensor: Any) -> int:
        """Return the size of all elements of a tensor, in bytes."""
        return int(tensor.nbytes)

    def find_extent(self, tensor: Any) -> tuple[int, int]:
        """Return the address of a tensor's lowest byte, and how many bytes lie from it to the highest."""
        from numpy.lib.array_utils import byte_bounds

        if not tensor.size:
            return tensor.ctypes.data, 0
        # Strides may be negative.
        low, high = byte_bounds(tensor)
        return int(low), int(high - low)

    def find_allocation(self, tensor: Any) -> tuple[int, int]:
        """Return the address and the size in bytes of the allocation that a tensor lies in, as far as it is known."""
        # Follow the views to the array that owns the memory. The size of memory that is not NumPy's is unknown.
        owner = tensor
        while type(owner.base).__module__ == "numpy":
            owner = owner.base
        return self.find_extent(owner)

    def copy_into_memory(self, memory: Any, offset: int, tensor: Any) -> Any:
        """Copy a tensor into a buffer of the host, starting at the byte ``offset``, with the tensor's own strides."""
        first = offset + tensor.ctypes.data - self.find_extent(tensor)[0]
        copy = self.module.ndarray(tensor.shape, tensor.dtype, memory, first, tensor.strides)
        copy[...] = tensor
        return copy

    def view_memory(
        self,
        memory: Any,
        start: int,
        size: int,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        first: int,
    ) -> Any:
        """Return a tensor on ``size`` bytes of a buffer from ``start`` on; its first element is ``first`` bytes later.

        Strides are in elements.
        """
        item = self.count_item_bytes(dtype)
        return self.module.ndarray(shape, dtype, memory, start + first, tuple(stride * item for stride in strides))

    def describe_elements(self, tensor: Any) -> tuple[str, tuple[int, ...], tuple[int, ...], int]:
        """Return a tensor's dtype, shape and strides for :meth:`view_memory`, and its first element's place."""
        strides = tuple(stride // tensor.itemsize for stride in tensor.strides)
        return str(tensor.dtype), tuple(tensor.shape), strides, tensor.ctypes.data - self.find_extent(tensor)[0]

    def count_item_bytes(self, dtype: str) -> int:
        """Return the size of a dtype's elements in bytes."""
        return int(self.module.dtype(dtype).itemsize)

    def read_layout(self, tensor: Any) -> tuple[object, ...]:
        """Return shape, dtype, strides and address of a tensor: everything that writing in place does not change."""
        return tensor.shape, tensor.dtype, tensor.strides, tensor.ctypes.data

    def clone_tensor(self, tensor: Any) -> Any:
        """Return a copy with the same strides."""
        numpy = self.module
        size = self.find_extent(tensor)[1]
        if size == tensor.nbytes and tensor.flags.forc:
            return numpy.array(tensor, copy=True)
        return self.copy_into_memory(numpy.zeros(size, "uint8"), 0, tensor)

    def pack_tensor(self, tensor: Any) -> Any:
        """Return a copy without gaps."""
        return self.module.array(tensor, copy=True, order="C")

    def copy_elements(self, source: Any, target: Any) -> None:
        """Copy the elements of a tensor into another one of the same shape and dtype."""
        target[...] = source

    def repeat_tensor(self, tensor: Any, sets: Any) -> None:
        """Copy a tensor into each of several tensors, which are one with a further first axis."""
        sets[...] = tensor

    def move_to_device_of(self, tensor: Any, other: Any) -> Any:
        """Return a tensor on the device of another one: itself if it is there already."""
        return tensor

    def poison_tensor(self, tensor: Any) -> None:
        """Fill a tensor with its dtype's poison (see :mod:`ktuned.declaration.poisons`)."""
        for bits, poison in self._view_number_parts(tensor):
            bits[...] = poison.pattern

    def view_bits(self, tensor: Any) -> list[tuple[Any, tuple[int, int]]]:
        """Return views of a tensor's memory as integers, each with its two poisons, for even and for odd launches."""
        return [(bits, (poison.pattern, poison.other)) for bits, poison in self._view_number_parts(tensor)]

    def are_equal_bits(self, one: Any, other: Any) -> bool:
        """Return whether two results of :meth:`view_bits` are equal."""
        return bool((one == other).all())

    def find_unwritten(self, tensor: Any) -> Any:
        """Return which elements of a poisoned tensor still hold the poison, as bools of its shape."""
        numpy = self.module
        still = numpy.ones(tensor.shape, "bool")
        for bits, poison in self._view_number_parts(tensor):
            still &= bits == poison.pattern
            if not poison.is_distinct and not still.all():
                still[...] = False
        return still

    def count_poison(self, sets: Any) -> list[int]:
        """Count the elements of each tensor along the first axis that hold the poison.

        Nothing is returned if ordinary numbers may equal the poison.
        """
        numpy = self.module
        still = numpy.ones(sets.shape, "bool")
        for bits, poison in self._view_number_parts(sets):
            if not poison.is_distinct:
                return []
            still &= bits == poison.pattern
        counts: list[int] = still.reshape(len(sets), -1).sum(1).tolist()
        return counts

    def hold_equal_bits(self, one: Any, other: Any) -> bool:
        """Return whether two tensors of the same dtype and shape hold the same bits; equal NaNs are equal."""
        parts = zip(self._view_number_parts(one), self._view_number_parts(other), strict=True)
        return all(bool((bits == others).all()) for (bits, _), (others, _) in parts)

    def digest_tensors(self, tensors: Sequence[Any]) -> str:
        """Start a digest of all bits of some tensors, for :meth:`read_digests`; a GPU is not waited for.

        Equal bits give equal digests on the same kind of device.
        """
        digest = hashlib.blake2b(digest_size=8)
        for tensor in tensors:
            digest.update(self.module.ascontiguousarray(tensor).reshape(-1).view("uint8"))
        return digest.hexdigest()

    def read_digests(self, digests: Sequence[str]) -> list[str]:
        """Return digests as 16 hexadecimal digits each, after a single wait for the device."""
        return list(digests)

    def find_number_kind(self, tensor: Any) -> str:
        """Return the kind of a tensor's numbers: ``float``, ``complex``, or ``int`` for integers and bools."""
        return {"c": "complex", "f": "float"}.get(tensor.dtype.kind, "int")

    def cast_tensor(self, tensor: Any, dtype: str) -> Any:
        """Return a tensor converted to a dtype."""
        return self.module.asarray(tensor).astype(dtype)

    def round_number(self, number: float, element: Any) -> object:
        """Return a number rounded to an element's dtype."""
        return element.dtype.type(number).item()

    def silence_warnings(self) -> AbstractContextManager[object]:
        """Suppress warnings about arithmetic with infinities and NaNs, for a while."""
        quiet: AbstractContextManager[object] = self.module.errstate(all="ignore")
        return quiet

    def _view_number_parts(self, tensor: Any) -> list[tuple[Any, Poison]]:
        """Return real and imaginary parts as unsigned integers, with their poison."""
        from ktuned.declaration import look_up_poison

        poison = look_up_poison(str(tensor.dtype))
        parts = [tensor.real, tensor.imag] if tensor.dtype.kind == "c" else [tensor]
        return [(part.view(f"u{poison.width // 8}"), poison) for part in parts]
