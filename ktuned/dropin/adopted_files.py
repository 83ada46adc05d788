"""An adopted function's files as a worker reads them, and what an application says of where it runs.

The daemon writes them from the spool's records: a kernel file of a few lines, which names its declaration, and beside
it ``calls/`` with declarations, calls, tensors and programs. All there is named by its content and never changes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from ktuned.spool import CALL_KEY, CALLS

Call = TypeVar("Call")

_NOT_IN_PACKAGES = re.compile(r"[^A-Za-z0-9_.-]+")
_NOT_IN_RELEASES = re.compile(r"[^A-Za-z0-9_.+!-]+")
_NOT_IN_FUNCTIONS = re.compile(r"[^A-Za-z0-9_.]+")

_MAX_NAME = 160
"""With the identity it is a file's name, of which file systems take 255 bytes; the end says most."""

_SHORT: Final = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c", "bool": "b1"}


def declaration_of(kernel_file: Path, identity: str) -> dict[str, Any]:
    """Return what a kernel is declared from."""
    found: dict[str, Any] = json.loads((kernel_file.parent / CALLS / f"{identity}.declaration.json").read_text())
    return found


def called_file(kernel_file: Path, name: str) -> Path:
    """Return the path of a file that a call names."""
    return kernel_file.parent / CALLS / name


class Calls(Generic[Call]):
    """The calls that problems of a kernel file name, each read once."""

    def __init__(self, file: Path, read: Callable[[str], Call]) -> None:
        self._file = file
        self._read = read
        self._known: dict[str, Call] = {}

    def find_call(self, problem: Mapping[str, Any]) -> Call:
        """Return the call of a problem.

        Raises:
            ValueError: the problem names none.
        """
        if CALL_KEY not in problem:
            raise ValueError("an application's call is needed: run the application, which records it")
        name = problem[CALL_KEY]
        if name not in self._known:
            self._known[name] = self._read(called_file(self._file, f"{name}.call.json").read_text())
        return self._known[name]


def own_paths() -> tuple[str, ...]:
    """Return the application's own entries of ``sys.path``: those that the interpreter does not bring."""
    brought = tuple(f"{os.path.abspath(prefix)}{os.sep}" for prefix in {sys.prefix, sys.base_prefix})
    paths = dict.fromkeys(os.path.abspath(path) for path in sys.path)
    return tuple(path for path in paths if not f"{path}{os.sep}".startswith(brought))


def package_of(module: str) -> tuple[str, str, str]:
    """Return the library that a module is of, its version, and the module's name within it.

    ``fla.ops.gla.chunk`` is ``("fla", "0.6.0", "ops.gla.chunk")``. A script is a library by its file's name.
    """
    package, _, rest = module.partition(".")
    if package in ("__main__", "__mp_main__"):
        file = getattr(sys.modules.get(package), "__file__", None)
        return (Path(file).stem if file else "script"), "", ""
    return package, _release_of(package), rest


def name_in_library(module: str, qualname: str) -> tuple[str, str, str]:
    """Return a function's library, its version and the function's name there, as a record may have them.

    A function within another is shown without ``<locals>``; characters that no file's name should have are left out.
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
