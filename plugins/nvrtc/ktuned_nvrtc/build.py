"""``Build``, a kernel file's recipe for one config: the kernel to compile, its options, and its launch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ktuned import backends, model
from ktuned_nvrtc.scalars import Scalar, encode_value, list_tensor_names

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(rf"{_IDENTIFIER.pattern}(::{_IDENTIFIER.pattern})*")


@dataclass(frozen=True)
class Build(backends.Build):
    """Recipe to compile and launch one config of a CUDA kernel.

    Attributes:
        entry: the kernel's C++ name at the end of the source: ``gemm<64, 64, 16>``, ``space::kernel``.
        args: the kernel's arguments, in order. A string passes the address of the tensor of ``inputs`` with that name;
            a number takes the parameter's size. :mod:`ktuned_nvrtc.scalars` has explicit types, pointers with offsets,
            structures and textures.
        grid: blocks in x, y, z; missing dimensions are 1. With a cluster, multiples of its sizes.
        block: threads of a block in x, y, z.
        shared_bytes: dynamic shared memory of a block; above 48 KiB the kernel's attribute is set before the launch.
        cluster: blocks of a cluster in x, y, z; empty for none.
        defines: preprocessor macros; ``True`` defines the bare name, ``False`` leaves it undefined.
        flags: more options for NVRTC, each one a word; relative paths in them start at the first source's directory.
        constants: ``__constant__`` or ``__device__`` variables (``d_filter``, ``space::table``), each with the tensor
            of ``inputs`` that is copied into it when the kernel is bound to its tensors.

    Raises:
        ValueError: a macro's name is not an identifier, a size is not a positive int, a scalar does not fit its type.
    """

    backend: ClassVar[str] = "nvrtc"

    entry: str
    args: tuple[str | Scalar, ...] = ()
    grid: tuple[int, ...] = (1,)
    block: tuple[int, ...] = (1,)
    shared_bytes: int = 0
    cluster: tuple[int, ...] = ()
    defines: Mapping[str, model.Scalar] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.entry.strip():
            raise ValueError("entry is empty: name the kernel, as in 'gemm<64, 64>'")
        for arg in self.args:
            if isinstance(arg, tuple):
                encode_value(*arg)
        for name in self.defines:
            if not _IDENTIFIER.fullmatch(name):
                raise ValueError(f"{name!r} is not a C++ identifier")
        for name, tensor in self.constants.items():
            if not _VARIABLE.fullmatch(name) or not isinstance(tensor, str):
                raise ValueError(f"constants: {name!r}: {tensor!r} is not the name of a variable with that of a tensor")
        for name in ("grid", "block", "cluster"):
            sizes: object = getattr(self, name)
            if not isinstance(sizes, tuple) or len(sizes) > 3 or not all(_is_positive_int(size) for size in sizes):
                raise ValueError(f"{name} must be a tuple of at most three positive ints, not {sizes!r}")
        if not (_is_positive_int(self.shared_bytes) or self.shared_bytes == 0):
            raise ValueError(f"shared_bytes must be an int of at least 0, not {self.shared_bytes!r}")

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that a launch takes: those of ``args``, in order, then those of ``constants``."""
        named = [name for arg in self.args for name in list_tensor_names(arg)]
        return tuple(dict.fromkeys((*named, *self.constants.values())))

    @property
    def macros(self) -> tuple[str, ...]:
        """The ``-D`` options, sorted by name so that the order of ``defines`` never changes a binary."""
        return backends.list_macro_options(self.defines)


def list_name_expressions(build: Build) -> tuple[str, ...]:
    """Return the name expressions whose symbols a Build needs: its kernel, then the addresses of its constants."""
    return build.entry, *(f"&{name}" for name in sorted(build.constants))


def pad_to_three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    """Return sizes in x, y and z, with 1 for missing ones."""
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z


def _is_positive_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
