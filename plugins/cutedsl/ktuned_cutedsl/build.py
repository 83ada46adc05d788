"""What a kernel function returns for this backend: which function to compile, for what, and how to call it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from ktuned import backends
from ktuned.backends import Layout
from ktuned.model import Scalar
from ktuned.spec import functions


@dataclass(frozen=True)
class Build(backends.Build):
    """How to compile and call one config of a CuTe DSL function.

    Attributes:
        function: a ``@cute.jit`` function, or a class whose ``__call__`` is one, at the top level of the kernel file
            or of a module that this imports. What travels is its name.
        args: what it is called with, in order: a string names a tensor of ``inputs``, a number is itself. The stream,
            which it must have as its parameter ``stream``, is not among them.
        constants: its constexpr arguments by name: scalars, strings, ``None``, and tuples of these. Of a class, those
            that ``__init__`` takes are given to that.
        options: more options of ``cute.compile``, as one string: ``"--opt-level 2"``.
        layouts: the tensors that it is compiled for; ktuned fills this in.

    Raises:
        ValueError: no name leads to ``function``, or a constant is in ``args`` as well.
        TypeError: ``function`` cannot be called, or a constant is of another type.
    """

    backend: ClassVar[str] = "cutedsl"

    function: Callable[..., Any] | str
    args: tuple[Scalar, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: str = ""
    layouts: Mapping[str, Layout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", functions.name_of(self.function))
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "constants", {name: _constant(name, value) for name, value in self.constants.items()})

    def given(self, layouts: Callable[[], Mapping[str, Layout]]) -> Self:
        """Take note of the tensors that ``args`` names: their dtypes, shapes and strides are compiled in."""
        known = layouts()
        return replace(self, layouts={arg: known[arg] for arg in self.args if isinstance(arg, str) and arg in known})

    @property
    def symbol(self) -> str:
        """The name that the artifact's library exports: the function's own, or its class's."""
        return re.sub(r"\W", "_", str(self.function).rpartition(":")[2].rpartition(".")[2])


def _constant(name: str, value: Any) -> Any:
    """Return a constant with lists as tuples, as it is again after it has travelled."""
    if isinstance(value, tuple | list):
        return tuple(_constant(name, item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"the constant {name} is a {type(value).__name__}; only numbers, strings, None and tuples of them travel "
        "to the compiler: pass a dtype by its name, and look it up there"
    )
