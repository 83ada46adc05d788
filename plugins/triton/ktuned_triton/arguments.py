"""Packs a launch's arguments for the driver: each number in the bytes of its type, each tensor as its address."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ktuned.backends import unknown_tensor
from ktuned_triton.descriptors import TensorMap, encode_tensor_map
from ktuned_triton.launch_plan import LaunchPlan, Parameter
from ktuned_triton.signature import ALIGNMENT_BYTES

ALIGNMENT_OF_VALUES_BYTES = 64
"""Alignment of every packed value. A tensor map needs it; no other value needs more."""

_FORMATS = {
    "i1": "<b",
    "u1": "<B",
    "i8": "<b",
    "u8": "<B",
    "i16": "<h",
    "u16": "<H",
    "i32": "<i",
    "u32": "<I",
    "i64": "<q",
    "u64": "<Q",
    "fp16": "<e",
    "fp32": "<f",
    "f32": "<f",
    "fp64": "<d",
}
"""Formats of :mod:`struct` for Triton's types of numbers."""


def require_tensors(plan: LaunchPlan, tensors: Mapping[str, Any]) -> None:
    """Check that all tensors of a launch are given.

    Raises:
        KeyError: one is missing; the message names it.
    """
    for parameter in plan.parameters:
        if parameter.tensor is not None and parameter.tensor not in tensors:
            raise KeyError(unknown_tensor(parameter.tensor, tensors))


class Arguments:
    """An array of pointers to packed values; ``address`` is valid as long as the object lives.

    Args:
        plan: the launch.
        tensors: the tensors by name.
        scratch: addresses of the scratch memories, which follow the plan's parameters.
        sizes: sizes of the kernel's parameters in bytes.

    Raises:
        ValueError: a tensor is not aligned, or the values do not fit the parameters.
    """

    def __init__(
        self, plan: LaunchPlan, tensors: Mapping[str, Any], scratch: Sequence[int], sizes: Sequence[int]
    ) -> None:
        packed = [_pack_parameter(parameter, tensors) for parameter in plan.parameters]
        packed += [struct.pack("<Q", address) for address in scratch]
        values = _fit_values(plan.symbol, packed, len(scratch), sizes)
        self._values = [ctypes.create_string_buffer(len(value) + ALIGNMENT_OF_VALUES_BYTES) for value in values]
        addresses = [_align_address(ctypes.addressof(buffer)) for buffer in self._values]
        for address, value in zip(addresses, values, strict=True):
            ctypes.memmove(address, value, len(value))
        self._pointers = (ctypes.c_void_p * max(len(values), 1))(*addresses)
        self.address = ctypes.addressof(self._pointers)


def _align_address(address: int) -> int:
    return address + -address % ALIGNMENT_OF_VALUES_BYTES


def pack_number(kind: str, value: Any) -> bytes:
    """Return the bytes of a number in one of Triton's types.

    Raises:
        ValueError: there is no such type, or the number does not fit it.
    """
    try:
        if kind == "bf16":
            # As Triton's launcher does it: truncated to the upper half of the float.
            return struct.pack("<f", value)[2:]
        if kind in ("fp32", "f32"):
            return bytes(ctypes.c_float(float(value)))
        return struct.pack(_FORMATS[kind], int(value) if kind in ("i1", "u1") else value)
    except (KeyError, struct.error, OverflowError) as error:
        raise ValueError(f"{value!r} does not fit a parameter of Triton's type {kind}") from error


def _pack_parameter(parameter: Parameter, tensors: Mapping[str, Any]) -> bytes:
    if parameter.tensor is None:
        return pack_number(parameter.type, parameter.value)
    address: int = tensors[parameter.tensor].data_ptr()
    if parameter.is_aligned and address % ALIGNMENT_BYTES:
        raise ValueError(
            f"the tensor {parameter.tensor!r} lies at {address:#x}, and the kernel is compiled for addresses that are "
            f"multiples of {ALIGNMENT_BYTES}"
        )
    if isinstance(parameter.value, TensorMap):
        return encode_tensor_map(parameter.value, address)
    return struct.pack("<Q", address)


def _fit_values(symbol: str, values: list[bytes], optional: int, sizes: Sequence[int]) -> list[bytes]:
    """Return the values of all parameters, checked against the parameters' sizes.

    The last ``optional`` values may be dropped: some versions of Triton give a kernel fewer pointers to scratch memory.
    """
    spare = len(values) - len(sizes)
    fitted = values[: len(sizes)] if 0 <= spare <= optional else values
    if [len(value) for value in fitted] != list(sizes):
        raise ValueError(
            f"{symbol} has parameters of {list(sizes)} bytes, but its arguments {[len(value) for value in values]}"
        )
    return fitted
