"""A launch's arguments: packs values for the driver, makes textures of tensors, copies tensors into variables."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from ktuned.backends import unwrap_result
from ktuned_nvrtc.scalars import to_bytes

_ALIGNMENT = 16

_FORMATS = {
    "uint8": "UNSIGNED_INT8",
    "uint16": "UNSIGNED_INT16",
    "uint32": "UNSIGNED_INT32",
    "int8": "SIGNED_INT8",
    "int16": "SIGNED_INT16",
    "int32": "SIGNED_INT32",
    "float16": "HALF",
    "float32": "FLOAT",
}
"""The driver's array formats by torch's dtypes."""


class Arguments:
    """An array of pointers to packed values; ``address`` is valid as long as the object lives.

    Args:
        entry: the kernel's name, for messages.
        args: the arguments; a string is the address of the tensor of that name.
        sizes: sizes of the kernel's parameters in bytes.
        tensors: the tensors by name.

    Raises:
        ValueError: an argument does not fit its parameter, or a tensor its texture.
    """

    def __init__(self, entry: str, args: Sequence[Any], sizes: Sequence[int], tensors: Mapping[str, Any]) -> None:
        if len(args) != len(sizes):
            raise ValueError(f"args has {len(args)} arguments; {entry} has {len(sizes)} parameters")
        self._tensors = tensors
        offsets = []
        total = 0
        for size in sizes:
            offsets.append(total)
            total += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._values = ctypes.create_string_buffer(max(total, 1))
        start = ctypes.addressof(self._values)
        for number, (arg, offset, size) in enumerate(zip(args, offsets, sizes, strict=True), 1):
            value = ("pointer", (arg, 0)) if isinstance(arg, str) else arg
            try:
                ctypes.memmove(start + offset, to_bytes(value, size, self._resolve_reference), size)
            except ValueError as error:
                raise ValueError(f"argument {number} of {entry}: {error}") from error
        self._pointers = (ctypes.c_void_p * max(len(sizes), 1))(*(start + offset for offset in offsets))
        self.address = ctypes.addressof(self._pointers)

    def _resolve_reference(self, kind: str, value: Any) -> int:
        tensor = self._tensors[value[0]]
        if kind == "pointer":
            size = tensor.numel() * tensor.element_size()
            if value[1] > size:
                raise ValueError(f"the offset {value[1]} is past the end of {value[0]}, which has {size} bytes")
            return int(tensor.data_ptr()) + int(value[1])
        texture = _make_texture(tensor, *value)
        from cuda.bindings import driver

        # Not at exit: the context may no longer exist.
        weakref.finalize(self, driver.cuTexObjectDestroy, texture).atexit = False
        return int(texture)


def fill_variable(module: Any, symbol: str, name: str, tensor: Any) -> None:
    """Copy a tensor into a variable of a loaded module, in torch's current stream.

    Raises:
        ValueError: the tensor is larger than the variable, or has gaps.
    """
    import torch
    from cuda.bindings import driver

    error, address, room = driver.cuModuleGetGlobal(module, symbol.encode())
    unwrap_result((error,), f"finding the variable of {name}")
    size = tensor.numel() * tensor.element_size()
    if size > room:
        raise ValueError(f"the tensor {name!r} has {size} bytes, and its variable {room}")
    if not tensor.is_contiguous():
        raise ValueError(f"the tensor {name!r} has gaps: only a contiguous one can be copied into a variable")
    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    unwrap_result(driver.cuMemcpyDtoDAsync(address, tensor.data_ptr(), size, stream), f"copying {name}")


def _make_texture(tensor: Any, name: str, filter_mode: str, address: str, normalized: bool) -> Any:
    """Make a texture object: linear memory for one dimension, rows for two; a third one of 2 or 4 is the channels."""
    from cuda.bindings import driver

    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    channels = shape[-1] if len(shape) == 3 else 1
    if dtype not in _FORMATS or not tensor.is_contiguous() or len(shape) not in (1, 2, 3) or channels not in (1, 2, 4):
        raise ValueError(
            f"no texture can be made of {name}, {dtype} of the shape {shape}: it takes a contiguous tensor of 1 or 2 "
            f"dimensions, or 3 with 1, 2 or 4 channels, of {', '.join(_FORMATS)}"
        )
    layout = getattr(driver.CUarray_format, f"CU_AD_FORMAT_{_FORMATS[dtype]}")
    resource = driver.CUDA_RESOURCE_DESC()
    if len(shape) == 1:
        resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
        linear = resource.res.linear
        linear.devPtr, linear.format, linear.numChannels = tensor.data_ptr(), layout, channels
        linear.sizeInBytes = tensor.numel() * tensor.element_size()
    else:
        resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_PITCH2D
        rows = resource.res.pitch2D
        rows.devPtr, rows.format, rows.numChannels = tensor.data_ptr(), layout, channels
        rows.height, rows.width = shape[0], shape[1]
        rows.pitchInBytes = shape[1] * channels * tensor.element_size()
    look = driver.CUDA_TEXTURE_DESC()
    look.filterMode = getattr(driver.CUfilter_mode, f"CU_TR_FILTER_MODE_{filter_mode.upper()}")
    look.addressMode = [getattr(driver.CUaddress_mode, f"CU_TR_ADDRESS_MODE_{address.upper()}")] * 3
    is_integer = not tensor.dtype.is_floating_point
    # Elements are read unchanged unless they must be filtered. The flags' bits are those of cuda.h.
    read_as_integer, normalized_coordinates = 0x01, 0x02
    look.flags = (read_as_integer if is_integer and filter_mode == "point" else 0) | (
        normalized_coordinates if normalized else 0
    )
    return unwrap_result(driver.cuTexObjectCreate(resource, look, None), f"making a texture of {name}")
