"""``Build``, a kernel file's recipe for one config: the PyTorch function and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from ktuned import backends
from ktuned.backends import Layout
from ktuned.declaration import functions


@dataclass(frozen=True)
class Build(backends.Build):
    """Recipe to compile and call one config of a PyTorch function.

    Attributes:
        function: a function at the top level of the kernel file, or of a module that it imports. It writes into
            tensors that it receives and returns ``None``. Workers find it by its name.
        args: its arguments, in order: a string names a tensor of ``inputs``, anything else is passed as it is. In a
            kernel without ``inputs`` strings are passed as they are, too, and the function may return anything.
        kwargs: its keyword arguments, in the same form.
        has_tensors: whether strings name tensors; ktuned fills this in.
        compile: the arguments of ``torch.compile`` (``{}`` for its defaults), or ``None`` for eager.
        layouts: the tensors that it is compiled for; ktuned fills this in.

    Raises:
        ValueError: ``function`` cannot be found by its name: it is a lambda or a nested function.
        TypeError: ``function`` is not a function, or ``compile`` is not a map.
    """

    backend: ClassVar[str] = "torch"

    function: Callable[..., Any] | str
    args: tuple[Any, ...] = ()
    compile: Mapping[str, Any] | None = None
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    has_tensors: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", functions.name_function(self.function))

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that a call takes, in the order of its arguments."""
        strings = [arg for arg in (*self.args, *self.kwargs.values()) if isinstance(arg, str)]
        return tuple(dict.fromkeys(strings)) if self.has_tensors else ()

    def given(self, layouts: Callable[[], Mapping[str, Layout]]) -> Self:
        """Return the Build with the layouts of its tensors, for which the function is compiled."""
        if self.compile is None:
            return self
        known = layouts()
        return replace(self, layouts={name: known[name] for name in self.tensors if name in known})

    def without_tensors(self) -> Self:
        """Return the Build with strings that are passed as they are."""
        return replace(self, has_tensors=False)
