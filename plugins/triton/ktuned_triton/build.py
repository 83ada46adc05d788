"""``Build``, a kernel file's recipe for one config: the Triton function, its arguments and its launch.

A Build travels between processes as plain data. Functions travel by name; constants that are not plain values
(dtypes, functions, members of enums) travel as maps that say what they are.
"""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from ktuned import backends
from ktuned.backends import Layout
from ktuned.declaration import functions
from ktuned.model import BackendError
from ktuned_triton.descriptors import Descriptor

DTYPE = "dtype"
FUNCTION = "function"
MEMBER = "member"
"""Keys of the maps that stand for constants that are not plain values: ``{"dtype": "fp16"}``."""

_LIBRARY_FIELDS = ("library", "cache_key", "globals_read", "unaligned", "lowered")

_DESCRIPTOR_FIELDS = {entry.name for entry in fields(Descriptor)}

Argument = bool | int | float | str | None | tuple["Argument", ...] | Descriptor
"""An argument of a kernel: a tensor of ``inputs`` by its name, a number, ``None``, a tuple, or a tensor descriptor."""

_WRAPPERS = {"Autotuner": "triton.autotune", "Heuristics": "triton.heuristics"}


@dataclass(frozen=True, slots=True)
class Library:
    """Where an application's functions are imported from; Builds with equal libraries share a front end.

    Attributes:
        module: the package to import ahead of the first function, such as ``fla``; empty if there is none.
        paths: further entries of ``sys.path``; they are appended to the worker's.
    """

    module: str = ""
    paths: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain data, as a worker's request to import the library carries them."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Read :meth:`to_plain`'s data."""
        return cls(str(data["module"]), tuple(data["paths"]))

    def import_modules(self, build: Build | None = None) -> None:
        """Import the library, and the module of a Build's function.

        Raises:
            BackendError: a module cannot be imported.
        """
        # At the end, so that the worker's own modules keep priority.
        sys.path += [path for path in self.paths if path not in sys.path]
        named = "" if build is None else str(build.function).rpartition(":")[0]
        for name in filter(None, [self.module, named]):
            try:
                importlib.import_module(name)
            except Exception as error:
                raise BackendError(
                    f"{name} cannot be imported: {type(error).__name__}: {error}",
                    hint=f"make it importable for {sys.executable}: that interpreter tunes the application's functions",
                ) from error


@dataclass(frozen=True)
class Build(backends.Build):
    """Recipe to compile and launch one config of a Triton kernel.

    Attributes:
        function: a ``@triton.jit`` function at the top level of the kernel file, or of a module that it imports. It
            travels by its name.
        args: the arguments of all parameters that are not ``tl.constexpr``, in order. A string names a tensor of
            ``inputs``; numbers, ``None`` and tuples are passed as they are.
        constants: the ``tl.constexpr`` parameters by name: numbers, strings, ``None``, tuples, members of enums in
            importable modules, Triton's dtypes (``tl.float16``) and ``@triton.jit`` functions.
        grid: number of programs in x, y, z; missing dimensions are 1.
        num_warps: warps of a program, a power of two.
        num_stages: depth of the pipelining of loops.
        num_ctas: blocks of a cluster.
        maxnreg: most registers of a thread; ``None`` leaves it to the compiler.
        options: more options of Triton's compiler: ``{"enable_fp_fusion": False}``.
        dtypes: the dtypes of the tensors that ``args`` names; ktuned fills this in.
        library: for drop-ins: where functions are imported from instead of the kernel file.
        cache_key: with a ``library``: Triton's digest of the function in the application.
        globals_read: with a ``cache_key``: the globals that Triton compiles in but leaves out of that digest
            (:func:`ktuned_triton.library.list_constants_read`).
        unaligned: for drop-ins: the tensors whose address is not a multiple of 16, for which Triton compiles otherwise.
        lowered: for drop-ins: the file with the text that the application itself has made of the function, because no
            import finds it; relative to the kernel file's directory.

    Raises:
        ValueError: a function cannot be found by its name, or a size is not a positive int.
        TypeError: ``function`` is not a ``@triton.jit`` function, or a value has a type that does not travel.
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
    dtypes: Mapping[str, str] = field(default_factory=dict)
    library: Library | None = None
    cache_key: str = ""
    globals_read: tuple[str, ...] = ()
    unaligned: tuple[str, ...] = ()
    lowered: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", _find_function_name(self.function))
        object.__setattr__(self, "args", tuple(_check_argument(value) for value in self.args))
        for name in ("constants", "options"):
            values = {key: pack_constant(key, value) for key, value in getattr(self, name).items()}
            object.__setattr__(self, name, values)
        library: object = self.library
        if isinstance(library, Mapping):
            object.__setattr__(self, "library", Library.from_plain(library))
        grid: object = self.grid
        if not isinstance(grid, tuple) or not 1 <= len(grid) <= 3 or not all(_is_positive_int(size) for size in grid):
            raise ValueError(f"grid must be a tuple of one to three positive ints, not {self.grid!r}")
        for name in ("num_warps", "num_stages", "num_ctas", "maxnreg"):
            size = getattr(self, name)
            if not (
                _is_positive_int(size) or (name == "num_stages" and size == 0) or (name == "maxnreg" and size is None)
            ):
                raise ValueError(f"{name} must be a positive int, not {size!r}")

    def given(self, layouts: Callable[[], Mapping[str, Layout]]) -> Self:
        """Return the Build with the dtypes of its tensors filled in: Triton compiles for dtypes, not for shapes."""
        known = layouts()
        return replace(self, dtypes={name: known[name][0] for name in walk_tensor_names(self.args) if name in known})

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain data, a part of an artifact's key; unset fields of libraries are left out."""
        return {name: value for name, value in super().to_plain().items() if value or name not in _LIBRARY_FIELDS}

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that a launch takes, in order, including those in tuples."""
        return tuple(dict.fromkeys(walk_tensor_names(self.args)))

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The options of Triton's compiler."""
        sizes = {"num_warps": self.num_warps, "num_stages": self.num_stages, "num_ctas": self.num_ctas}
        return {**self.options, **sizes, **({} if self.maxnreg is None else {"maxnreg": self.maxnreg})}


def walk_tensor_names(args: tuple[Argument, ...]) -> Iterator[str]:
    """Yield the names of the tensors among arguments, including those in tuples."""
    for arg in args:
        if isinstance(arg, tuple):
            yield from walk_tensor_names(arg)
        elif isinstance(arg, str):
            yield arg
        elif isinstance(arg, Descriptor):
            yield arg.descriptor


def _find_function_name(function: Callable[..., Any] | str) -> str:
    decorator = next((_WRAPPERS[base.__name__] for base in type(function).__mro__ if base.__name__ in _WRAPPERS), None)
    if decorator is not None:
        raise TypeError(
            f"the function is decorated with {decorator}: remove the decorator; the space declares the configs, and "
            "the kernel function computes what depends on them"
        )
    if type(function).__name__ == "InterpretedFunction":
        raise TypeError("TRITON_INTERPRET is set, so that @triton.jit does not compile: unset it")
    return functions.name_function(function)


def _check_argument(value: Any) -> Argument:
    if isinstance(value, tuple | list) and not is_named_tuple(value):
        return tuple(_check_argument(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str | Descriptor):
        return value
    if isinstance(value, Mapping) and set(value) == _DESCRIPTOR_FIELDS:
        return Descriptor.from_plain(value)
    raise TypeError(
        f"args holds a {type(value).__name__}; it takes tensors by their names in inputs, numbers, None and tuples"
    )


def is_named_tuple(value: object) -> bool:
    """Return whether a value is a named tuple; those cannot travel, because kernels need their class to read fields."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def pack_constant(name: str, value: Any) -> Any:
    """Return a constant in the form in which it travels; a constant in that form is returned unchanged."""
    if isinstance(value, tuple | list) and not is_named_tuple(value):
        return tuple(pack_constant(name, item) for item in value)
    if isinstance(value, Mapping) and set(value) in ({DTYPE}, {FUNCTION}, {MEMBER}):
        return dict(value)
    if isinstance(value, enum.Enum):
        return {MEMBER: _name_member(name, value)}
    if type(value).__module__.partition(".")[0] == "triton":
        # Recognised by the name of its type, so that Triton need not be imported.
        if type(value).__name__ == "constexpr":
            return pack_constant(name, value.value)
        if type(value).__name__ == "dtype":
            return {DTYPE: value.name}
        if hasattr(value, "cache_key"):
            return {FUNCTION: _find_function_name(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(
        f"the constant {name} is a {type(value).__name__}; numbers, strings, None, tuples, enums, Triton's dtypes and "
        "@triton.jit functions can be sent to the compiler"
    )


def _name_member(name: str, value: enum.Enum) -> str:
    kind = type(value)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise TypeError(f"the constant {name} is a member of {kind.__qualname__}, which no other process can import")
    return f"{kind.__module__}:{kind.__qualname__}.{value.name}"


def _is_positive_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
