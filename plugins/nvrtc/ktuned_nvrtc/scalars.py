"""Arguments of kernels: C types by name, and their bytes.

A cubin has the size of each parameter, not its type. So a plain number takes the parameter's size: a bool or an int is
an integer of 1, 2, 4 or 8 bytes, a float is a ``float`` or a ``double``. For any other type use the functions here,
each of which returns a plain pair ``(type, value)`` that a ``Build`` can carry. Pointers, structures with pointers and
textures refer to tensors, so their bytes are known only when the tensors are.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Callable
from math import isfinite, isnan
from typing import Any

Typed = tuple[str, Any]
"""An argument with its C type: the name of one of the functions below, and the value."""

Scalar = bool | int | float | Typed

Resolve = Callable[[str, Any], int]
"""Returns the address of a ``pointer``, or the texture object of a ``texture``, for the value of its pair."""

FILTERS = ("point", "linear")
ADDRESS_MODES = ("clamp", "border", "wrap", "mirror")

_INTEGERS = {"i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q"}
_FLOATS = {"f16": "<e", "f32": "<f", "f64": "<d"}
_INTEGER_OF_SIZE = {1: ("i8", "u8"), 2: ("i16", "u16"), 4: ("i32", "u32"), 8: ("i64", "u64")}
_FLOAT_OF_SIZE = {4: "f32", 8: "f64"}
_F32_INFINITY = 0x7F800000


def i8(value: int) -> Typed:
    """Return a ``signed char``."""
    return _make_typed("i8", value)


def i16(value: int) -> Typed:
    """Return a ``short``."""
    return _make_typed("i16", value)


def i32(value: int) -> Typed:
    """Return an ``int``."""
    return _make_typed("i32", value)


def i64(value: int) -> Typed:
    """Return a ``long long``."""
    return _make_typed("i64", value)


def u8(value: int) -> Typed:
    """Return an ``unsigned char``."""
    return _make_typed("u8", value)


def u16(value: int) -> Typed:
    """Return an ``unsigned short``."""
    return _make_typed("u16", value)


def u32(value: int) -> Typed:
    """Return an ``unsigned``."""
    return _make_typed("u32", value)


def u64(value: int) -> Typed:
    """Return an ``unsigned long long``, or a pointer by its address."""
    return _make_typed("u64", value)


def f16(value: float) -> Typed:
    """Return a ``__half``, rounded to nearest even."""
    return _make_typed("f16", value)


def bf16(value: float) -> Typed:
    """Return a ``__nv_bfloat16``, rounded to nearest even."""
    return _make_typed("bf16", value)


def f32(value: float) -> Typed:
    """Return a ``float``; needed only if the value is a Python int."""
    return _make_typed("f32", value)


def f64(value: float) -> Typed:
    """Return a ``double``; needed only if the value is a Python int."""
    return _make_typed("f64", value)


def struct(content: bytes) -> Typed:
    """Return a structure from its bytes, padding included: of ``struct.pack``, or ``bytes`` of a ctypes structure."""
    return _make_typed("struct", bytes(content))


def pointer(tensor: str, offset: int = 0) -> Typed:
    """Return the address of a tensor, ``offset`` bytes after its start."""
    return _make_typed("pointer", (tensor, offset))


def fields(*members: str | Typed) -> Typed:
    """Return a structure from its members, aligned as C aligns them; a string is the address of a tensor."""
    return _make_typed("fields", tuple(pointer(member) if isinstance(member, str) else member for member in members))


def texture(tensor: str, *, filter_mode: str = "point", address: str = "clamp", normalized: bool = False) -> Typed:
    """Return a ``cudaTextureObject_t`` of a tensor: of one dimension, or of rows that are multiples of 32 bytes.

    ``filter_mode`` is one of :data:`FILTERS`, ``address`` one of :data:`ADDRESS_MODES`; ``normalized`` coordinates are
    0 to 1.
    """
    return _make_typed("texture", (tensor, filter_mode, address, normalized))


def list_tensor_names(argument: object) -> tuple[str, ...]:
    """Return the names of the tensors that an argument refers to."""
    match argument:
        case str(name) | ("pointer" | "texture", (str(name), *_)):
            return (name,)
        case ("fields", tuple(members)):
            return tuple(name for member in members for name in list_tensor_names(member))
    return ()


def to_bytes(scalar: Scalar, size: int, resolve: Resolve | None = None) -> bytes:
    """Return the bytes of an argument for a parameter of ``size`` bytes; ``resolve`` finds what refers to tensors.

    Raises:
        ValueError: the value does not fit, or a plain number's type is ambiguous.
    """
    if isinstance(scalar, tuple):
        content = encode_value(*scalar, resolve)
        if len(content) != size:
            raise ValueError(f"{scalar[0]} has {len(content)} bytes, the parameter has {size}")
        return content
    if isinstance(scalar, float):
        if size not in _FLOAT_OF_SIZE:
            raise ValueError(f"a float cannot fill a parameter of {size} bytes: use f16(…), bf16(…) or struct(…)")
        return encode_value(_FLOAT_OF_SIZE[size], scalar)
    if size not in _INTEGER_OF_SIZE:
        raise ValueError(f"an int cannot fill a parameter of {size} bytes: use struct(…)")
    signed, unsigned = _INTEGER_OF_SIZE[size]
    return encode_value(signed if scalar < 0 else unsigned, int(scalar))


def encode_value(kind: str, value: Any, resolve: Resolve | None = None) -> bytes:
    """Return the bytes of a value of a named type, lowest first, as CUDA's devices store them.

    Without ``resolve`` the address of every tensor is 0.

    Raises:
        ValueError: the type is unknown, or the value does not fit it.
    """
    match kind, value:
        case ("pointer", (str(), int(offset))) if offset >= 0:
            return packing.pack("<Q", 0 if resolve is None else resolve(kind, value))
        case ("texture", (str(), filter_mode, address, bool())) if filter_mode in FILTERS and address in ADDRESS_MODES:
            return packing.pack("<Q", 0 if resolve is None else resolve(kind, value))
        case ("fields", tuple(members)) if members:
            return _encode_structure(members, resolve)[0]
    if kind == "struct" and isinstance(value, bytes):
        return value
    try:
        if kind in _INTEGERS and isinstance(value, int):
            return packing.pack(_INTEGERS[kind], value)
        if kind == "bf16" and isinstance(value, int | float):
            return _encode_bfloat16(value)
        if kind in _FLOATS and isinstance(value, int | float):
            return packing.pack(_FLOATS[kind], value)
    except (packing.error, OverflowError) as error:
        raise ValueError(f"{value!r} does not fit {kind}") from error
    raise ValueError(f"{value!r} cannot be of type {kind}")


def _encode_structure(members: tuple[Any, ...], resolve: Resolve | None) -> tuple[bytes, int]:
    """Return a structure's bytes and its alignment (System V ABI: each member at a multiple of its own)."""
    content, widest = b"", 1
    for member in members:
        match member:
            case ("fields", tuple(inner)) if inner:
                piece, alignment = _encode_structure(inner, resolve)
            case (str(kind), value) if kind != "struct":
                piece = encode_value(kind, value, resolve)
                alignment = len(piece)
            case _:
                raise ValueError(f"a member {member!r} has no type: use i32(…), f32(…), pointer(…) or fields(…)")
        content += bytes(-len(content) % alignment) + piece
        widest = max(widest, alignment)
    return content + bytes(-len(content) % widest), widest


def _make_typed(kind: str, value: Any) -> Typed:
    encode_value(kind, value)
    return kind, value


def _encode_bfloat16(value: float) -> bytes:
    """Return the upper half of the ``float``, rounded to nearest even (IEEE 754 roundTiesToEven)."""
    if isnan(value):
        return b"\xc0\x7f"
    (bits,) = packing.unpack("<I", packing.pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    if isfinite(value) and bits & _F32_INFINITY == _F32_INFINITY:
        raise OverflowError
    return packing.pack("<I", bits)[2:]
