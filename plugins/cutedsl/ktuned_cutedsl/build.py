"""``Build``, a kernel file's recipe for one config: the function to compile, its tensors, and its arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from ktuned import backends
from ktuned.backends import Layout
from ktuned.declaration import functions
from ktuned.model import Scalar


@dataclass(frozen=True)
class Build(backends.Build):
    """Recipe to compile and call one config of a CuTe DSL function.

    Attributes:
        function: a ``@cute.jit`` function, or a class whose ``__call__`` is one, at the top level of the kernel file
            or of a module that it imports; workers find it by its name.
        args: its arguments, in order: a string names a tensor of ``inputs``, numbers are passed as they are. The
            function's parameter ``stream`` gets torch's stream and has no argument here.
        constants: its constexpr arguments by name: scalars, strings, ``None``, and tuples of these. Those that are
            parameters of a class's ``__init__`` are passed to that.
        options: more options of ``cute.compile``, as one string: ``"--opt-level 2"``.
        layouts: the tensors that it is compiled for; ktuned fills this in.

    Raises:
        ValueError: ``function`` cannot be found by its name, or a constant is in ``args`` as well.
        TypeError: ``function`` cannot be called, or a constant has another type.
    """

    backend: ClassVar[str] = "cutedsl"

    function: Callable[..., Any] | str
    args: tuple[Scalar, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: str = ""
    layouts: Mapping[str, Layout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", functions.name_function(self.function))
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(
            self, "constants", {name: _check_constant(name, value) for name, value in self.constants.items()}
        )

    def given(self, layouts: Callable[[], Mapping[str, Layout]]) -> Self:
        """Record the tensors that ``args`` names: their dtypes, shapes and strides are compiled in."""
        known = layouts()
        return replace(self, layouts={arg: known[arg] for arg in self.args if isinstance(arg, str) and arg in known})

    @property
    def symbol(self) -> str:
        """The exported name in the artifact's library: that of the function or its class."""
        return re.sub(r"\W", "_", str(self.function).rpartition(":")[2].rpartition(".")[2])


def _check_constant(name: str, value: Any) -> Any:
    """Return a constant with its lists as tuples, so that it stays equal on its way through MessagePack."""
    if isinstance(value, tuple | list):
        return tuple(_check_constant(name, item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"the constant {name} is a {type(value).__name__}; only numbers, strings, None and tuples of them can be "
        "sent to the compiler: pass a dtype by its name, and look it up there"
    )
