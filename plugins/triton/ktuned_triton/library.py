"""Finds functions of an application's library only by name, in any process and without importing a kernel file.

Builds of the drop-in name a ``library``. One front end imports the library for all its functions. The library found
here may differ from the application's (edited, or another version). So each Build has the digest of the application's
function, and a function with another digest is refused (:func:`find_difference`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from ktuned.model import BackendError
from ktuned.spec import functions

if TYPE_CHECKING:
    from ktuned_triton.build import Build


@dataclass(frozen=True, slots=True)
class Library:
    """Where an application's functions are imported from; Builds with equal libraries share a front end.

    Attributes:
        module: the package to import ahead of the first function, such as ``fla``; empty for a script.
        paths: the application's own entries of ``sys.path``; they are appended to the worker's.
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
        named = [] if build is None or build.source else [str(build.function).rpartition(":")[0]]
        for name in filter(None, [self.module, *named]):
            try:
                importlib.import_module(name)
            except Exception as error:
                raise BackendError(
                    f"{name} cannot be imported: {type(error).__name__}: {error}",
                    hint=f"make it importable for {sys.executable}: that interpreter tunes the application's functions",
                ) from error


def find_function(name: str, build: Build, kernel_file: Path) -> Callable[..., Any]:
    """Return a function that a Build names: its own function, or a function among its constants.

    Raises:
        KernelFileError: the kernel file cannot be imported.
        LookupError: there is no such function.
    """
    if build.library is None:
        return functions.find_function(name, kernel_file)
    module_name, _, qualname = name.rpartition(":")
    try:
        if module_name or not build.source:
            module = importlib.import_module(module_name)
        else:
            module = _import_source(kernel_file.parent / build.source)
        found: Any = attrgetter(qualname)(module)
        while not hasattr(found, "params"):
            # Unwrap autotuners and heuristics.
            found = found.fn
    except (ImportError, AttributeError, ValueError, OSError, SyntaxError) as error:
        raise LookupError(f"the function {name!r} no longer exists: {error}") from error
    return found  # type: ignore[no-any-return]


def find_difference(function: Any, build: Build) -> str:
    """Return how the function found here differs from the application's; empty if it does not."""
    if build.cache_key and function.cache_key != build.cache_key:
        return (
            f"{build.function} is not the application's function: it changed after the application started, or the "
            "application runs in another environment"
        )
    # Imported here, because kernel files without a library do not need the application's side.
    from ktuned_triton.evaluation import list_constants_read

    constants = list_constants_read(function) if build.cache_key else build.globals_read
    if constants != build.globals_read:
        return f"{build.function} reads other globals than in the application: {', '.join(constants) or 'none'}"
    return ""


def _import_source(path: Path) -> ModuleType:
    """Import a source file that was written for one function; its path has the digest of its content."""
    name = f"_ktuned_source_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no Python file")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
