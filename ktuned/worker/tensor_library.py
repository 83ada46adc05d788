"""Libraries of tensors that a worker may measure with: torch, and NumPy on a CPU where torch is not installed."""

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
    """The operations on tensors that measuring needs; ``word`` is their type, as messages name it."""

    word: str

    def seed_generator(self, number: int) -> None:
        """Seed the library's own generator, which ``inputs`` of a kernel file may draw from."""

    def make_tensor(self, spec: TensorSpec, name: str, seed_text: str, device: str) -> Any:
        """Return the tensor that a kernel file declares.

        Raises:
            RuntimeError: there is no memory for it.
            UsageError: the library lacks its dtype.
        """

    def adopt_tensor(self, value: Any, device: str, moved: dict[int, Any] | None = None) -> Any:
        """Return a tensor that user code has made as one of this library; ``None`` for anything else.

        ``moved`` are the allocations that have been copied to a device already: what shares one still does there.

        Raises:
            UsageError: the library cannot hold it as it is.
        """

    def load_tensors(self, file: Path, device: str) -> dict[str, Any]:
        """Return the tensors of a safetensors file."""

    def save_tensors(self, tensors: Mapping[str, Any], file: Path) -> None:
        """Write a safetensors file."""

    def find_guarded_kind(self, tensor: Any) -> str:
        """Return the kind of a tensor's device; empty for one that is more than numbers in memory, or less."""

    def count_element_bytes(self, tensor: Any) -> int:
        """Return the bytes of a tensor's elements."""

    def find_extent(self, tensor: Any) -> tuple[int, int]:
        """Return the address of the first byte of a tensor's elements, and how many bytes lie up to its last one."""

    def find_allocation(self, tensor: Any) -> tuple[int, int]:
        """Return the address and the size of the allocation that a tensor lies in, as far as it is known."""

    def copy_into_memory(self, memory: Any, offset: int, tensor: Any) -> Any:
        """Return a copy of a tensor in a buffer of the host, from a byte of it on, with the tensor's own strides."""

    def read_layout(self, tensor: Any) -> tuple[object, ...]:
        """Return where a tensor's elements are and how they are read: all that in-place writing leaves as it is."""

    def clone_tensor(self, tensor: Any) -> Any:
        """Return a copy with the same strides."""

    def make_contiguous(self, tensor: Any) -> Any:
        """Return a copy whose elements follow each other in their order."""

    def copy_elements(self, source: Any, target: Any) -> None:
        """Copy a tensor's elements into another of its shape and dtype."""

    def convert_like(self, tensor: Any, other: Any) -> Any:
        """Return a tensor with the dtype and shape of another one."""

    def move_beside(self, tensor: Any, other: Any) -> Any:
        """Return a tensor, or its copy on the device of another one."""

    def poison_tensor(self, tensor: Any) -> None:
        """Fill a tensor with its dtype's poison (see :mod:`ktuned.spec.poisons`)."""

    def view_bits(self, tensor: Any) -> list[tuple[Any, tuple[int, int]]]:
        """Return views of a tensor's memory as integers, each with its poison of even and of odd launches."""

    def are_equal_bits(self, one: Any, other: Any) -> bool:
        """Return whether two views of bits hold the same."""

    def find_unwritten(self, tensor: Any) -> Any:
        """Return where a tensor that was poisoned still is, as bools of its shape."""

    def are_same_tensors(self, one: Any, other: Any) -> bool:
        """Return whether two tensors of one dtype and shape hold the same bits, NaNs included."""

    @property
    def arithmetic(self) -> Any:
        """The library's module, whose functions of the array API comparisons call."""

    def digest_tensors(self, tensors: Sequence[Any]) -> Any:
        """Return a digest of all bits of some tensors, where they are; :meth:`read_digests` reads it.

        Equal bits give equal digests on one kind of device; a GPU is not waited for.
        """

    def read_digests(self, digests: Sequence[Any]) -> list[str]:
        """Return digests as texts of 16 hexadecimal digits, after one wait for the device."""

    def find_number_kind(self, tensor: Any) -> str:
        """Return ``float``, ``complex`` or ``int``; bools count as integers."""

    def cast_tensor(self, tensor: Any, dtype: str) -> Any:
        """Return a converted tensor."""

    def round_number(self, number: float, element: Any) -> object:
        """Return a number rounded to an element's dtype."""

    def silence_warnings(self) -> AbstractContextManager[object]:
        """Hold back warnings of arithmetic with infinities and NaNs."""


def choose_library(device: Device) -> TensorLibrary:
    """Return the library that makes the tensors of a device: torch where it is installed, which a GPU needs."""
    if device.kind == "cpu" and importlib.util.find_spec("torch") is None:
        return NUMPY
    return TORCH


def library_of(tensor: Any) -> TensorLibrary:
    """Return the library that a tensor belongs to."""
    return NUMPY if type(tensor).__module__ == "numpy" else TORCH


def never_written(tensor: Any) -> bool:
    """Return whether a tensor that was poisoned, and has elements, holds nothing else."""
    still = library_of(tensor).find_unwritten(tensor)
    return bool(len(tensor.shape) == 0 or all(tensor.shape)) and bool(still.all())
