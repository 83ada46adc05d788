"""``Build``, a kernel file's recipe for one config: the TileLang function, its arguments and the kernel's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from ktuned import backends
from ktuned.backends import Layout
from ktuned.declaration import functions
from ktuned_tilelang.execution import AUTO, check_execution_backend
from ktuned_tilelang.values import to_plain

Argument = bool | int | float | str | None
"""An argument of a kernel: a tensor of ``inputs`` by its name, or a number."""

TargetLike = str | Mapping[str, Any]


@dataclass(frozen=True)
class Build(backends.Build):
    """Recipe to compile and launch one config of a TileLang kernel.

    Attributes:
        function: a ``@tilelang.jit`` function (lazy or eager), or a function that returns a ``T.prim_func``, at the top
            level of the kernel file or of a module that it imports. It travels by its name.
        arguments: the arguments of that function by name: sizes, tiles, dtypes, enums. The tensors of an eager function
            are not among them.
        args: the kernel's arguments in the order of its parameters, outputs included: a string names a tensor of
            ``inputs``, numbers are passed as they are. By default each parameter gets the tensor of its own name.
        out_idx: the index, or indices, of the parameters that an application's call returns instead of taking; ``None``
            for those of ``@tilelang.jit``.
        target: TileLang's target, a name or a map; its ``arch`` is the device's, or the one given by ``--arch``.
        execution_backend: ``auto``, ``tvm_ffi``, ``nvrtc``, ``cython``, ``cutedsl`` or ``torch``.
        pass_configs: TileLang's ``pass_configs``, over those of ``@tilelang.jit``.
        compile_flags: more options for the CUDA compiler, after those of ``@tilelang.jit``.
        program: instead of a function, a file beside the kernel file with a ``T.prim_func`` as TVM's JSON; the drop-ins
            write such files.
        layouts: the tensors of ``inputs``; ktuned fills this in.

    Raises:
        ValueError: the function cannot be found by its name, or there is no such execution backend.
        TypeError: a value has a type that does not travel, or the function is decorated with ``tilelang.autotune``.
    """

    backend: ClassVar[str] = "tilelang"

    function: Callable[..., Any] | str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[Argument, ...] | None = None
    out_idx: tuple[int, ...] | int | None = None
    target: TargetLike = AUTO
    execution_backend: str = AUTO
    pass_configs: Mapping[str, Any] = field(default_factory=dict)
    compile_flags: tuple[str, ...] | str = ()
    program: str = ""
    layouts: Mapping[str, Layout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_execution_backend(self.execution_backend)
        plain = {
            "function": "" if self.program and not self.function else _find_function_name(self.function),
            "arguments": {key: to_plain(key, value) for key, value in self.arguments.items()},
            "args": None if self.args is None else tuple(_check_argument(value) for value in self.args),
            "out_idx": self.out_idx if self.out_idx is None or isinstance(self.out_idx, int) else tuple(self.out_idx),
            "target": self.target if isinstance(self.target, str) else dict(self.target),
            "pass_configs": {
                _name_pass_config(key): to_plain(_name_pass_config(key), value)
                for key, value in self.pass_configs.items()
            },
            "compile_flags": (self.compile_flags,)
            if isinstance(self.compile_flags, str)
            else tuple(self.compile_flags),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def given(self, layouts: Callable[[], Mapping[str, Layout]]) -> Self:
        """Record the tensors of ``inputs``: an eager function is traced with their shapes, strides and dtypes."""
        return replace(self, layouts=dict(layouts()))

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's options; ktuned finds the include directories in them."""
        return tuple(self.compile_flags)


def _find_function_name(function: Callable[..., Any] | str) -> str:
    # Recognised by the name of its type, so that TileLang need not be imported.
    if type(function).__name__ == "AutoTuneImpl" or hasattr(function, "jit_impl"):
        raise TypeError(
            "the function is decorated with tilelang.autotune: remove the decorator; the space declares the configs, "
            "and the kernel function passes them in arguments"
        )
    # A @tilelang.jit object has no name of its own: it is found by the name of the decorated function.
    inner = getattr(getattr(function, "func", None), "orig_func", None)
    return functions.name_function(function, inner if callable(inner) else None)


def _check_argument(value: Any) -> Argument:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"args holds a {type(value).__name__}; it takes tensors by their names in inputs, and numbers")


def _name_pass_config(key: Any) -> str:
    """Return the name of a pass config: ``tilelang.PassConfigKey`` is an enum of strings."""
    return str(getattr(key, "value", key))
