"""torch's tensors, on a CPU or a GPU. torch is imported when it is first used.

:class:`~ktuned.checking.numpy_tensors.NumPyTensors` says what each method is for; docstrings here say how it works.
"""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktuned.checking.numpy_tensors import PAIRS
from ktuned.model import UsageError

if TYPE_CHECKING:
    import torch

    from ktuned.declaration import TensorSpec


class TorchTensors:
    """The operations of :class:`~ktuned.checking.numpy_tensors.NumPyTensors`, on torch's tensors."""

    type_name = "torch.Tensor"

    @property
    def module(self) -> Any:
        """torch, imported on first use."""
        import torch

        return torch

    def seed_generator(self, number: int) -> None:
        """Seed torch's generators of all devices."""
        import torch

        torch.manual_seed(number)

    def make_tensor(self, spec: TensorSpec, name: str, seed_text: str, device: str) -> Any:
        """Make the tensor on the device itself; torch raises RuntimeError if its memory is short."""
        from ktuned.declaration import materialise

        return materialise(spec, name, seed_text, device)

    def adopt_tensor(self, value: Any, device: str, moved: dict[int, Any] | None = None) -> Any:
        """Take tensors as they are, and NumPy's arrays as tensors on the device, with the same strides."""
        import torch

        if isinstance(value, torch.Tensor):
            if value.is_nested or not (value.layout is torch.strided or str(value.layout) in _SPARSE_PARTS):
                kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
                raise UsageError(
                    f"it is a {kind} tensor, which cannot be passed to a kernel",
                    hint="give its parts as tensors of their own",
                )
            return value.detach()
        if type(value).__module__ != "numpy":
            return None
        if any(stride < 0 for stride in value.strides):
            raise UsageError("it has a negative stride, which torch cannot hold", hint="return a copy of it")
        with warnings.catch_warnings():
            # torch warns about read-only arrays, such as broadcast arrays. But launches work on a copy.
            warnings.simplefilter("ignore", UserWarning)
            host = torch.as_tensor(value)
        return host if device == "cpu" else _move_allocation(host, value, device, {} if moved is None else moved)

    def load_tensors(self, file: Path) -> dict[str, Any]:
        """Load a file."""
        import torch
        from safetensors.torch import load_file

        return {
            name.removesuffix(PAIRS): torch.view_as_complex(value) if name.endswith(PAIRS) else value
            for name, value in load_file(file).items()
        }

    def save_tensors(self, tensors: Mapping[str, Any], file: Path) -> None:
        """Save copies, because the format refuses tensors that share memory."""
        import torch
        from safetensors.torch import save_file

        saved = {}
        for name, value in tensors.items():
            copied = value.to("cpu", copy=True).contiguous()
            if copied.dtype == torch.complex128:
                saved[f"{name}{PAIRS}"] = torch.view_as_real(copied.resolve_conj())
            else:
                saved[name] = copied
        save_file(saved, file)

    def find_guardable_kind(self, tensor: Any) -> str:
        """Guard strided tensors of plain numbers."""
        import torch

        is_plain = (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.layout is torch.strided
            and tensor.numel() > 0
            and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        )
        return str(tensor.device.type) if is_plain else ""

    def count_element_bytes(self, tensor: Any) -> int:
        """Count the elements, not the storage."""
        return sum(part.numel() * part.element_size() for part in _list_parts(tensor))

    def find_extent(self, tensor: Any) -> tuple[int, int]:
        """Count from the first element to the last; torch has no negative strides."""
        return int(tensor.data_ptr()), count_bytes(tensor)

    def find_allocation(self, tensor: Any) -> tuple[int, int]:
        """Ask the storage."""
        storage = tensor.untyped_storage()
        return int(storage.data_ptr()), int(storage.nbytes())

    def copy_into_memory(self, memory: Any, offset: int, tensor: Any) -> Any:
        """Copy into a storage of that part of the buffer alone; torch keeps the buffer alive."""
        placed = self.view_memory(memory, offset, count_bytes(tensor), *self.describe_elements(tensor))
        self.copy_elements(tensor, placed)
        return placed

    def view_memory(
        self,
        memory: Any,
        start: int,
        size: int,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        first: int,
    ) -> torch.Tensor:
        """Make a storage of that part of the buffer, or of a GPU's bytes; ``first`` is 0: no stride is negative."""
        import torch

        # torch makes no storage without bytes, as for a tensor without elements.
        count = max(size, 1)
        if isinstance(memory, torch.Tensor) and memory.is_cuda:
            part = torch.as_tensor(GpuBytes(memory.data_ptr() + start, count, memory), device=memory.device)
        else:
            buffer = memory.numpy() if isinstance(memory, torch.Tensor) else memory
            part = torch.frombuffer(buffer, dtype=torch.uint8, offset=start, count=count)
        empty = torch.empty(0, dtype=getattr(torch, dtype), device=part.device)
        return empty.set_(part.untyped_storage(), 0, shape, strides)

    def describe_elements(self, tensor: Any) -> tuple[str, tuple[int, ...], tuple[int, ...], int]:
        """Count strides in elements, as torch does."""
        return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()), 0

    def count_item_bytes(self, dtype: str) -> int:
        """Ask the dtype."""
        return int(getattr(self.module, dtype).itemsize)

    def read_layout(self, tensor: Any) -> tuple[object, ...]:
        """Return shape, dtype and device, and where the elements are."""
        parts = _list_parts(tensor)
        strides = [(part.shape, part.stride()) for part in parts]
        return tensor.shape, tensor.dtype, tensor.device, strides, [part.data_ptr() for part in parts]

    def clone_tensor(self, tensor: Any) -> Any:
        """Clone; a tensor with gaps or overlapping elements gets memory laid out like its own."""
        import torch

        if not self.find_guardable_kind(tensor) or count_bytes(tensor) == self.count_element_bytes(tensor):
            return tensor.clone()
        storage = torch.zeros(count_bytes(tensor), dtype=torch.uint8, device=tensor.device).untyped_storage()
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copy.set_(storage, 0, tensor.shape, tensor.stride())
        self.copy_elements(tensor, copy)
        return copy

    def pack_tensor(self, tensor: Any) -> Any:
        """Clone without the tensor's strides."""
        return tensor.clone(memory_format=self.module.contiguous_format)

    def copy_elements(self, source: Any, target: Any) -> None:
        """Copy, also between devices. An element that ``expand`` repeats is written once, as torch demands."""
        for written, held in zip(_list_parts(target), _list_parts(source), strict=True):
            for axis, (size, stride) in enumerate(zip(written.shape, written.stride(), strict=True)):
                if stride == 0 and size > 1:
                    held, written = held.narrow(axis, 0, 1), written.narrow(axis, 0, 1)
            written.copy_(held)

    def repeat_tensor(self, tensor: Any, sets: Any) -> None:
        """Copy, without the elements that ``expand`` repeats."""
        self.copy_elements(tensor.expand(sets.shape), sets)

    def move_to_device_of(self, tensor: Any, other: Any) -> Any:
        """Copy to the other tensor's device, unless it is there."""
        return tensor.to(other.device)

    def poison_tensor(self, tensor: Any) -> None:
        """Poison on the tensor's device."""
        from ktuned.declaration import fill_with_poison

        fill_with_poison(tensor)

    def view_bits(self, tensor: Any) -> list[tuple[Any, tuple[int, int]]]:
        """View the memory as signed integers."""
        from ktuned.declaration import find_poison, view_as_bits

        return [(view_as_bits(tensor), find_poison(tensor).signed_patterns)]

    def are_equal_bits(self, one: Any, other: Any) -> bool:
        """Compare on the tensors' device."""
        return bool(self.module.equal(one, other))

    def find_unwritten(self, tensor: Any) -> Any:
        """Look for the poison on the tensor's device."""
        from ktuned.declaration import find_poison, view_as_bits

        poison = find_poison(tensor)
        still = view_as_bits(tensor) == poison.signed_patterns[0]
        if tensor.dtype.is_complex:
            still = still.all(-1)
        if not poison.is_distinct and not bool(still.all()):
            still.zero_()
        return still

    def count_poison(self, sets: Any) -> list[int]:
        """Look for the poison on the tensors' device."""
        from ktuned.declaration import find_poison, view_as_bits

        poison = find_poison(sets)
        if not poison.is_distinct:
            return []
        still = view_as_bits(sets) == poison.signed_patterns[0]
        still = still.all(-1) if sets.dtype.is_complex else still
        counts: list[int] = still.reshape(len(sets), -1).sum(1).tolist()
        return counts

    def hold_equal_bits(self, one: Any, other: Any) -> bool:
        """Compare on the tensors' device."""
        from ktuned.declaration import view_as_bits

        parts = zip(_list_parts(one), _list_parts(other), strict=True)
        return all(self.are_equal_bits(view_as_bits(part), view_as_bits(held)) for part, held in parts)

    def digest_tensors(self, tensors: Sequence[Any]) -> Any:
        """Hash on the tensors' device; on the CPU like NumPy's arrays, which is ten times as fast there."""
        from ktuned.declaration import view_as_bits

        views = [view_as_bits(part) for tensor in tensors for part in _list_parts(tensor)]
        if all(view.device.type == "cpu" for view in views):
            digest = hashlib.blake2b(digest_size=8)
            for view in views:
                whole = view.contiguous()
                digest.update((ctypes.c_ubyte * count_bytes(whole)).from_address(whole.data_ptr()))
            return digest.hexdigest()
        return _digest_on_device(views)

    def read_digests(self, digests: Sequence[Any]) -> list[str]:
        """Copy all of them to the host at once."""
        import torch

        if all(isinstance(digest, str) for digest in digests):
            return list(digests)
        return [f"{number % 2**64:016x}" for number in torch.stack(list(digests)).tolist()]

    def find_number_kind(self, tensor: Any) -> str:
        """Ask the dtype."""
        return "complex" if tensor.is_complex() else "float" if tensor.is_floating_point() else "int"

    def cast_tensor(self, tensor: Any, dtype: str) -> Any:
        """Convert on the tensor's device."""
        return tensor.to(getattr(self.module, dtype))

    def round_number(self, number: float, element: Any) -> object:
        """Round through a tensor of the dtype."""
        return element.new_tensor(number).item()

    def silence_warnings(self) -> AbstractContextManager[object]:
        """Do nothing: torch does not warn."""
        return nullcontext()


class GpuBytes:
    """Bytes of a GPU's memory, which ``torch.as_tensor`` takes as they are; ``owner`` keeps them."""

    def __init__(self, address: int, size: int, owner: object) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2}


_SPARSE_PARTS = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
"""Methods of a sparse tensor that return its strided parts, by its layout. The parts share its memory."""


def _list_parts(tensor: Any) -> list[Any]:
    """Return the strided tensors that hold a tensor's content: itself, or the parts of a sparse one."""
    import torch

    if tensor.layout is torch.strided:
        return [tensor]
    return [getattr(tensor, name)() for name in _SPARSE_PARTS[str(tensor.layout)]]


_HASHED = 1 << 24
"""Elements that are hashed at once on a device: enough to keep it busy; the temporaries take 400 MiB."""


def _digest_on_device(views: Sequence[Any]) -> Any:
    """Return an int64 on the device: the sum of all elements, each mixed with its place.

    The sum wraps around, and does not depend on the order in which the device adds. Different outputs have the same sum
    only by a chance of 1 in 2^64.
    """
    import torch

    from ktuned.declaration import mix_bits

    total = torch.zeros((), dtype=torch.int64, device=views[0].device)
    place = 0
    for view in views:
        flat = view.reshape(-1)
        for first in range(0, flat.numel(), _HASHED):
            # Mix the place before adding the element: otherwise a change in one could cancel a change in the other.
            count = min(_HASHED, flat.numel() - first)
            mixed = mix_bits(torch.arange(place, place + count, dtype=torch.int64, device=flat.device))
            mixed += flat[first : first + count]
            total += mix_bits(mixed).sum()
            place += count
    return total


def count_bytes(tensor: Any) -> int:
    """Return how many bytes a strided tensor spans, from its first element to the end of its last."""
    if not tensor.numel():
        return 0
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((steps + 1) * tensor.element_size())


def _move_allocation(host: Any, array: Any, device: str, moved: dict[int, Any]) -> Any:
    """Copy an array's whole allocation to a device, unless it was moved already, and return the array's view of it."""
    import torch

    from ktuned.checking.numpy_tensors import ALIGNMENT, NumPyTensors

    start, size = NumPyTensors().find_allocation(array)
    is_whole = (start, size) == (array.ctypes.data, array.nbytes)
    first = start % ALIGNMENT if not is_whole else 0
    is_alone = is_whole and host.is_contiguous() and start not in moved
    if is_alone or (array.ctypes.data - start + first) % array.itemsize:
        return host.to(device)
    if start not in moved:
        moved[start] = torch.zeros(first + size, dtype=torch.uint8, device=device)
        raw = (ctypes.c_ubyte * size).from_address(start)
        moved[start][first:] = torch.frombuffer(raw, dtype=torch.uint8).to(device)
    offset = (first + array.ctypes.data - start) // array.itemsize
    empty = torch.empty(0, dtype=host.dtype, device=device)
    return empty.set_(moved[start].untyped_storage(), offset, host.shape, host.stride())


def lay_out_tensor(tensor: torch.Tensor, spec: TensorSpec, owner: torch.Tensor | None) -> torch.Tensor:
    """Return a copy of a tensor that lies in memory as its specification says; ``owner`` has the memory, if it shares.

    The copy's content replaces the owner's in that place.
    """
    import torch

    item = tensor.element_size()
    if owner is None:
        # A tensor of another dtype in this memory may end a few bytes later.
        size = tensor.numel() * item + spec.remainder + (_LARGEST_ITEM if spec.memory else 0)
        memory, first = torch.empty(size, dtype=torch.uint8, device=tensor.device), spec.remainder
    else:
        memory, first = owner, int(owner.storage_offset()) * owner.element_size() + spec.offset
    placed = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    placed.set_(memory.untyped_storage(), first // item, tensor.shape, tensor.stride())
    return placed.copy_(tensor)


_LARGEST_ITEM = 16
"""Bytes of the largest dtype's element."""
