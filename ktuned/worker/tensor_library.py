"""Tensor libraries that a worker can measure with: torch, or NumPy on a CPU where torch is not installed.

All code that measures handles tensors through :class:`TensorLibrary`. :func:`choose_library` picks the library that
makes a problem's tensors. :func:`library_of` tells which one a tensor belongs to, since a kernel file's own code may
return tensors of the other one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ktuned.model import Device
from ktuned.worker.numpy_tensors import NumPyTensors
from ktuned.worker.torch_tensors import TorchTensors

if TYPE_CHECKING:
    from ktuned.spec import TensorSpec

TORCH = TorchTensors()
NUMPY = NumPyTensors()


class TensorLibrary(Protocol):
    """The operations on tensors that measuring needs. ``word`` is the tensors' type, as messages name it."""

    word: str

    def seed_generator(self, number: int) -> None:
        """Seed the library's global generator, which a kernel file's ``inputs`` may draw from."""

    def make_tensor(self, spec: TensorSpec, name: str, seed_text: str, device: str) -> Any:
        """Make a tensor that a kernel file declares, with equal bytes in each library.

        Raises:
            RuntimeError: there is no memory for it.
            UsageError: the library lacks its dtype.
        """

    def adopt_tensor(self, value: Any, device: str, moved: dict[int, Any] | None = None) -> Any:
        """Return a tensor that user code has made as a tensor of this library; ``None`` if it is no tensor.

        ``moved`` collects the allocations that were copied to the device, by their address on the host, so that arrays
        which share memory still share it there.

        Raises:
            UsageError: the library cannot represent it.
        """

    def load_tensors(self, file: Path, device: str) -> dict[str, Any]:
        """Read the tensors of a safetensors file to a device."""

    def save_tensors(self, tensors: Mapping[str, Any], file: Path) -> None:
        """Write a safetensors file."""

    def find_guarded_kind(self, tensor: Any) -> str:
        """Return the kind of a tensor's device, or nothing if the tensor cannot be guarded.

        Only plain numbers in strided memory can be: no sparse or quantized tensors, subclasses or lazy views.
        """

    def count_element_bytes(self, tensor: Any) -> int:
        """Return the size of all elements of a tensor, in bytes."""

    def find_extent(self, tensor: Any) -> tuple[int, int]:
        """Return the address of a tensor's lowest byte, and how many bytes lie from it to the highest."""

    def find_allocation(self, tensor: Any) -> tuple[int, int]:
        """Return the address and the size in bytes of the allocation that a tensor lies in, as far as it is known."""

    def copy_into_memory(self, memory: Any, offset: int, tensor: Any) -> Any:
        """Copy a tensor into a buffer of the host, starting at the byte ``offset``, with the tensor's own strides."""

    def read_layout(self, tensor: Any) -> tuple[object, ...]:
        """Return shape, dtype, strides and address of a tensor: everything that writing in place does not change."""

    def clone_tensor(self, tensor: Any) -> Any:
        """Return a copy with the same strides."""

    def make_contiguous(self, tensor: Any) -> Any:
        """Return a copy with contiguous memory of its own."""

    def copy_elements(self, source: Any, target: Any) -> None:
        """Copy the elements of a tensor into another one of the same shape and dtype."""

    def convert_like(self, tensor: Any, other: Any) -> Any:
        """Convert a tensor to the dtype and the shape of another one."""

    def move_to_device_of(self, tensor: Any, other: Any) -> Any:
        """Return a tensor on the device of another one: itself if it is there already."""

    def poison_tensor(self, tensor: Any) -> None:
        """Fill a tensor with its dtype's poison (see :mod:`ktuned.spec.poisons`)."""

    def view_bits(self, tensor: Any) -> list[tuple[Any, tuple[int, int]]]:
        """Return views of a tensor's memory as integers, each with its two poisons, for even and for odd launches."""

    def are_equal_bits(self, one: Any, other: Any) -> bool:
        """Return whether two results of :meth:`view_bits` are equal."""

    def find_unwritten(self, tensor: Any) -> Any:
        """Return which elements of a poisoned tensor still hold the poison, as bools of its shape."""

    def are_same_tensors(self, one: Any, other: Any) -> bool:
        """Return whether two tensors of the same dtype and shape hold the same bits; equal NaNs are equal."""

    @property
    def arithmetic(self) -> Any:
        """The library's module, for functions that both libraries have."""

    def digest_tensors(self, tensors: Sequence[Any]) -> Any:
        """Start a digest of all bits of some tensors, for :meth:`read_digests`; a GPU is not waited for.

        Equal bits give equal digests on the same kind of device.
        """

    def read_digests(self, digests: Sequence[Any]) -> list[str]:
        """Return digests as 16 hexadecimal digits each, after a single wait for the device."""

    def find_number_kind(self, tensor: Any) -> str:
        """Return the kind of a tensor's numbers: ``float``, ``complex``, or ``int`` for integers and bools."""

    def cast_tensor(self, tensor: Any, dtype: str) -> Any:
        """Return a tensor converted to a dtype."""

    def round_number(self, number: float, element: Any) -> object:
        """Return a number rounded to an element's dtype."""

    def silence_warnings(self) -> AbstractContextManager[object]:
        """Suppress warnings about arithmetic with infinities and NaNs, for a while."""


def choose_library(device: Device) -> TensorLibrary:
    """Return the library that makes a device's tensors: torch if it is installed, and always for a GPU."""
    if device.kind == "cpu" and importlib.util.find_spec("torch") is None:
        return NUMPY
    return TORCH


def library_of(tensor: Any) -> TensorLibrary:
    """Return the library that a tensor belongs to."""
    return NUMPY if type(tensor).__module__ == "numpy" else TORCH


def never_written(tensor: Any) -> bool:
    """Return whether a poisoned tensor still holds nothing but the poison; false if it has no elements."""
    still = library_of(tensor).find_unwritten(tensor)
    return bool(len(tensor.shape) == 0 or all(tensor.shape)) and bool(still.all())
