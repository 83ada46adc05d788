"""From a kernel file to its kernels, and what is wrong with it. Runs in workers only: it executes user code."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from ktuned.backends import ENTRY_POINT_GROUP as BACKENDS_GROUP
from ktuned.ipc import lexical
from ktuned.model import KernelFileError, Record, listed, record
from ktuned.spec.declaration import Collector, Kernel, collecting
from ktuned.spec.values import one_line

FOREIGN_DIRECTORIES = frozenset({"site-packages", "dist-packages"})
"""Installed code: not the project's, even when the environment lies inside the project."""

OUR_PACKAGE = Path(__file__).resolve().parent.parent
"""ktuned itself, which is not the project's code either, also when the project is a checkout of ktuned."""


_DISTRIBUTIONS = {
    "cutlass": "nvidia-cutlass-dsl",
    "numpy": "numpy",
    "torch": "torch",
    "triton": "triton",
    "tvm_ffi": "apache-tvm-ffi",
}
"""The distributions of what kernel files import most, by their packages."""

_KERNEL_MODULE = re.compile(r"_ktuned_[0-9a-f]{8}_")


@record
class Loaded(Record):
    """The kernels that one kernel file declares, and its errors.

    ``files`` are the project's files that had a part in it, also when it failed: a change of one may fix it.
    """

    path: Path
    kernels: tuple[Kernel, ...]
    errors: tuple[KernelFileError, ...]
    files: tuple[Path, ...]


def load_file(path: Path, root: Path, backends: Collection[str] | None = None) -> Loaded:
    """Import a kernel file afresh, with its directory first on ``sys.path`` meanwhile, writing no bytecode.

    A kernel that is declared wrongly is an error of its own and the file's others go on; a file that cannot be
    imported has no kernels. Where ``backends`` is given, a kernel for another backend is an error.
    """
    path, root = lexical(path), root.resolve()
    with collecting(path) as collector, importing_from(path.parent):
        try:
            _execute(path)
        except BaseException as error:
            collector.kernels.clear()
            collector.errors.append(_import_error(error, path, root))
    if backends is not None:
        _refuse_unknown_backends(collector, backends)
    files = {path, *(Path(error.path) for error in collector.errors if error.path)}
    files |= set(filter(None, _local_modules(root).values()))
    return Loaded(path, tuple(collector.kernels), tuple(collector.errors), tuple(sorted(files)))


def forget_modules(root: Path) -> None:
    """Drop the project's modules from ``sys.modules``, so that the next load sees their new code."""
    for name in _local_modules(root.resolve()):
        del sys.modules[name]


def is_local(path: Path, root: Path) -> bool:
    """Return whether a file is the project's own: below ``root`` and not installed there."""
    if not path.is_relative_to(root) or path.is_relative_to(OUR_PACKAGE) or FOREIGN_DIRECTORIES & set(path.parts):
        return False
    prefix = Path(sys.prefix)
    # The interpreter's own files may lie below the root (.venv); a root below the prefix is not one of them.
    return not (prefix.is_relative_to(root) and path.is_relative_to(prefix))


def is_ours(module_name: str) -> bool:
    """Return whether a module is of ktuned or an installed plugin: never the project's, even below its root."""
    return module_name.partition(".")[0] in _our_packages()


def kernel_module(path: Path) -> ModuleType:
    """Return a kernel file's module, as this process loaded it last; load it if it never did.

    Raises:
        KernelFileError: it cannot be imported.
    """
    path = lexical(path)
    name = _module_name(path)
    if name not in sys.modules:
        loaded = load_file(path, path.parent)
        if name not in sys.modules:
            raise loaded.errors[0]
    return sys.modules[name]


def is_kernel_module(name: str) -> bool:
    """Return whether a module's name is one that a kernel file gets when it is loaded."""
    return _KERNEL_MODULE.match(name) is not None


def module_file(module: ModuleType) -> Path | None:
    """Return the path of a module's source, or ``None`` for one without."""
    file = getattr(module, "__file__", None)
    return lexical(Path(file)) if isinstance(file, str) else None


def _execute(path: Path) -> None:
    if path.exists() and not path.is_file():
        # A pipe would be waited at, and a device has no end.
        raise KernelFileError(f"{path} is not a regular file", path=str(path), hint="put a Python file in its place")
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    name = _module_name(path)
    module = ModuleType(name)
    module.__file__ = str(path)
    # Dataclasses and compilers look their module up by its name, also long after the import.
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    except BaseException:
        sys.modules.pop(name, None)
        raise


def _module_name(path: Path) -> str:
    # Two files of one name in two directories must not become one module.
    return f"_ktuned_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"


@contextmanager
def importing_from(directory: Path) -> Iterator[None]:
    """Have a directory first on ``sys.path``, and write no bytecode."""
    writes_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_bytecode
        if str(directory) in sys.path:
            sys.path.remove(str(directory))


def _import_error(error: BaseException, path: Path, root: Path) -> KernelFileError:
    if isinstance(error, KernelFileError):
        return error
    place, line, words = path, 0, one_line(error)
    if isinstance(error, SyntaxError) and error.filename:
        place, line, words = Path(error.filename), error.lineno or 0, one_line(error.msg)
    else:
        for frame, number in traceback.walk_tb(error.__traceback__):
            file = Path(frame.f_code.co_filename)
            if file == path or (is_local(file, root) and not is_ours(frame.f_globals.get("__name__", ""))):
                place, line = file, number
    said, hint = ": ".join(filter(None, (type(error).__name__, words))), ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if distribution := _distribution(package):
            said, hint = f"{package} is not installed: {words}", f"pip install {distribution} into {sys.executable}"
        else:
            hint = f"install it into {sys.executable}, or mend the import"
    return KernelFileError(f"{place}:{line}: {said}", path=str(place), line=line, hint=hint)


def _distribution(package: str) -> str:
    """Return what pip installs a package of this field by; nothing for others, whose names may differ."""
    if package.startswith("ktuned_"):
        return f"'ktuned[{package.removeprefix('ktuned_').replace('_', '-')}]'"
    return _DISTRIBUTIONS.get(package, "")


def _refuse_unknown_backends(collector: Collector, backends: Collection[str]) -> None:
    for kernel in [kernel for kernel in collector.kernels if kernel.backend not in backends]:
        known = listed(sorted(backends), near=kernel.backend)
        collector.kernels.remove(kernel)
        collector.errors.append(
            kernel.site.error(
                f"there is no backend {kernel.backend!r} {known}",
                hint="install its plugin into this interpreter",
            )
        )


def _local_modules(root: Path) -> dict[str, Path | None]:
    """Return the project's modules with their files.

    A package without ``__init__.py`` has none; one that is kept holds on to its old modules.
    """
    found: dict[str, Path | None] = {}
    below = f"{root}{os.sep}"
    for name, module in list(sys.modules.items()):
        # Resolving the paths of torch's thousands of modules would take most of a second.
        file = getattr(module, "__file__", None)
        if file is None:
            if any(str(place).startswith(below) for place in _places(module)) and not is_ours(name):
                found[name] = None
        elif isinstance(file, str) and file.startswith(below) and name != "__main__" and not is_ours(name):
            path = Path(file)
            if is_local(path, root):
                found[name] = path
    return found


def _places(module: ModuleType) -> Iterable[object]:
    """Return the directories of a package; walking over a namespace's own path looks for more on the disk each time."""
    path = getattr(module, "__path__", ())
    return getattr(path, "_path", path)


@cache
def _our_packages() -> frozenset[str]:
    points = [*entry_points(group=BACKENDS_GROUP), *entry_points(group="ktuned.strategies")]
    return frozenset({"ktuned", "ktuned_client", *(point.module.partition(".")[0] for point in points)})
