"""``Build``, a kernel file's recipe for one config: the Triton function, its arguments and its launch."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from ktuned import backends
from ktuned.backends import Layout
from ktuned.spec import functions

DTYPE = "dtype"
FUNCTION = "function"
MEMBER = "member"
"""Constants that are no plain values travel as maps of one of these keys: ``{"dtype": "fp16"}``."""

HOOKS = ("pre_hook", "post_hook")

_OF_LIBRARIES = ("library", "source", "cache_key", "globals_read")

Descriptor = Mapping[str, Any]
"""A host-side tensor descriptor: ``descriptor`` names its tensor; ``shape``, ``strides``, ``block_shape`` are lists of
ints, ``padding`` is ``zero`` or ``nan``."""

DESCRIPTOR_FIELDS = frozenset({"descriptor", "shape", "strides", "block_shape", "padding"})

Argument = bool | int | float | str | None | tuple["Argument", ...] | Descriptor
"""An argument of a kernel: a tensor of ``inputs`` by its name, a number, ``None``, a tuple, or a tensor descriptor."""

_WRAPPERS = {"Autotuner": "triton.autotune", "Heuristics": "triton.heuristics"}


@dataclass(frozen=True)
class Build(backends.Build):
    """Recipe to compile and launch one config of a Triton kernel.

    Attributes:
        function: a ``@triton.jit`` function at the top level of the kernel file, or of a module that this imports. What
            travels is its name.
        args: what its parameters that are no ``tl.constexpr`` get, in order: a string names a tensor of ``inputs``,
            numbers, ``None`` and tuples are themselves.
        constants: its ``tl.constexpr`` parameters by name: numbers, strings, ``None``, tuples, enums of
            modules that can be imported, Triton's dtypes (``tl.float16``) and ``@triton.jit`` functions.
        grid: how many programs in x, y, z; missing dimensions are 1.
        num_warps: how many warps a program has, a power of two.
        num_stages: how deep loops are pipelined.
        num_ctas: how many blocks a cluster has.
        maxnreg: the most registers that a thread may have; ``None`` leaves it to the compiler.
        options: more options of Triton's compiler: ``{"enable_fp_fusion": False}``.
        pre_hook: a function that is called before each launch with the arguments by their parameters' names, found as
            ``function`` is; its time counts.
        post_hook: likewise after each launch, with ``exception=None`` besides.
        dtypes: the dtypes of the tensors that ``args`` names; ktuned fills this in.
        library: what the functions are imported from in place of the kernel file, as
            :meth:`ktuned_triton.library.Library.to_plain` returns it; for drop-ins.
        source: with a ``library`` a Python file, relative to the kernel file, that names without a module are found in.
        cache_key: with a ``library`` Triton's digest of the function that the application has.
        globals_read: with a ``cache_key`` the globals that Triton compiles in, and leaves out of that digest, as
            :func:`ktuned_triton.evaluation.constants_read` returns them.

    Raises:
        ValueError: no name leads to a function, or a size is not a positive int.
        TypeError: ``function`` is no ``@triton.jit`` function, or a value is of a type that does not travel.
    """

    backend: ClassVar[str] = "triton"

    function: Callable[..., Any] | str
    args: tuple[Argument, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, ...] = (1,)
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    pre_hook: Callable[..., Any] | str | None = None
    post_hook: Callable[..., Any] | str | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    library: Mapping[str, Any] | None = None
    source: str = ""
    cache_key: str = ""
    globals_read: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", _name_of(self.function))
        for name in HOOKS:
            if (hook := getattr(self, name)) is not None:
                object.__setattr__(self, name, functions.name_function(hook))
        object.__setattr__(self, "args", tuple(_argument(value) for value in self.args))
        for name in ("constants", "options"):
            values = {key: constant(key, value) for key, value in getattr(self, name).items()}
            object.__setattr__(self, name, values)
        grid: object = self.grid
        if not isinstance(grid, tuple) or not 1 <= len(grid) <= 3 or not all(_is_count(size) for size in grid):
            raise ValueError(f"grid must be a tuple of one to three positive ints, not {self.grid!r}")
        for name in ("num_warps", "num_stages", "num_ctas", "maxnreg"):
            size = getattr(self, name)
            if not (_is_count(size) or (name == "num_stages" and size == 0) or (name == "maxnreg" and size is None)):
                raise ValueError(f"{name} must be a positive int, not {size!r}")

    def given(self, layouts: Callable[[], Mapping[str, Layout]]) -> Self:
        """Take note of the dtypes of the tensors that ``args`` names: they are compiled in, shapes are not."""
        known = layouts()
        return replace(self, dtypes={name: known[name][0] for name in tensor_names(self.args) if name in known})

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain data, by which artifacts are known: without hooks and libraries that are none."""
        plain = super().to_plain()
        return {name: value for name, value in plain.items() if value or name not in (*HOOKS, *_OF_LIBRARIES)}

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that a launch takes, also those inside tuples, in order."""
        return tuple(dict.fromkeys(tensor_names(self.args)))

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The options of Triton's compiler."""
        sizes = {"num_warps": self.num_warps, "num_stages": self.num_stages, "num_ctas": self.num_ctas}
        return {**self.options, **sizes, **({} if self.maxnreg is None else {"maxnreg": self.maxnreg})}


def tensor_names(args: tuple[Argument, ...]) -> Iterator[str]:
    """Yield the names of tensors among arguments, also those inside tuples."""
    for arg in args:
        if isinstance(arg, tuple):
            yield from tensor_names(arg)
        elif isinstance(arg, str):
            yield arg
        elif isinstance(arg, Mapping):
            yield arg["descriptor"]


def _name_of(function: Callable[..., Any] | str) -> str:
    decorator = next((_WRAPPERS[base.__name__] for base in type(function).__mro__ if base.__name__ in _WRAPPERS), None)
    if decorator is not None:
        raise TypeError(
            f"the function is decorated with {decorator}: leave that out; the space declares the configs, and the "
            "kernel function computes what depends on them"
        )
    if type(function).__name__ == "InterpretedFunction":
        raise TypeError("TRITON_INTERPRET is set, so that @triton.jit does not compile: unset it")
    return functions.name_function(function)


def _argument(value: Any) -> Argument:
    if isinstance(value, tuple | list) and not is_named(value):
        return tuple(_argument(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping) and set(value) == DESCRIPTOR_FIELDS:
        return dict(value)
    raise TypeError(
        f"args holds a {type(value).__name__}; it takes tensors by their names in inputs, numbers, None and tuples"
    )


def is_named(value: object) -> bool:
    """Return whether a value is a named tuple, whose fields kernels read by name: its class does not travel."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def constant(name: str, value: Any) -> Any:
    """Return a constant as it travels, the same again for what has travelled."""
    if isinstance(value, tuple | list) and not is_named(value):
        return tuple(constant(name, item) for item in value)
    if isinstance(value, Mapping) and set(value) in ({DTYPE}, {FUNCTION}, {MEMBER}):
        return dict(value)
    if isinstance(value, enum.Enum):
        return {MEMBER: _member_name(name, value)}
    if type(value).__module__.partition(".")[0] == "triton":
        # By its type's name: Triton is not imported for it.
        if type(value).__name__ == "constexpr":
            return constant(name, value.value)
        if type(value).__name__ == "dtype":
            return {DTYPE: value.name}
        if hasattr(value, "cache_key"):
            return {FUNCTION: _name_of(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(
        f"the constant {name} is a {type(value).__name__}; numbers, strings, None, tuples, enums, Triton's dtypes and "
        "@triton.jit functions travel to the compiler"
    )


def _member_name(name: str, value: enum.Enum) -> str:
    kind = type(value)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise TypeError(f"the constant {name} is a member of {kind.__qualname__}, which no other process can import")
    return f"{kind.__module__}:{kind.__qualname__}.{value.name}"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
