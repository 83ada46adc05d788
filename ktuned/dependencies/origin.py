"""Origin of Python code: a file's place decides what represents it in a digest.

=======================================  =====================================================
code                                     counts by
=======================================  =====================================================
of the project, wherever it lies         its content, also next to the root or installed editable
of the kernel file's own distribution    its content
the standard library                     the interpreter
ktuned and its plugins                   the toolchain
in compilers' caches                     the sources that it was made of
installed otherwise                      its distribution (:mod:`ktuned.dependencies.distributions`)
=======================================  =====================================================

Paths are distinguished by their text alone as far as possible, and answers are cached, because each import needs one.
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
"""Directories of installed code, which is not the project's even if the environment lies inside the project."""

OUR_PACKAGE = Path(__file__).resolve().parent.parent
"""ktuned's own code, which is not the project's, even if the project is a checkout of ktuned."""

_OUR_PACKAGES = frozenset({"ktuned", "ktuned_client"}) | {
    f"ktuned_{name}" for name in ("command", "cutedsl", "nvrtc", "tilelang", "torch", "triton", "tvm_ffi")
}
"""ktuned's own packages. One plugin may import another's package."""

_CACHE_VARIABLES = (
    *("KTUNED_CACHE", "TRITON_CACHE_DIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR"),
    *("TVM_FFI_CACHE_DIR", "CUDA_CACHE_PATH", "TILELANG_CACHE_DIR", "CCACHE_DIR", "SCCACHE_DIR"),
)
"""Variables that name directories in which compilers keep what they made."""

_HOME_CACHES = ("~/.tilelang", "~/.triton", "~/.nv", "~/.cuda", "~/.ccache")

_USER_CACHES = (
    "ktuned",
    "tvm-ffi",
    "tvm_ffi",
    "torch/kernels",
    "torch_extensions",
    "triton",
    "tilelang",
    "ccache",
    "sccache",
)
"""Compilers' directories in the user's cache. Everything else there is data, which counts, such as checkpoints."""

_STDLIB_DIRECTORIES = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
_ZIPPED = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
STDLIB = tuple(f"{place}/" for stdlib in _STDLIB_DIRECTORIES for place in (stdlib, stdlib.parent / _ZIPPED))


class InstalledPlace(NamedTuple):
    """A place in an environment: its directory of packages, and the package or module there."""

    site: str
    top: str

    @property
    def package(self) -> str:
        """The name that the package or module is imported by."""
        return self.top.partition(".")[0]


@cache
def find_installed_place(path: str) -> InstalledPlace | None:
    """Return where a file is installed, or ``None`` if it is not installed."""
    parts = path.split("/")
    for position in range(len(parts) - 2, 0, -1):
        if parts[position] in FOREIGN_DIRECTORIES:
            return InstalledPlace("/".join(parts[: position + 1]), parts[position + 1])
    for site in sys.path:
        if site and path.startswith(f"{site}/") and _is_site(site):
            return InstalledPlace(site, path[len(site) + 1 :].partition("/")[0])
    return None


def is_of_stdlib(path: str) -> bool:
    """Return whether a file belongs to the interpreter's library, in which packages may be installed, too."""
    return path.startswith(STDLIB) and find_installed_place(path) is None


def is_users_header(path: Path) -> bool:
    """Return whether a header is the user's own, not one of the system, a toolkit or an installed package."""
    return not str(path).startswith(("/usr/", "/opt/")) and find_installed_place(str(path)) is None


@cache
def _is_site(directory: str) -> bool:
    """Return whether pip has installed into a directory, which may have any name (``pip install --target``)."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(directory))
    except OSError:
        return False


@cache
def list_cache_directories() -> tuple[str, ...]:
    """Return compilers' cache directories, as prefixes of paths."""
    import tempfile

    named = [os.environ[name] for name in _CACHE_VARIABLES if os.environ.get(name)]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    places = [*named, *map(os.path.expanduser, _HOME_CACHES), *(f"{cache}/{name}" for name in _USER_CACHES)]
    # Inductor adds the user's name.
    return (*(f"{os.path.abspath(place)}/" for place in places), f"{tempfile.gettempdir()}/torchinductor_")


def is_of_cache(path: str) -> bool:
    """Return whether a compiler's cache made a file, so that it decides nothing. Settings beside it do."""
    return f"{path}/".startswith(list_cache_directories()) and not path.endswith("/ccache.conf")


@cache
def is_foreign(path: str) -> bool:
    """Return whether a file counts by something else than its content; see the module's table."""
    if is_of_cache(path):
        return True
    if not path.startswith("/") or path.startswith(f"{OUR_PACKAGE}/") or find_installed_place(path) is not None:
        return True
    if path.startswith(STDLIB) or str(Path(path).resolve()).startswith(STDLIB):
        return True
    return is_our_place(path.rpartition("/")[0])


def prepare_origins() -> None:
    """Find the plugins and the compilers' caches now, before any code is observed.

    This imports ``importlib.metadata`` and ``tempfile``, which takes 15 ms, so it is not done at a worker's start. It
    cannot be done later, because the observed code may just be importing these itself.
    """
    _find_our_packages()
    list_cache_directories()


def is_ours(module_name: str) -> bool:
    """Return whether a module is ktuned's or an installed plugin's, and so not the project's, even below its root."""
    return module_name.partition(".")[0] in _find_our_packages()


@cache
def is_our_file(path: str) -> bool:
    """Return whether a file is ktuned's or an installed plugin's, wherever that is imported from."""
    ours = (f"{site}/{package}" for package in _find_our_packages() for site in sys.path if site)
    return any(path.startswith((f"{place}/", f"{place}.py")) for place in ours)


@cache
def is_our_place(directory: str) -> bool:
    """Return whether a directory of ``sys.path`` is a checkout of ktuned or of a plugin, in which nobody installs."""
    if find_installed_place(f"{directory}/x") is not None:
        return False
    return any(os.path.exists(f"{directory}/{package}{end}") for package in _find_our_packages() for end in ("", ".py"))


@cache
def _find_our_packages() -> frozenset[str]:
    from importlib.metadata import entry_points

    points = [*entry_points(group=BACKENDS_GROUP), *entry_points(group="ktuned.strategies")]
    return _OUR_PACKAGES | {point.module.partition(".")[0] for point in points}
