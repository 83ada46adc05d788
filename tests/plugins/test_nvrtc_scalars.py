"""Scalars become the bytes that a C compiler would pass; values that do not fit or are ambiguous are refused."""

import ctypes
import struct as packing
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ktuned_nvrtc import (
    Build,
    bf16,
    f16,
    f32,
    f64,
    fields,
    i8,
    i16,
    i32,
    i64,
    pointer,
    struct,
    texture,
    u8,
    u16,
    u32,
    u64,
)
from ktuned_nvrtc.scalars import list_tensor_names, to_bytes


@pytest.mark.parametrize(
    ("scalar", "size", "expected"),
    [
        (True, 1, b"\x01"),
        (False, 4, b"\0\0\0\0"),
        (-1, 1, b"\xff"),
        (255, 1, b"\xff"),
        (-2, 2, b"\xfe\xff"),
        (1 << 31, 4, b"\0\0\0\x80"),
        (-(1 << 31), 4, b"\0\0\0\x80"),
        ((1 << 64) - 1, 8, b"\xff" * 8),
        (1.5, 4, packing.pack("<f", 1.5)),
        (0.1, 8, packing.pack("<d", 0.1)),
        (float("inf"), 4, packing.pack("<f", float("inf"))),
    ],
)
def test_plain_numbers_take_the_parameters_size(scalar: Any, size: int, expected: bytes) -> None:
    """An int is signed or unsigned as needed; a float is a float or a double."""
    assert to_bytes(scalar, size) == expected


@pytest.mark.parametrize(
    ("make", "value", "expected"),
    [
        (i8, -3, bytes(ctypes.c_int8(-3))),
        (i16, -300, bytes(ctypes.c_int16(-300))),
        (i32, -70000, bytes(ctypes.c_int32(-70000))),
        (i64, -(1 << 40), bytes(ctypes.c_int64(-(1 << 40)))),
        (u8, 200, bytes(ctypes.c_uint8(200))),
        (u16, 60000, bytes(ctypes.c_uint16(60000))),
        (u32, 1 << 31, bytes(ctypes.c_uint32(1 << 31))),
        (u64, 1 << 63, bytes(ctypes.c_uint64(1 << 63))),
        (f32, 2, bytes(ctypes.c_float(2))),
        (f64, 2, bytes(ctypes.c_double(2))),
        (struct, b"abc", b"abc"),
    ],
)
def test_typed_scalars_are_what_c_stores(make: Callable[[Any], Any], value: Any, expected: bytes) -> None:
    """Each is plain data that survives its travel, and has a size of its own."""
    scalar = make(value)
    assert to_bytes(scalar, len(expected)) == expected
    with pytest.raises(ValueError, match=f"has {len(expected)} bytes, the parameter has 16"):
        to_bytes(scalar, 16)
    build = Build("k", (scalar,))
    assert Build.from_plain(build.to_plain()) == build


@pytest.mark.parametrize(("make", "dtype"), [(f16, torch.float16), (bf16, torch.bfloat16)])
def test_half_precision_is_rounded_as_torch_does(make: Callable[[float], Any], dtype: torch.dtype) -> None:
    """This includes ties, subnormals, infinities and zeros."""
    torch.manual_seed(0)
    values = torch.randn(2000).mul(10 ** torch.randint(-8, 4, (2000,))).tolist()
    values += [
        0.0,
        -0.0,
        1.0 + 2**-8,
        1.0 + 3 * 2**-8,
        1.0 + 2**-11,
        1.0 + 3 * 2**-11,
        6e-8,
        float("inf"),
        -float("inf"),
    ]
    for value in values:
        expected = torch.tensor(value, dtype=torch.float32).to(dtype).view(torch.int16).item()
        assert to_bytes(make(value), 2) == packing.pack("<h", expected), value
    (bits,) = packing.unpack("<h", to_bytes(make(float("nan")), 2))
    assert torch.tensor(bits, dtype=torch.int16).view(dtype).isnan().item()


@pytest.mark.parametrize(
    ("make_refused", "message"),
    [
        (lambda: i8(128), "128 does not fit i8"),
        (lambda: u32(-1), "-1 does not fit u32"),
        (
            lambda: i32(1.0),  # type: ignore[arg-type]
            "1.0 cannot be of type i32",
        ),
        (lambda: f16(1e6), "does not fit f16"),
        (lambda: bf16(3.4e38), "does not fit bf16"),
        (lambda: f32(1e300), r"1e\+300 does not fit f32"),
        (lambda: to_bytes(1e300, 4), "does not fit f32"),
        (lambda: to_bytes(1 << 32, 4), "does not fit u32"),
        (lambda: to_bytes(1.0, 2), "use f16"),
        (lambda: to_bytes(1, 16), "use struct"),
    ],
)
def test_values_that_do_not_fit_or_are_ambiguous_are_refused(make_refused: Callable[[], object], message: str) -> None:
    """No value is truncated or guessed."""
    with pytest.raises(ValueError, match=message):
        make_refused()


class InnerStruct(ctypes.Structure):
    _fields_ = (("flag", ctypes.c_int8), ("wide", ctypes.c_int64))


class OuterStruct(ctypes.Structure):
    _fields_ = (("short", ctypes.c_int16), ("data", ctypes.c_uint64), ("inner", InnerStruct), ("last", ctypes.c_float))


def test_structures_are_laid_out_as_c_does() -> None:
    """Members are aligned, nested ones too, and the end is padded."""
    structure = fields(i16(-2), pointer("x", 16), fields(i8(1), i64(-9)), f32(0.5))
    expected = bytes(OuterStruct(-2, 0x7000 + 16, InnerStruct(1, -9), 0.5))
    assert to_bytes(structure, len(expected), lambda kind, value: 0x7000 + value[1]) == expected
    build = Build("k", (structure, texture("y", filter_mode="linear")))
    assert Build.from_plain(build.to_plain()) == build
    assert [list_tensor_names(argument) for argument in (*build.args, "z", 3, i8(1))] == [
        ("x",),
        ("y",),
        ("z",),
        (),
        (),
    ]


@pytest.mark.parametrize(
    "argument",
    [
        ("pointer", ("x", -1)),
        ("pointer", "x"),
        ("texture", ("x", "cubic", "clamp", False)),
        ("fields", ()),
        ("fields", (3,)),
        ("fields", (("struct", b"abc"),)),
    ],
)
def test_arguments_without_a_meaning_are_refused(argument: Any) -> None:
    """No parameter could take them."""
    with pytest.raises(ValueError, match=r"cannot be of type|has no type"):
        Build("k", (argument,))
