"""Functions of an application's library, found by their names alone: in any process, without a kernel file.

A Build that names a ``library`` is a drop-in's. One front end imports that library for all of its functions; a digest
in each Build says which function the application has, so that another one is never compiled in its place.
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
from typing import Any, Self

from ktuned.model import BackendError
from ktuned.spec import functions
from ktuned_triton.build import Build


@dataclass(frozen=True, slots=True)
class Library:
    """The place that an application's functions are imported from; Builds with equal ones share a front end.

    Attributes:
        module: what is imported before the first function is asked for, such as ``fla``; nothing for a script.
        paths: the application's own ``sys.path``, which comes behind the worker's.
    """

    module: str = ""
    paths: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return the value of a Build's ``library``."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Read :meth:`to_plain`'s data."""
        return cls(str(data["module"]), tuple(data["paths"]))

    def open(self, build: Build | None = None) -> None:
        """Import the library, and the modules of what a Build names.

        Raises:
            BackendError: a module cannot be imported.
        """
        # At the end: the worker's own modules come first, as they have been imported.
        sys.path += [path for path in self.paths if path not in sys.path]
        named = [] if build is None or build.source else [str(build.function).rpartition(":")[0]]
        for name in filter(None, [self.module, *named]):
            try:
                importlib.import_module(name)
            except Exception as error:
                raise BackendError(
                    f"{name} cannot be imported: {type(error).__name__}: {error}",
                    hint=f"the application's functions are tuned where {sys.executable} can import it",
                ) from error


def find_function(name: str, build: Build, kernel_file: Path) -> Callable[..., Any]:
    """Return the function that a name in a Build stands for: its own, or one among its constants.

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
            module = _source_module(kernel_file.parent / build.source)
        found: Any = attrgetter(qualname)(module)
        while not hasattr(found, "params"):
            # Below autotuners and heuristics.
            found = found.fn
    except (ImportError, AttributeError, ValueError, OSError, SyntaxError) as error:
        raise LookupError(f"there is no function {name!r} any more: {error}") from error
    return found  # type: ignore[no-any-return]


def difference(function: Any, build: Build) -> str:
    """Return why a function that was found is not the one that the application has; nothing if it is."""
    if build.cache_key and function.cache_key != build.cache_key:
        return (
            f"{build.function} is not the function that the application has: it changed since the application started, "
            "or the application runs in another environment"
        )
    # What computes these digests is the application's side, which kernel files without a library do not need.
    from ktuned_triton.evaluation import constants_read

    found = constants_read(function) if build.cache_key else build.globals_read
    if found != build.globals_read:
        return f"{build.function} reads other globals than in the application: {', '.join(found) or 'none'}"
    return ""


def _source_module(path: Path) -> ModuleType:
    """Return the module of a source that was written for one function; its name stands for its content."""
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
