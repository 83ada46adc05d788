"""Origin of Python code: counted by its content, or by the distribution that installed it.

Code of the project, and of the distribution that defines the kernel file, counts by content wherever it lies: beside
the root, or installed editable. The standard library is part of the interpreter, ktuned and its plugins of the
toolchain, and all other installed code counts by its distribution (:mod:`ktuned.spec.distributions`).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ktuned.backends import ENTRY_POINT_GROUP as BACKENDS_GROUP

FOREIGN_DIRECTORIES = frozenset({"site-packages", "dist-packages"})
"""Directories of installed code: not the project's, even when the environment lies inside the project."""

OUR_PACKAGE = Path(__file__).resolve().parent.parent
"""ktuned itself, which is not the project's code either, also when the project is a checkout of ktuned."""

_PACKAGES = frozenset({"ktuned", "ktuned_client"}) | {
    f"ktuned_{name}" for name in ("command", "cutedsl", "nvrtc", "tilelang", "torch", "triton", "tvm_ffi")
}
"""ktuned's own distributions: a plugin's package may be imported where another one serves its backend."""

_CACHES = (
    *("KTUNED_CACHE", "TRITON_CACHE_DIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR"),
    *("TVM_FFI_CACHE_DIR", "CUDA_CACHE_PATH", "TILELANG_CACHE_DIR"),
)
"""Variables that name directories of what compilers keep."""

_HOME_CACHES = ("~/.tilelang", "~/.triton", "~/.nv", "~/.cuda")

_IN_CACHE = ("ktuned", "tvm-ffi", "tvm_ffi", "torch", "torch_extensions", "triton", "tilelang", "cutlass", "nvidia")
"""Their directories in the user's cache; what else lies there is data."""

_STDLIB_DIRECTORIES = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
_ZIPPED = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
STDLIB = tuple(f"{place}/" for stdlib in _STDLIB_DIRECTORIES for place in (stdlib, stdlib.parent / _ZIPPED))


class Installed(NamedTuple):
    """A place in an environment: its directory of packages, and the package or module there."""

    site: str
    top: str

    @property
    def package(self) -> str:
        """The name that the package or module is imported by."""
        return self.top.partition(".")[0]


@cache
def installed_in(path: str) -> Installed | None:
    """Return where a file is installed, or ``None`` for one that is not."""
    parts = path.split("/")
    for position in range(len(parts) - 2, 0, -1):
        if parts[position] in FOREIGN_DIRECTORIES:
            return Installed("/".join(parts[: position + 1]), parts[position + 1])
    for site in sys.path:
        if site and path.startswith(f"{site}/") and _is_site(site):
            return Installed(site, path[len(site) + 1 :].partition("/")[0])
    return None


@cache
def _is_site(directory: str) -> bool:
    """Return whether pip installed into a directory: into one of any name, with ``--target``."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(directory))
    except OSError:
        return False


@cache
def caches() -> tuple[str, ...]:
    """Return the directories of what compilers keep, each with a slash: code there was made from code elsewhere."""
    import tempfile

    named = [os.environ[name] for name in _CACHES if os.environ.get(name)]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    places = [*named, *map(os.path.expanduser, _HOME_CACHES), *(f"{cache}/{name}" for name in _IN_CACHE)]
    # Inductor adds the user's name.
    return (*(f"{os.path.abspath(place)}/" for place in places), f"{tempfile.gettempdir()}/torchinductor_")


@cache
def is_foreign(path: str) -> bool:
    """Return whether a file is of ktuned, of the interpreter, installed or cached, and counts by no content of its
    own.
    """
    if path.startswith(caches()):
        return True
    if not path.startswith("/") or path.startswith(f"{OUR_PACKAGE}/") or installed_in(path) is not None:
        return True
    if path.startswith(STDLIB) or str(Path(path).resolve()).startswith(STDLIB):
        return True
    return is_our_place(path.rpartition("/")[0])


def prepare_origins() -> None:
    """Find the plugins and the caches of compilers, before any code is observed.

    It imports ``importlib.metadata`` and ``tempfile`` (15 ms, which a worker that starts does not wait for), and user
    code that is observed may be importing these.
    """
    _our_packages()
    caches()


def is_ours(module_name: str) -> bool:
    """Return whether a module is of ktuned or an installed plugin: never the project's, even below its root."""
    return module_name.partition(".")[0] in _our_packages()


@cache
def is_our_file(path: str) -> bool:
    """Return whether a file is of ktuned or an installed plugin, wherever that is imported from."""
    ours = (f"{site}/{package}" for package in _our_packages() for site in sys.path if site)
    return any(path.startswith((f"{place}/", f"{place}.py")) for place in ours)


@cache
def is_our_place(directory: str) -> bool:
    """Return whether a directory of ``sys.path`` is a checkout of ktuned or of a plugin, where nobody else installs."""
    if installed_in(f"{directory}/x") is not None:
        return False
    return any(os.path.exists(f"{directory}/{package}{end}") for package in _our_packages() for end in ("", ".py"))


@cache
def _our_packages() -> frozenset[str]:
    from importlib.metadata import entry_points

    points = [*entry_points(group=BACKENDS_GROUP), *entry_points(group="ktuned.strategies")]
    return _PACKAGES | {point.module.partition(".")[0] for point in points}
