"""TileLang's execution backends, the ways in which it runs a kernel, and the files that each needs to load one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

AUTO: Final = "auto"
"""TileLang chooses: ``tvm_ffi`` for CUDA."""

VARIABLES: Final = ("CUTE_DSL_*", "TILELANG_*", "TL_*", "TVM_*")
"""Patterns of the environment variables that TileLang reads."""

SOURCE_FILE: Final = "device_kernel.cu"
HOST_SOURCE_FILE: Final = "host_kernel.cu"
PARAMETERS_FILE: Final = "params.json"
"""Dtypes and shapes of a kernel's parameters in the format of TileLang's own cache: JSON, which runs no code."""

CODE_FILES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "tvm_ffi": ("executable.so",),
        "nvrtc": ("kernel.cubin", "kernel.py"),
        "cython": ("kernel_lib.so",),
        "cutedsl": ("kernel.py", "launcher_lib.so", "kernel.cubin"),
        "torch": (SOURCE_FILE,),
    }
)
"""The code files of an artifact by execution backend; TileLang is given the first and finds the others. ``torch`` is
Metal's, whose code is text."""

CUTEDSL: Final = "cutedsl"
METAL_ONLY: Final = frozenset({"torch"})


def check_execution_backend(name: str) -> str:
    """Return the name of an execution backend, or ``auto``.

    Raises:
        ValueError: TileLang has none of that name, or one that this plugin does not know.
    """
    if name != AUTO and name not in CODE_FILES:
        raise ValueError(f"there is no execution backend {name!r}: give one of {', '.join((AUTO, *CODE_FILES))}")
    return name
