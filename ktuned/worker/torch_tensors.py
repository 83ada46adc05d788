"""Tensors of torch, on a CPU or a GPU; torch is imported when it is used."""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktuned.model import UsageError

if TYPE_CHECKING:
    from ktuned.spec import TensorSpec


class TorchTensors:
    """Implements :class:`ktuned.worker.tensor_library.TensorLibrary`."""

    word = "torch.Tensor"

    @property
    def arithmetic(self) -> Any:
        """Import torch."""
        import torch

        return torch

    def seed(self, number: int) -> None:
        """Seed torch's generators of all devices."""
        import torch

        torch.manual_seed(number)

    def make(self, spec: TensorSpec, name: str, seed_text: str, device: str) -> Any:
        """Make the tensor on the device itself; torch raises RuntimeError for memory that it cannot have."""
        from ktuned.spec import materialise

        return materialise(spec, name, seed_text, device)

    def own(self, value: Any, device: str, moved: dict[int, Any] | None = None) -> Any:
        """Return tensors as they are, and NumPy's arrays as tensors of the device, with the same strides."""
        import torch

        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.is_nested:
                kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
                raise UsageError(
                    f"it is a {kind} tensor, which no kernel is launched with",
                    hint="give its parts, such as values and indices, as tensors of their own",
                )
            return value.detach()
        if type(value).__module__ != "numpy":
            return None
        if any(stride < 0 for stride in value.strides):
            raise UsageError("it has a negative stride, which torch cannot hold", hint="return a copy of it")
        with warnings.catch_warnings():
            # Of an array that may not be written, as one that was broadcast: launches work on a copy.
            warnings.simplefilter("ignore", UserWarning)
            host = torch.as_tensor(value)
        return host if device == "cpu" else _move(host, value, device, {} if moved is None else moved)

    def load(self, file: Path, device: str) -> dict[str, Any]:
        """Load a file straight to the device."""
        from safetensors.torch import load_file

        return dict(load_file(file, device=device))

    def save(self, tensors: Mapping[str, Any], file: Path) -> None:
        """Save copies: two outputs may be one tensor, which the format refuses."""
        from safetensors.torch import save_file

        save_file({name: value.to("cpu", copy=True).contiguous() for name, value in tensors.items()}, file)

    def guarded_on(self, tensor: Any) -> str:
        """Guard strided tensors of plain numbers."""
        import torch

        is_plain = (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.layout is torch.strided
            and tensor.numel() > 0
            and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        )
        return str(tensor.device.type) if is_plain else ""

    def size(self, tensor: Any) -> int:
        """Count the elements, not the storage."""
        return int(tensor.numel() * tensor.element_size())

    def extent(self, tensor: Any) -> tuple[int, int]:
        """Count from the first element to the last."""
        return int(tensor.data_ptr()), count_bytes(tensor)

    def allocation(self, tensor: Any) -> tuple[int, int]:
        """Ask the storage."""
        storage = tensor.untyped_storage()
        return int(storage.data_ptr()), int(storage.nbytes())

    def in_memory(self, memory: Any, offset: int, tensor: Any) -> Any:
        """Copy into a storage of the tensor's part of the buffer, which torch keeps alive as long as any uses it."""
        import torch

        size = count_bytes(tensor)
        storage = torch.frombuffer(memory, dtype=torch.uint8, offset=offset, count=size).untyped_storage()
        placed = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape, tensor.stride())
        copy_elements(tensor, placed)
        return placed

    def layout(self, tensor: Any) -> tuple[object, ...]:
        """Return shape, dtype and device, and where the elements are."""
        import torch

        place = (tensor.stride(), tensor.data_ptr()) if tensor.layout is torch.strided else ()
        return tensor.shape, tensor.dtype, tensor.device, *place

    def clone(self, tensor: Any) -> Any:
        """Clone; with memory of its own if it leaves bytes out or has some twice."""
        import torch

        if not self.guarded_on(tensor) or count_bytes(tensor) == self.size(tensor):
            return tensor.clone()
        storage = torch.zeros(count_bytes(tensor), dtype=torch.uint8, device=tensor.device).untyped_storage()
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copy.set_(storage, 0, tensor.shape, tensor.stride())
        copy_elements(tensor, copy)
        return copy

    def make_contiguous(self, tensor: Any) -> Any:
        """Copy, also where it is contiguous: it may be a part of much larger memory."""
        return tensor.clone(memory_format=self.arithmetic.contiguous_format)

    def copy(self, source: Any, target: Any) -> None:
        """Copy, also between devices."""
        copy_elements(source, target)

    def like(self, tensor: Any, other: Any) -> Any:
        """Convert the dtype, then the shape."""
        return tensor.to(other.dtype).reshape(other.shape)

    def beside(self, tensor: Any, other: Any) -> Any:
        """Copy to the device, if it is another one."""
        return tensor.to(other.device)

    def poison(self, tensor: Any) -> None:
        """Poison on the tensor's device."""
        from ktuned.spec import fill_with_poison

        fill_with_poison(tensor)

    def bits(self, tensor: Any) -> list[tuple[Any, tuple[int, int]]]:
        """View the memory as signed integers."""
        from ktuned.spec import look_up_signed_poisons, view_as_bits

        return [(view_as_bits(tensor), look_up_signed_poisons(tensor))]

    def are_equal_bits(self, one: Any, other: Any) -> bool:
        """Compare on the tensors' device."""
        return bool(self.arithmetic.equal(one, other))

    def unwritten(self, tensor: Any) -> Any:
        """Compare on the tensor's device."""
        from ktuned.spec import find_unwritten

        return find_unwritten(tensor)

    def is_same(self, one: Any, other: Any) -> bool:
        """Compare on the tensors' device."""
        from ktuned.spec import hold_same_bits

        return hold_same_bits(one, other)

    def digest_tensors(self, tensors: Sequence[Any]) -> Any:
        """Hash on the tensors' device; on the CPU as NumPy's are, which is ten times as fast there."""
        from ktuned.spec import view_as_bits

        views = [view_as_bits(tensor) for tensor in tensors]
        if all(view.device.type == "cpu" for view in views):
            found = hashlib.blake2b(digest_size=8)
            for view in views:
                whole = view.contiguous()
                found.update((ctypes.c_ubyte * count_bytes(whole)).from_address(whole.data_ptr()))
            return found.hexdigest()
        return _digest_on_device(views)

    def read_digests(self, digests: Sequence[Any]) -> list[str]:
        """Bring all of them to the host at once."""
        import torch

        if all(isinstance(digest, str) for digest in digests):
            return list(digests)
        return [f"{number % 2**64:016x}" for number in torch.stack(list(digests)).tolist()]

    def kind(self, tensor: Any) -> str:
        """Ask the dtype."""
        return "complex" if tensor.is_complex() else "float" if tensor.is_floating_point() else "int"

    def cast(self, tensor: Any, dtype: str) -> Any:
        """Convert on the tensor's device."""
        return tensor.to(getattr(self.arithmetic, dtype))

    def rounded(self, number: float, element: Any) -> object:
        """Round through a tensor of the dtype."""
        return element.new_tensor(number).item()

    def quiet(self) -> AbstractContextManager[object]:
        """Return no more than a context: torch does not warn."""
        return nullcontext()


_HASHED = 1 << 24
"""Elements that are hashed at once on a device: with temporaries 400 MiB of its memory, and enough work for it."""


def _digest_on_device(views: Sequence[Any]) -> Any:
    """Return an int64 on the device: the sum of all elements, each mixed with its place.

    Sums of 64 bits wrap around and know no order, so that whatever order the device adds in gives the same one. Two
    outputs that differ have the same sum by chance alone, once in 2^64.
    """
    import torch

    from ktuned.spec import mix_bits

    total = torch.zeros((), dtype=torch.int64, device=views[0].device)
    place = 0
    for view in views:
        flat = view.reshape(-1)
        for first in range(0, flat.numel(), _HASHED):
            # The place is mixed before the element is added: neither makes up for the other.
            count = min(_HASHED, flat.numel() - first)
            mixed = mix_bits(torch.arange(place, place + count, dtype=torch.int64, device=flat.device))
            mixed += flat[first : first + count]
            total += mix_bits(mixed).sum()
            place += count
    return total


def count_bytes(tensor: Any) -> int:
    """Return how many bytes lie from a strided tensor's first element to its last."""
    if not tensor.numel():
        return 0
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((steps + 1) * tensor.element_size())


def copy_elements(source: Any, target: Any) -> None:
    """Copy a tensor into another; what ``expand`` shows many times is written once, as torch demands."""
    for axis, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if stride == 0 and size > 1:
            source, target = source.narrow(axis, 0, 1), target.narrow(axis, 0, 1)
    target.copy_(source)


def _move(host: Any, array: Any, device: str, moved: dict[int, Any]) -> Any:
    """Copy an array's allocation to a device, unless it is there already, and return the array's place in it."""
    import torch

    from ktuned.worker.numpy_tensors import ALIGNMENT, find_allocation

    start, size = find_allocation(array)
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
