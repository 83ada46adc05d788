"""An adopted function's files as a worker reads them, and what an application reports about its function and place.

The daemon writes the files from the spool's records: a kernel file of a few lines, which names its declaration, and a
directory ``calls/`` with declarations, calls, tensors and programs. Those are named by their content and never change.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from ktuned.model import Problem
from ktuned.spool import CALL_KEY, CALLS

Call = TypeVar("Call")

_NOT_IN_PACKAGES = re.compile(r"[^A-Za-z0-9_.-]+")
_NOT_IN_RELEASES = re.compile(r"[^A-Za-z0-9_.+!-]+")
_NOT_IN_FUNCTIONS = re.compile(r"[^A-Za-z0-9_.]+")

_MAX_NAME = 160
"""Most characters of a function's name, of which the end says most: it becomes a part of a file's name."""

_SHORT: Final = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c", "bool": "b1"}


def declaration_of(kernel_file: Path, identity: str) -> dict[str, Any]:
    """Return the data from which a kernel is declared."""
    found: dict[str, Any] = json.loads((kernel_file.parent / CALLS / f"{identity}.declaration.json").read_text())
    return found


def called_file(kernel_file: Path, name: str) -> Path:
    """Return the path of a file that a call names."""
    return kernel_file.parent / CALLS / name


class Calls(Generic[Call]):
    """The calls that a kernel file's problems name; each is read once."""

    def __init__(self, file: Path, read: Callable[[str], Call]) -> None:
        self._file = file
        self._read = read
        self._known: dict[str, Call] = {}

    def find_call(self, problem: Problem) -> Call:
        """Return the call of a problem.

        Raises:
            ValueError: The problem names none.
        """
        if CALL_KEY not in problem:
            raise ValueError("an application's call is needed: run the application, which records it")
        name = str(problem[CALL_KEY])
        if name not in self._known:
            self._known[name] = self._read(called_file(self._file, f"{name}.call.json").read_text())
        return self._known[name]


def own_paths() -> tuple[str, ...]:
    """Return the application's own entries of ``sys.path``: those that do not come with the interpreter."""
    brought = tuple(f"{os.path.abspath(prefix)}{os.sep}" for prefix in {sys.prefix, sys.base_prefix})
    paths = dict.fromkeys(os.path.abspath(path) for path in sys.path)
    return tuple(path for path in paths if not f"{path}{os.sep}".startswith(brought))


def package_of(module: str) -> tuple[str, str, str]:
    """Return the library that a module belongs to, its version, and the module's name within it.

    ``fla.ops.gla.chunk`` is ``("fla", "0.6.0", "ops.gla.chunk")``. A script is a library by its file's name.
    """
    package, _, rest = module.partition(".")
    if package in ("__main__", "__mp_main__"):
        file = getattr(sys.modules.get(package), "__file__", None)
        return (Path(file).stem if file else "script"), "", ""
    return package, _release_of(package), rest


def name_in_library(module: str, qualname: str) -> tuple[str, str, str]:
    """Return a function's library, the library's version, and the function's name in it, as a record holds them.

    A nested function is named without ``<locals>``. Characters that a file's name should not have are left out.
    """
    package, release, rest = package_of(module)
    function = ".".join(filter(None, (rest, qualname.replace("<locals>.", ""))))
    return (
        _NOT_IN_PACKAGES.sub("_", package).lstrip(".-")[:80] or "script",
        _NOT_IN_RELEASES.sub("", release).lstrip(".+!-")[:60],
        _NOT_IN_FUNCTIONS.sub("", function)[-_MAX_NAME:].lstrip(".") or "function",
    )


def _release_of(package: str) -> str:
    version = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(version, str):
        return version
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def short_dtype(dtype: Any) -> str:
    """Return a dtype in short: ``torch.float16`` is ``f16``, ``torch.float8_e4m3fn`` is ``f8_e4m3fn``."""
    name = str(dtype).removeprefix("torch.")
    for long, short in _SHORT.items():
        if name.startswith(long):
            return short + name.removeprefix(long) if long != "bool" else short
    return name


def device_model(index: int | None = None) -> str | None:
    """Return the model of a GPU of this process, by default torch's current one; ``None`` without one."""
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name(index)) if torch is not None and torch.cuda.is_available() else None
