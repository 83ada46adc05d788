"""Tensor descriptors as kernel arguments, which the kernel reads with TMA.

A descriptor has four forms on its way: Triton's object in the application, a :class:`Descriptor` in a Build, a fake
object that Triton specialises a kernel for, and the parameters of the machine code. The parameters are three things:
the tensor map (128 bytes, which the driver encodes from an address, a shape and the layout that the compiler chose),
the shape, and the strides. The compiler's choice is in the kernel's metadata. If it chose no tensor map, the kernel
gets the address with shape and strides in place of the map, and then shape and strides again.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

TENSOR_MAP = "nvTmaDesc"
"""Triton's name for the type of a tensor map."""

TENSOR_MAP_BYTES = 128

_SIZES = ("shape", "strides", "block_shape", "block")

_TYPE = re.compile(r"tensordesc<([^\[>]*)\[")

_HOST_TYPES = {8: 10, 9: 8, 10: 9}
"""Element types whose numbers differ between Triton's enumeration and the driver's."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A host-side tensor descriptor.

    Attributes:
        descriptor: the name of its tensor.
        shape: elements in each dimension.
        strides: the strides in elements.
        block_shape: the shape of the blocks that the kernel reads.
        padding: what is read beyond the edges: ``zero`` or ``nan``.
    """

    descriptor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    padding: str

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Make a descriptor of its fields as plain data."""
        return cls(**_freeze_sizes(data))

    @classmethod
    def read(cls, descriptor: Any, tensor: str) -> Self:
        """Return one of Triton's descriptors as a value; ``tensor`` is the name of its tensor."""
        shape, strides, block_shape = (
            tuple(map(int, sizes)) for sizes in (descriptor.shape, descriptor.strides, descriptor.block_shape)
        )
        return cls(tensor, shape, strides, block_shape, descriptor.padding)


@dataclass(frozen=True, slots=True)
class TensorMap:
    """The values from which, with the tensor's address, the driver encodes a tensor map.

    Attributes:
        tensor: the name of the tensor.
        shape: elements in each dimension.
        strides: the strides in elements.
        block: the shape of the blocks that the kernel reads.
        swizzle: the driver's number of the layout in shared memory.
        element_bytes: the size of an element.
        element_type: the driver's number of its type.
        is_nan: whether NaN is read beyond the edges instead of zero.
    """

    tensor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    swizzle: int
    element_bytes: int
    element_type: int
    is_nan: bool

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Make a tensor map of its fields as plain data."""
        return cls(**_freeze_sizes(data))


def _freeze_sizes(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if name in _SIZES else value for name, value in data.items()}


def is_descriptor_type(kind: Any) -> bool:
    """Return whether a parameter's type is a tensor descriptor."""
    return isinstance(kind, str) and kind.startswith("tensordesc")


def make_fake_descriptor(argument: Descriptor, base: Any) -> Any:
    """Return a descriptor for Triton to specialise a kernel for; ``base`` stands for its tensor."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    # The constructor is bypassed, because it checks that the base is a tensor.
    descriptor = object.__new__(TensorDescriptor)
    descriptor.base = base
    descriptor.shape, descriptor.strides = list(argument.shape), list(argument.strides)
    descriptor.block_shape, descriptor.padding = list(argument.block_shape), argument.padding
    return descriptor


def expand_descriptor(
    kind: str, argument: Descriptor, metadata: Mapping[str, Any] | None, version: tuple[int, int]
) -> Iterator[tuple[str, Any]]:
    """Yield the types and values of the machine code's parameters for a descriptor.

    Args:
        kind: Triton's type: ``tensordesc<bf16[64,64]>``.
        argument: the descriptor.
        metadata: the layout that the compiler chose for the tensor map; ``None`` without a tensor map.
        version: Triton's version; from 3.7 on, a descriptor without a tensor map has one more flag.
    """
    shape, strides = argument.shape, argument.strides
    is_nan = argument.padding == "nan"
    if metadata is None:
        match = _TYPE.match(kind)
        yield f"*{'' if match is None else match[1]}", argument.descriptor
        yield from (("i64", value) for value in (*shape, *strides))
        yield "i1", is_nan
        if version >= (3, 7):
            yield "i1", False
    else:
        yield (
            TENSOR_MAP,
            TensorMap(
                argument.descriptor,
                (*shape[:-1], shape[-1] * (2 if metadata.get("fp4_padded") else 1)),
                strides,
                tuple(metadata["block_size"]),
                metadata["swizzle"],
                metadata["elem_size"],
                _HOST_TYPES.get(metadata["elem_type"], metadata["elem_type"]),
                is_nan,
            ),
        )
    yield from (("i32", value) for value in shape)
    yield from (("i64", value) for value in strides)


def encode_tensor_map(value: TensorMap, address: int) -> bytes:
    """Return the bytes of a tensor map for a tensor at an address.

    Raises:
        ValueError: the driver rejects it; the message has the driver's error.
    """
    from cuda.bindings import driver

    sizes = [int(size) for size in reversed(value.shape)]
    # In bytes, and without the innermost stride, which is always one element.
    steps = [int(step) * value.element_bytes for step in reversed(value.strides[:-1])]
    block = [int(size) for size in reversed(value.block)]
    fills = driver.CUtensorMapFloatOOBfill
    error, tensor_map = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType(value.element_type),
        len(sizes),
        address,
        _convert_numbers(driver.cuuint64_t, sizes),
        _convert_numbers(driver.cuuint64_t, steps),
        _convert_numbers(driver.cuuint32_t, block),
        _convert_numbers(driver.cuuint32_t, [1] * len(sizes)),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle(value.swizzle),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
        if value.is_nan
        else fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(f"the driver cannot encode a tensor map of {value}: {error.name}")
    return ctypes.string_at(tensor_map.getPtr(), TENSOR_MAP_BYTES)


def _convert_numbers(kind: Any, values: Sequence[int]) -> list[Any]:
    return [kind(value) for value in values]
