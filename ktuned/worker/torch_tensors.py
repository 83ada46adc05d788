"""Tensors of torch, on a CPU or a GPU; torch is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    def own(self, value: Any, device: str) -> Any:
        """Return tensors as they are, and NumPy's arrays as tensors of the device."""
        import torch

        if isinstance(value, torch.Tensor):
            return value.detach()
        return torch.as_tensor(value, device=device) if type(value).__module__ == "numpy" else None

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

    def in_memory(self, memory: Any, tensor: Any) -> Any:
        """Copy into a storage of the buffer, which torch keeps alive as long as any tensor uses it."""
        import torch

        storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        strides = torch.empty_like(tensor, device="meta").stride()
        return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape, strides).copy_(tensor)

    def layout(self, tensor: Any) -> tuple[object, ...]:
        """Return shape, dtype and device, and where the elements are."""
        import torch

        place = (tensor.stride(), tensor.data_ptr()) if tensor.layout is torch.strided else ()
        return tensor.shape, tensor.dtype, tensor.device, *place

    def clone(self, tensor: Any) -> Any:
        """Clone."""
        return tensor.clone()

    def copy(self, source: Any, target: Any) -> None:
        """Copy, also between devices."""
        target.copy_(source)

    def like(self, tensor: Any, other: Any) -> Any:
        """Convert the dtype, then the shape."""
        return tensor.to(other.dtype).reshape(other.shape)

    def beside(self, tensor: Any, other: Any) -> Any:
        """Copy to the device, if it is another one."""
        return tensor.to(other.device)

    def poison(self, tensor: Any) -> None:
        """Poison on the tensor's device."""
        from ktuned.spec import poison

        poison(tensor)

    def unwritten(self, tensor: Any) -> Any:
        """Compare on the tensor's device."""
        from ktuned.spec import unwritten

        return unwritten(tensor)

    def is_same(self, one: Any, other: Any) -> bool:
        """Compare on the tensors' device."""
        from ktuned.spec import is_same

        return is_same(one, other)

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
