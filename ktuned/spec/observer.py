"""Observer of the Python code that a process runs for one kernel file: each file is read once, digested and compiled.

While a kernel file is loaded, the modules that count by content (:mod:`ktuned.spec.origin`) are compiled from the very
bytes that are digested, never from bytecode that an earlier file left behind. The hook is the source loader's
``get_code``: all ways to a module end there, those of editable installs and of ``spec_from_file_location`` too.

The observation goes on until the next kernel file is begun: functions import, too, when they are called.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import linecache
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from ktuned.ipc import Trust, lexical, stamp
from ktuned.spec import distributions
from ktuned.spec.distributions import is_bare
from ktuned.spec.origin import Installed, installed_in, is_foreign, is_ours, prepare_origins

_get_code = SourceFileLoader.get_code
_get_bytecode = SourcelessFileLoader.get_code


class FreshProcessNeeded(BaseException):
    """A load that this process cannot make, because what it loaded before cannot be dropped.

    It is no ``Exception``, which code may catch: the worker begins again as a fresh process, with the request, or with
    ``rest`` in its place.
    """

    def __init__(self, rest: Any = None) -> None:
        super().__init__()
        self.rest = rest


class ImportEnd(NamedTuple):
    """The line of a kernel file at which its import ended, at a call of ``ktuned.tune``.

    The call ``is_direct`` if the statement there makes it, and no function of the file.
    """

    line: int
    is_direct: bool

    def is_before(self, statement: ast.stmt) -> bool:
        """Return whether a statement of the file has not run, or does nothing but end the import."""
        return (statement.end_lineno or 0) >= self.line if self.is_direct else statement.lineno > self.line


class Observer:
    """The files that one kernel file's code came from, with the digests of the bytes that were compiled.

    ``generation`` counts the kernel files that this process has begun; ``may_restart`` is true in a worker, which can
    begin again as a fresh process; there ``trust`` judges each file before it is used. ``looking_apart`` is entered
    when a file is read that is about to be executed: so whoever opens it again reads its text. ``import_end`` is where
    the kernel file's import ended, if that was not its end.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.may_restart = False
        self.trust: Trust | None = None
        self.kernel_file: Path | None = None
        self.import_end: ImportEnd | None = None
        self._is_installed = False
        self._contents: dict[Path, bytes] = {}
        self._executed: set[Path] = set()
        self._extensions: dict[Path, str] = {}
        self._before: frozenset[str] = frozenset()
        self._path: list[str] = []
        self.root = ""
        self.environ: dict[str, str] = {}
        self._own: tuple[str, ...] = ()
        self.looking_apart: Callable[[], AbstractContextManager[object]] = nullcontext

    def begin(self, kernel_file: Path, root: Path) -> None:
        """Forget the last kernel file, and observe another: its directory is first on ``sys.path`` from now on."""
        self.end()
        prepare_origins()
        self._install()
        self.generation += 1
        self.kernel_file = kernel_file
        self.import_end = None
        self.root = f"{root}/"
        with self.looking_apart():
            self._own = _own_places(kernel_file, root)
        self._before = frozenset(sys.modules)
        self._path, self.environ = list(sys.path), dict(os.environ)
        sys.path.insert(0, str(kernel_file.parent))
        importlib.invalidate_caches()

    def end(self) -> None:
        """Drop all modules that count by content, and restore ``sys.path`` and ``os.environ``."""
        if self.kernel_file is None:
            return
        for name in self._modules():
            del sys.modules[name]
        for path in self._contents:
            linecache.cache.pop(str(path), None)
        sys.path[:] = self._path
        if dict(os.environ) != self.environ:
            os.environ.clear()
            os.environ.update(self.environ)
        self.kernel_file = None
        self._contents = {}
        self._executed = set()

    @property
    def is_stuck(self) -> bool:
        """True if native modules were loaded that have changed since: a process can load each only once."""
        return any(stamp(path) != digest for path, digest in self._extensions.items())

    def counts(self, path: str) -> bool:
        """Return whether a file of code counts by its content."""
        if self.kernel_file is None:
            return False
        # A module that somebody has put among the packages is nobody's, and has no version.
        with self.looking_apart():
            return path.startswith(self._own) or not is_foreign(path) or is_bare(path)

    def is_below_root(self, path: str) -> bool:
        """Return whether a path lies in the project's directory."""
        return bool(self.root) and path.startswith(self.root)

    def read(self, path: Path) -> bytes:
        """Return the bytes of an observed file: those that were compiled, or else read now; they stay the same.

        Raises:
            OSError: it cannot be read.
            Untrusted: another user could have written it.
        """
        if path not in self._contents:
            self.check([path])
            with self.looking_apart():
                self._contents[path] = path.read_bytes()
        return self._contents[path]

    def check(self, paths: Iterable[Path]) -> None:
        """Check that no other user could have written files; installed distributions are trusted as such.

        Raises:
            Untrusted: one could.
        """
        if self.trust is not None:
            with self.looking_apart():
                self.trust.check_files(str(path) for path in paths if installed_in(str(path)) is None)

    def take(self, path: Path, content: bytes) -> bytes:
        """Take in the bytes that are about to be compiled; return those that this observation had read before.

        Raises:
            Untrusted: another user could have written them.
        """
        self.check([path])
        held = self._contents.setdefault(path, content)
        self._executed.add(path)
        # What reads source by the file's name, as Triton's compiler does, gets the same text.
        text = held.decode("utf-8", "replace")
        linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
        return held

    @property
    def imported(self) -> frozenset[str]:
        """The names that import statements of the code that was executed have, each part of a dotted one."""
        return frozenset(name for path in self._executed for name in _imported(path, self._contents[path]))

    @property
    def packages(self) -> frozenset[str]:
        """The directories that code was executed from: imports look there."""
        return frozenset(str(path.parent) for path in self._executed)

    @property
    def extent(self) -> int:
        """A number that changes when more was read or missed."""
        return len(self._contents) + len(sys.modules)

    @property
    def files(self) -> dict[Path, str]:
        """Every file that was read, with the digest of its bytes."""
        self._note_extensions()
        found = {path: hashlib.sha256(content).hexdigest() for path, content in self._contents.items()}
        return {**self._extensions, **found}

    def digest(self, path: Path) -> str | None:
        """Return the digest of the bytes that were read of a file, if they were."""
        content = self._contents.get(path)
        return None if content is None else hashlib.sha256(content).hexdigest()

    def holds(self, kernel_file: Path, digests: Mapping[Path, str]) -> bool:
        """Return whether a kernel file is loaded from the very bytes of ``digests``."""
        if kernel_file != self.kernel_file or kernel_file not in digests:
            return False
        return all(digests.get(path, digest) == digest for path, digest in self.files.items())

    @property
    def executed(self) -> frozenset[Path]:
        """The files of source that were executed, also those that no module of this process is known by."""
        return frozenset(self._executed)

    def modules_by_file(self) -> dict[Path, str]:
        """Return the names of the modules that count by content, by their files."""
        files = {name: getattr(sys.modules[name], "__file__", None) for name in self._modules()}
        return {lexical(Path(file)): name for name, file in files.items() if isinstance(file, str)}

    def installed_imports(self) -> list[Installed]:
        """Return where the installed packages are that import statements of the executed code name."""
        names = [name for name in sorted(self.imported) if name in sys.modules and not is_ours(name)]
        files = [getattr(sys.modules[name], "__file__", None) for name in names]
        places = [installed_in(file) for file in files if isinstance(file, str) and not self.counts(file)]
        return [place for place in places if place is not None]

    def _modules(self) -> list[str]:
        names = [name for name in sys.modules if name not in self._before and not is_ours(name)]
        return [name for name in names if name != "__main__" and self._is_counted(sys.modules[name])]

    def _is_counted(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            return self.counts(file)
        # A package without __init__.py; walking over its path looks for more on the disk each time.
        path = getattr(module, "__path__", ())
        return any(self.counts(f"{place}/") for place in getattr(path, "_path", path))

    def _note_extensions(self) -> None:
        for name in self._modules():
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and file.endswith(tuple(EXTENSION_SUFFIXES)):
                path = lexical(Path(file))
                self._extensions.setdefault(path, stamp(path))

    def _install(self) -> None:
        if self._is_installed:
            return
        self._is_installed = True
        SourceFileLoader.get_code = _observed_code  # type: ignore[method-assign, assignment]
        SourcelessFileLoader.get_code = _observed_bytecode  # type: ignore[method-assign, assignment]


OBSERVER = Observer()
"""The observer of this process: imports are a process's own."""


@lru_cache(maxsize=256)
def _imported(path: Path, content: bytes) -> frozenset[str]:
    try:
        tree = ast.parse(content, str(path))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(part for alias in node.names for part in alias.name.split("."))
            names.update((getattr(node, "module", None) or "").split("."))
    return frozenset(names)


def _observed_code(loader: SourceFileLoader, name: str) -> CodeType | None:
    path = loader.get_filename(name)
    if not OBSERVER.counts(path) or is_ours(name):
        return _get_code(loader, name)
    place = lexical(Path(path))
    with OBSERVER.looking_apart():
        data = loader.get_data(path)
    content = OBSERVER.take(place, data)
    return loader.source_to_code(content, path)


def _observed_bytecode(loader: SourcelessFileLoader, name: str) -> CodeType | None:
    """Take in a module that has no source, such as a compiled one that was handed out."""
    path = loader.get_filename(name)
    if OBSERVER.counts(path) and not is_ours(name):
        OBSERVER.read(lexical(Path(path)))
    return _get_bytecode(loader, name)


def _own_places(kernel_file: Path, root: Path) -> tuple[str, ...]:
    """Return the beginnings of foreign paths that count by content.

    They are the root's, even in a directory of caches, and those of the kernel file's own distribution.
    """
    own = [f"{root}/"] if is_foreign(f"{root}/x") else []
    place = installed_in(str(kernel_file))
    if place is None:
        return tuple(own)
    tops = distributions.siblings(place)
    own += [f"{place.site}/{top}{end}" for top in {place.package, *tops} for end in ("/", ".py")]
    return tuple(own)
