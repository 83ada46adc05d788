"""``Build``, a kernel file's recipe for one config: the function to compile, its options, and its arguments."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ktuned import backends
from ktuned.model import Scalar

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXPRESSION = re.compile(r"(::)?[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*(<[^;{}\n]*>)?")


@dataclass(frozen=True)
class Build(backends.Build):
    """Recipe to compile and call one config of a C++ or CUDA C++ kernel.

    Attributes:
        function: an identifier is the name that a source exports with ``TVM_FFI_DLL_EXPORT_TYPED_FUNC``. Anything else
            is the host function's C++ name at the end of the first source (``softmax<128, 4>``, ``space::softmax``);
            it need not be exported, and configs that differ only in it are compiled together.
        args: the function's arguments, in order: a string names a tensor of ``inputs``, numbers are passed as they are.
        defines: preprocessor macros; ``True`` defines the bare name, ``False`` leaves it undefined.
        flags: more flags for the compiler, each one a word; they may override the standard ones. Relative paths
            in them start at the first source's directory.

    Raises:
        ValueError: ``function`` names no function, or a macro's name is not an identifier.
    """

    backend: ClassVar[str] = "tvm_ffi"

    function: str
    args: tuple[Scalar, ...]
    defines: Mapping[str, Scalar] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _EXPRESSION.fullmatch(self.function):
            raise ValueError(f"{self.function!r} is neither an identifier nor a function such as 'softmax<128, 4>'")
        for name in self.defines:
            if not _IDENTIFIER.fullmatch(name):
                raise ValueError(f"{name!r} is not a C++ identifier")

    @property
    def is_exported(self) -> bool:
        """True if a source exports the function itself."""
        return _IDENTIFIER.fullmatch(self.function) is not None

    @property
    def symbol(self) -> str:
        """The function's name in ``kernel.so``: its own, or one that stands for the expression."""
        if self.is_exported:
            return self.function
        return f"ktuned_{hashlib.sha256(self.function.encode()).hexdigest()[:12]}"

    @property
    def macros(self) -> tuple[str, ...]:
        """The ``-D`` flags, sorted by name so that the order of ``defines`` never changes a binary."""
        return backends.list_macro_options(self.defines)
