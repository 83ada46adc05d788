"""Backend for CUDA C++ kernels, compiled by NVRTC and launched by the driver."""

from ktuned_nvrtc.backend import Nvrtc
from ktuned_nvrtc.build import Build
from ktuned_nvrtc.launch import NvrtcKernel
from ktuned_nvrtc.scalars import (
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

__all__ = [
    "Build",
    "Nvrtc",
    "NvrtcKernel",
    "bf16",
    "f16",
    "f32",
    "f64",
    "fields",
    "i8",
    "i16",
    "i32",
    "i64",
    "pointer",
    "struct",
    "texture",
    "u8",
    "u16",
    "u32",
    "u64",
]
