"""The Python code that a process runs for one kernel file: each file is read once, and these bytes are compiled.

A digest must be of the code that ran. So the modules that count by content (:mod:`ktuned.dependencies.origin`) are
compiled from the same bytes that are digested: never from bytecode of an earlier file, and never from a second read,
before which the file may have been saved. The hook is the source loader's ``get_code``, in which all imports end, also
those of editable installs and of ``spec_from_file_location``.

One process serves kernel files one after the other. :meth:`CodeObserver.observe_kernel_file` drops the modules of the
last file, and observes the next until that is dropped, too, because functions may import when they are called. A
process cannot drop native modules. If one of them has changed on the disk, the worker must start again as a fresh
process (:class:`FreshProcessNeeded`).
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

from ktuned.dependencies import distributions
from ktuned.dependencies.distributions import is_unowned
from ktuned.dependencies.origin import InstalledPlace, find_installed_place, is_foreign, is_ours, prepare_origins
from ktuned.ipc import Trust, normalize_path, read_regular_file, stamp, stamps_agree

_get_code = SourceFileLoader.get_code
_get_bytecode = SourcelessFileLoader.get_code


class FreshProcessNeeded(BaseException):
    """This process cannot load a kernel file as a fresh one would, because it cannot drop what it loaded before.

    The worker starts again as a fresh process, with the same request, or with ``rest`` instead. The ``reason`` is for
    the log. This is no ``Exception``, because the kernel file's code may catch those.
    """

    def __init__(self, reason: str, rest: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rest = rest


class ImportEnd(NamedTuple):
    """The line of a kernel file at which its import ended, at a call of ``ktuned.tune``.

    ``is_direct`` says that the statement on that line makes the call, and not a function of the file.
    """

    line: int
    is_direct: bool

    def is_before(self, statement: ast.stmt) -> bool:
        """Return whether a statement of the file has not run, or only ended the import."""
        return (statement.end_lineno or 0) >= self.line if self.is_direct else statement.lineno > self.line


class CodeObserver:
    """The files that one kernel file's code came from, with the digests of the bytes that were compiled.

    Attributes:
        generation: number of kernel files that this process has observed.
        may_restart: true in a worker, which can start again as a fresh process.
        trust: judges each file before it is used; None in applications.
        import_end: where the kernel file's import ended, if that was before its last line.
        pause_recording: entered while a file is read to be executed. So if the file is among the accesses, other code
            has read its text.
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
        self._modules_before: frozenset[str] = frozenset()
        self._path_before: list[str] = []
        self.root = ""
        self.environ: dict[str, str] = {}
        self._own_places: tuple[str, ...] = ()
        self.pause_recording: Callable[[], AbstractContextManager[object]] = nullcontext

    def observe_kernel_file(self, kernel_file: Path, root: Path) -> None:
        """Forget the last kernel file, observe this one, and put its directory first on ``sys.path``."""
        self.forget_kernel_file()
        prepare_origins()
        self._install_hooks()
        self.generation += 1
        self.kernel_file = kernel_file
        self.import_end = None
        self.root = f"{root}/"
        with self.pause_recording():
            self._own_places = _find_own_places(kernel_file, root)
        self._modules_before = frozenset(sys.modules)
        self._path_before, self.environ = list(sys.path), dict(os.environ)
        sys.path.insert(0, str(kernel_file.parent))
        importlib.invalidate_caches()

    def forget_kernel_file(self) -> None:
        """Drop all modules that count by content, and restore ``sys.path`` and ``os.environ``."""
        if self.kernel_file is None:
            return
        for name in self._list_counted_modules():
            del sys.modules[name]
        for path in self._contents:
            linecache.cache.pop(str(path), None)
        sys.path[:] = self._path_before
        if dict(os.environ) != self.environ:
            os.environ.clear()
            os.environ.update(self.environ)
        self.kernel_file = None
        self._contents = {}
        self._executed = set()

    @property
    def has_stale_extensions(self) -> bool:
        """True if a native module has changed since this process loaded it. It cannot be loaded again."""
        return any(stamp(path) != digest for path, digest in self._extensions.items())

    def counts_by_content(self, path: str) -> bool:
        """Return whether a file of code counts by its content."""
        if self.kernel_file is None:
            return False
        # A module that was put among the packages by hand belongs to no distribution, so no version covers it.
        with self.pause_recording():
            return path.startswith(self._own_places) or not is_foreign(path) or is_unowned(path)

    def is_below_root(self, path: str) -> bool:
        """Return whether a path lies in the project's directory."""
        return bool(self.root) and path.startswith(self.root)

    def read_content(self, path: Path) -> bytes:
        """Return the bytes of an observed file: those that were compiled, or else read now. They never change later.

        Raises:
            OSError: it cannot be read.
            Untrusted: another user could have written it.
        """
        if path not in self._contents:
            self.check_trust([path])
            with self.pause_recording():
                self._contents[path] = read_regular_file(path)
        return self._contents[path]

    def check_trust(self, paths: Iterable[Path]) -> None:
        """Check that no other user could have written these files; installed distributions are trusted.

        Raises:
            Untrusted: one could.
        """
        if self.trust is not None:
            with self.pause_recording():
                self.trust.check_files(str(path) for path in paths if find_installed_place(str(path)) is None)

    def record_execution(self, path: Path, content: bytes) -> bytes:
        """Record that a file's content is about to be compiled; return the content to compile.

        If the file was read before, the earlier content is returned: one observation sees one version of each file.

        Raises:
            Untrusted: another user could have written them.
        """
        self.check_trust([path])
        held = self._contents.setdefault(path, content)
        self._executed.add(path)
        # Code that reads source by the file's name, as Triton's compiler does, gets the same text.
        text = held.decode("utf-8", "replace")
        linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
        return held

    @property
    def imported_names(self) -> frozenset[str]:
        """The names in import statements of the executed code; of a dotted name, each part."""
        return frozenset(name for path in self._executed for name in _find_imported_names(path, self._contents[path]))

    @property
    def extent(self) -> int:
        """A number that grows whenever a file was read or a module imported."""
        return len(self._contents) + len(sys.modules)

    @property
    def files(self) -> dict[Path, str]:
        """Every file that was read, with the digest of its bytes."""
        self._note_extensions()
        found = {path: hashlib.sha256(content).hexdigest() for path, content in self._contents.items()}
        return {**self._extensions, **found}

    def find_digest(self, path: Path) -> str | None:
        """Return the digest of the bytes that were read of a file, or None if it was not read."""
        content = self._contents.get(path)
        return None if content is None else hashlib.sha256(content).hexdigest()

    def has_loaded(self, kernel_file: Path, digests: Mapping[Path, str]) -> bool:
        """Return whether a kernel file is loaded now, and all its code has the ``digests``."""
        if kernel_file != self.kernel_file or kernel_file not in digests:
            return False
        return all(stamps_agree(digests.get(path, digest), digest) for path, digest in self.files.items())

    def agrees_with(self, path: Path, digest: str) -> bool:
        """Return whether the bytes that were read of a file, if any were, are those of a stamp."""
        read = self.find_digest(path)
        return read is None or stamps_agree(digest, read)

    @property
    def executed_files(self) -> frozenset[Path]:
        """The source files that were executed, also those of modules that have been dropped since."""
        return frozenset(self._executed)

    def map_files_to_modules(self) -> dict[Path, str]:
        """Return the names of the modules that count by content, by their files."""
        files = {name: getattr(sys.modules[name], "__file__", None) for name in self._list_counted_modules()}
        return {normalize_path(Path(file)): name for name, file in files.items() if isinstance(file, str)}

    def find_installed_imports(self) -> list[InstalledPlace]:
        """Return the places of the installed packages that import statements of the executed code name."""
        names = [name for name in sorted(self.imported_names) if name in sys.modules and not is_ours(name)]
        files = [getattr(sys.modules[name], "__file__", None) for name in names]
        places = [
            find_installed_place(file) for file in files if isinstance(file, str) and not self.counts_by_content(file)
        ]
        return [place for place in places if place is not None]

    def _list_counted_modules(self) -> list[str]:
        names = [name for name in sys.modules if name not in self._modules_before and not is_ours(name)]
        return [name for name in names if name != "__main__" and self._is_counted(sys.modules[name])]

    def _is_counted(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            return self.counts_by_content(file)
        # A package without __init__.py. Iterating over its public __path__ would look on the disk each time.
        path = getattr(module, "__path__", ())
        return any(self.counts_by_content(f"{place}/") for place in getattr(path, "_path", path))

    def _note_extensions(self) -> None:
        for name in self._list_counted_modules():
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and file.endswith(tuple(EXTENSION_SUFFIXES)):
                path = normalize_path(Path(file))
                self._extensions.setdefault(path, stamp(path))

    def _install_hooks(self) -> None:
        if self._is_installed:
            return
        self._is_installed = True
        SourceFileLoader.get_code = _get_observed_code  # type: ignore[method-assign, assignment]
        SourcelessFileLoader.get_code = _get_observed_bytecode  # type: ignore[method-assign, assignment]


OBSERVER = CodeObserver()
"""The observer of this process. There is one, because imports concern the whole process."""


@lru_cache(maxsize=256)
def _find_imported_names(path: Path, content: bytes) -> frozenset[str]:
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


def _get_observed_code(loader: SourceFileLoader, name: str) -> CodeType | None:
    path = loader.get_filename(name)
    if not OBSERVER.counts_by_content(path) or is_ours(name):
        return _get_code(loader, name)
    place = normalize_path(Path(path))
    with OBSERVER.pause_recording():
        data = loader.get_data(path)
    content = OBSERVER.record_execution(place, data)
    return loader.source_to_code(content, path)


def _get_observed_bytecode(loader: SourcelessFileLoader, name: str) -> CodeType | None:
    """Read a module that is distributed as bytecode alone; it counts by its bytes."""
    path = loader.get_filename(name)
    if OBSERVER.counts_by_content(path) and not is_ours(name):
        OBSERVER.read_content(normalize_path(Path(path)))
    return _get_bytecode(loader, name)


def _find_own_places(kernel_file: Path, root: Path) -> tuple[str, ...]:
    """Return prefixes of paths that count by content, although other paths of their kind do not.

    They are the root's, even if it lies in a directory of caches, and those of the kernel file's own distribution.
    """
    own = [f"{root}/"] if is_foreign(f"{root}/x") else []
    place = find_installed_place(str(kernel_file))
    if place is None:
        return tuple(own)
    tops = distributions.find_siblings(place)
    own += [f"{place.site}/{top}{end}" for top in {place.package, *tops} for end in ("/", ".py")]
    return tuple(own)
