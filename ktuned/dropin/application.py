"""An application's report about itself: where its modules lie, how its functions are named, and which GPU it uses."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NOT_IN_PACKAGES = re.compile(r"[^A-Za-z0-9_.-]+")
_NOT_IN_RELEASES = re.compile(r"[^A-Za-z0-9_.+!-]+")
_NOT_IN_FUNCTIONS = re.compile(r"[^A-Za-z0-9_.]+")

_MAX_NAME = 160
"""Most characters of a function's name, which becomes part of a file's name. A longer one loses its beginning, because
its end says more."""

_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c", "bool": "b1"}


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function's name for people: its library (``fla``), the library's version, and the function's name in it."""

    package: str
    release: str
    function: str

    @property
    def full(self) -> str:
        """The name by which files of winners know the function: ``fla.ops.gla.chunk_fwd``."""
        return f"{self.package}.{self.function}"


def find_import_directory(module: str) -> str | None:
    """Return the directory in which an import finds a module, or its package; ``None`` if it is of no file."""
    package = sys.modules.get(module.partition(".")[0])
    file: str | None = getattr(package, "__file__", None)
    if not file:
        return None
    directory = os.path.dirname(os.path.abspath(file))
    return os.path.dirname(directory) if hasattr(package, "__path__") else directory


def list_application_paths(module: str) -> tuple[str, ...]:
    """Return the entries of ``sys.path`` that a worker needs to import a module, and does not have by itself.

    They are the application's own entries, and the directory of the module's package: a library may have added that one
    only for as long as it imported the package.
    """
    brought = tuple(f"{os.path.abspath(prefix)}{os.sep}" for prefix in {sys.prefix, sys.base_prefix})
    paths = dict.fromkeys(os.path.abspath(path) for path in sys.path)
    own = [path for path in paths if not f"{path}{os.sep}".startswith(brought)]
    directory = find_import_directory(module)
    if directory and directory not in own and os.path.basename(directory) not in ("site-packages", "dist-packages"):
        own.append(directory)
    return tuple(own)


def name_function(module: str, qualname: str) -> FunctionName:
    """Return the name under which a function is recorded, from its module and its qualified name there.

    A script counts as a library named after its file. A nested function is named without ``<locals>``. Characters that
    do not belong in a file's name are replaced or left out.
    """
    package, _, rest = module.partition(".")
    release = ""
    if package in ("__main__", "__mp_main__"):
        file = getattr(sys.modules.get(package), "__file__", None)
        package, rest = (Path(file).stem if file else "script"), ""
    else:
        release = _find_release(package)
    function = ".".join(filter(None, (rest, qualname.replace("<locals>.", ""))))
    return FunctionName(
        _NOT_IN_PACKAGES.sub("_", package).lstrip(".-")[:80] or "script",
        _NOT_IN_RELEASES.sub("", release).lstrip(".+!-")[:60],
        _NOT_IN_FUNCTIONS.sub("", function)[-_MAX_NAME:].lstrip(".") or "function",
    )


def _find_release(package: str) -> str:
    version = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(version, str):
        return version
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def shorten_dtype(dtype: Any) -> str:
    """Return a dtype's short name: ``f16`` for ``torch.float16``, ``f8_e4m3fn`` for ``torch.float8_e4m3fn``."""
    name = str(dtype).removeprefix("torch.")
    for long, short in _SHORT.items():
        if name.startswith(long):
            return short + name.removeprefix(long) if long != "bool" else short
    return name


def find_device_model(index: int | None = None) -> str | None:
    """Return the model of a GPU of this process, by default of torch's current GPU; ``None`` if there is no GPU."""
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name(index)) if torch is not None and torch.cuda.is_available() else None
