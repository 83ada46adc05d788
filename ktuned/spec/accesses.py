"""Accesses: what the observer's log says of names that can decide a result.

The log (:mod:`ktuned.observer`) holds each name that this process and its children have opened, tested, listed,
executed, mapped or searched, and each variable that C code has read; those that Python reads are noted here, because
Python copies the environment when it starts. Nothing is asked about who did it, and why.

Left out are *kinds of places that cannot decide a result*, because something else stands for them:

====================================  ==================================================================
what the kernel makes (/proc, /sys)   the device and its driver
what the system has installed (/usr)  the toolchain and the interpreter, by their versions and bytes
the interpreter's library, bytecode   the interpreter; the sources that bytecode was made of
installed distributions, and what     their versions, whole; a process imports them once, for whichever
they read when they are imported      kernel comes first
ktuned, its worker's own directories  the way of measuring; what a run makes, it does not depend on
records of adopted functions' calls   the problems, which name them by their content
what compilers keep                   the sources that it was made of, and read when it was
====================================  ==================================================================

The first two are left out by the observer itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import FrameType
from typing import Any

from ktuned.ipc import ABSENT, DIRECTORY, Untrusted, is_way, lexical, stamp, stamp_directory
from ktuned.observer import OFF, Kind, Log, Note
from ktuned.spec.distributions import is_bare
from ktuned.spec.observer import OBSERVER
from ktuned.spec.origin import OUR_PACKAGE, STDLIB, caches, installed_in, is_foreign, is_our_file, is_our_place, is_ours
from ktuned.spec.unobservable import explain_unobservable

_OWN_VARIABLES = ("KTUNED_", "LD_PRELOAD", "LD_AUDIT", "TMPDIR", "TMP", "TEMP", "PYTHON")
"""Beginnings of variables that a worker gets from its daemon, or that the interpreter was started by."""

_WORDS = (
    "LC_",
    "LANG",
    "TERM",
    "COLUMNS",
    "LINES",
    "COLORTERM",
    "NO_COLOR",
    "FORCE_COLOR",
    "GCC_COLORS",
    "DEB_BUILD_OPTIONS",
    "PWD",
    "OLDPWD",
)
"""Those that decide the words and colours of messages, and the shell's directory, which is not the worker's."""

_PREFIXES = (sys.prefix, sys.base_prefix, *caches())

_INTERPRETER = frozenset(
    {
        os.path.realpath(sys.executable),
        os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or ""),
    }
)
"""The interpreter and its library: the toolchain's version is theirs."""

_RECORD = re.compile(r"/calls/[0-9a-f]{16}\.[a-z.]+$")
"""An application's call of an adopted function: the file is named by its content, and a problem names it."""

_OF_DRIVER = ("/tmp/nvidia-mps/", "/run/nvidia", "/var/run/nvidia")
"""Beginnings of the sockets of a driver's own programs: the device stands for them."""

_SYSTEMS = ("/usr/", "/lib/", "/lib32/", "/lib64/", "/bin/", "/sbin/")

_OF_ENVIRON = ("/os.py", "/_collections_abc.py", "<frozen os>", "<frozen _collections_abc>", "/spec/accesses.py")

_FINDING = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "SHLVL", "_"})
"""Those that say where to look: what is found there, or not, is observed itself."""

_MODULE_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)

NO_OBSERVER = "no observer runs below this worker: see `ktuned doctor`"


class Accesses:
    """What was read for the kernel file that is loaded, or since :meth:`begin`.

    ``own`` are directories of ktuned's own. ``is_kept`` while a request is carried out whose kernel file is loaded on
    the way.
    """

    def __init__(self) -> None:
        self.own: tuple[str, ...] = ()
        self.log: Log | None = None
        self.is_kept = False
        self._is_watching = False
        self._epoch = 0
        self._clear()

    def _clear(self) -> None:
        self._files: dict[Path, str] = {}
        self._made: set[str] = set()
        self._tested: set[Path] = set()
        self._variables: dict[str, str | None] = {}
        self._unobserved: dict[str, None] = {}
        self._refused: Untrusted | None = None

    def watch(self) -> None:
        """Observe from now on; what Python alone can see is noted for the life of the process."""
        if self._is_watching:
            return
        self._is_watching = True
        self.log = Log.here()
        sys.modules["ktuned.ipc.stamps"].looking_apart = self.apart  # type: ignore[attr-defined]
        OBSERVER.looking_apart = self.apart
        if "KTUNED_WORKER" in os.environ:
            self.own = (*self.own, os.environ["TMPDIR"])
        self._left_out = (*caches(), *(f"{os.path.abspath(place)}/" for place in self.own), f"{OUR_PACKAGE}/")
        for environment in (os.environ, os.environb):
            environment.__class__ = _RecordingEnviron
        FileFinder._fill_cache = _fill_cache  # type: ignore[attr-defined]
        for loader, step in _LOADING:
            setattr(loader, step, _observe_loading(getattr(loader, step)))

    def begin(self) -> None:
        """Forget what was noted; each name is noted again."""
        self._clear()
        if self._is_watching:
            with self.apart():
                self._note_customization()
                self._note_bare_modules()
            _watch_metadata()
        if self.log is not None:
            for _ in self.log.read():
                pass
            self.log.make_room()
            self._epoch = self.log.begin_epoch()

    def _note_bare_modules(self) -> None:
        """Note the modules that belong to no distribution, and that this process has already: they are read once."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__dict__", {}).get("__file__")
            if "." not in name and isinstance(file, str) and not self.is_left_out(file) and installed_in(file):
                self._files[Path(file)] = stamp(Path(file))

    def _note_customization(self) -> None:
        """Note the modules that an interpreter runs before any other; of a kernel file they are no part."""
        for site in [place for place in sys.path if installed_in(f"{place}/x") is not None]:
            for name in ("sitecustomize.py", "usercustomize.py"):
                path = Path(site, name)
                if path.exists() and not self.is_left_out(str(path)):
                    self._files[path] = stamp(path)

    @property
    def extent(self) -> int:
        """A number that changes when more was reached."""
        self._follow()
        return len(self._files) + len(self._variables) + len(self._unobserved)

    @property
    def files(self) -> Mapping[Path, str]:
        """The files and directories that were reached, with their digests; absent ones with none."""
        return self._reached()

    @property
    def variables(self) -> Mapping[str, str | None]:
        """The variables that were read, with the values that the process was started with."""
        self._follow()
        return self._variables

    @property
    def unobserved(self) -> list[str]:
        """Reasons why not all that decides a result could be observed."""
        self._follow()
        return list(self._unobserved)

    def check(self) -> None:
        """Check that nothing was used that other users could have written.

        Raises:
            Untrusted: something was, or was kept from it.
        """
        self._follow()
        if self._refused is not None:
            raise self._refused

    def hide(self, reason: str) -> None:
        """Note something that cannot be observed."""
        self._unobserved[reason] = None

    def read(self, name: str) -> None:
        """Note that a variable was read."""
        if name not in _FINDING and not name.startswith((*_OWN_VARIABLES, *_WORDS)):
            environment = os.environ if OBSERVER.kernel_file is None else OBSERVER.environ
            self._variables.setdefault(name, environment.get(name))

    def _follow(self) -> None:
        if not self._is_watching:
            return
        if self.log is None:
            self.hide("the observer is switched off" if os.environ.get(OFF) else NO_OBSERVER)
            return
        if self.log.is_full:
            self.hide("more was read than can be noted")
        notes = [note for note in self.log.read() if note.epoch >= self._epoch]
        with self.apart():
            self._take_in(notes)

    def _take_in(self, notes: Iterable[Note]) -> None:
        for note in notes:
            match note.kind:
                case Kind.VARIABLE if _is_portable(note.name) or note.name in os.environ:
                    self.read(note.name)
                case Kind.VARIABLE:
                    # A driver asks for names that are garbage; nobody can set them.
                    pass
                case Kind.HIDDEN:
                    self.hide(note.name)
                case Kind.CONNECTED if note.name.startswith(_OF_DRIVER):
                    pass
                case Kind.CONNECTED:
                    self.hide(f"a connection to another program ({note.name})")
                case Kind.REFUSED:
                    self._refused = Untrusted(
                        f"{note.name} can be written by others, and was not run",
                        hint="have it, and the directories that lead to it, belong to you or root alone",
                    )
                case Kind.WRITTEN:
                    self._made.add(note.name)
                    # It was looked at, and what it held is gone.
                    if Path(note.name) in self._tested:
                        self._files.pop(Path(note.name), None)
                case _:
                    self._reach(note)

    def _reach(self, note: Note) -> None:
        if not _is_utf8(note.name):
            self.hide(f"{note.name!a} is no UTF-8")
            return
        if note.kind in (Kind.EXECUTED, Kind.MAPPED) and note.is_found:
            is_installed = _is_systems(note.name) or installed_in(note.name) is not None
            is_program = note.kind is Kind.EXECUTED
            if reason := explain_unobservable(note.name, is_program=is_program, is_installed=is_installed):
                self.hide(reason)
        path = lexical(Path(note.name))
        if str(path) in self._made or self.is_left_out(str(path)):
            return
        if note.kind is not Kind.OPENED and OBSERVER.digest(path) is not None:
            # It was looked for, and executed; whoever opens it again reads its text.
            return
        if note.kind is Kind.TESTED and path not in self._files:
            self._tested.add(path)
        elif note.kind is not Kind.TESTED:
            self._tested.discard(path)
        known = self._files.get(path)
        if known is not None and not (is_way(known) and note.kind is Kind.LISTED):
            return
        if not note.is_found:
            self._miss(path)
            return
        try:
            mode = os.stat(path).st_mode
        except OSError:
            # A link that leads nowhere; or it is gone, as what was made past the log and removed.
            if os.path.islink(path):
                self._files[path] = ABSENT
            return
        if stat.S_ISDIR(mode):
            self._files[path] = stamp(path) if note.kind is Kind.LISTED else stamp_directory(path)
        elif stat.S_ISREG(mode):
            self._files[path] = stamp(path)
            try:
                OBSERVER.check([path])
            except Untrusted as error:
                self._refused = error
        elif not note.name.startswith("/dev/"):
            self.hide(f"{path} is not a regular file")

    def _miss(self, path: Path) -> None:
        """Note an absent name; where its directory is absent too, that says it for all that would be in there."""
        while not path.parent.exists():
            path = path.parent
        if str(path) in self._made or os.path.lexists(path):
            # It was made since, by the run itself or past the log.
            return
        if _is_module(path) and not _is_wanted(path):
            return
        self._files.setdefault(path, ABSENT)

    def is_left_out(self, path: str) -> bool:
        """Return whether a name is of a kind that cannot decide a result; the module says which, and why."""
        if "/__pycache__" in path or (f"{path}/".startswith(self._left_out) and not OBSERVER.is_below_root(path)):
            return True
        place = installed_in(path)
        if place is not None:
            # Which version is there may be asked without an import.
            return not (is_bare(path) or path.endswith(".dist-info/METADATA")) or is_our_file(path)
        if OBSERVER.is_below_root(path):
            return "/.git" in path or _RECORD.search(path) is not None
        return _is_systems(path) or path in _INTERPRETER or f"{path}/".startswith(STDLIB) or is_our_file(f"{path}/")

    def _reached(self) -> dict[Path, str]:
        """The files and directories that count; a directory in which others were looked for is said by these."""
        self._follow()
        held = {parent for path in self._files for parent in path.parents}
        held |= {parent for place in (*sys.path, *_PREFIXES) for parent in (Path(place), *Path(place).parents)}
        return {path: one for path, one in self._files.items() if one != DIRECTORY or path not in held}

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Note nothing meanwhile: while ktuned itself looks around, or a config is timed."""
        if self.log is None or self.log.is_silent:
            yield
            return
        self.log.silence(True)
        try:
            yield
        finally:
            self.log.silence(False)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Note what is read meanwhile, in the midst of :meth:`apart`."""
        if self.log is None or not self.log.is_silent:
            yield
            return
        self.log.silence(False)
        try:
            yield
        finally:
            self.log.silence(True)


ACCESSES = Accesses()
"""The accesses of this process."""


class _RecordingEnviron(os._Environ):  # type: ignore[type-arg]
    """The environment of a worker, which notes what is read.

    A package that copies all of it, to hand it on, reads none of it; of the project's code each variable counts.
    """

    _copied = (0, 0)

    def __getitem__(self, key: Any) -> Any:
        if OBSERVER.kernel_file is not None and isinstance(key, str | bytes) and _reader() != self._copied:
            frame = _reading_frame()
            with ACCESSES.apart():
                # Which variables packages follow, ktuned's own among them, their backends list.
                is_packages = frame is not None and (
                    installed_in(frame.f_code.co_filename) is not None
                    or is_ours(str(frame.f_globals.get("__name__", "")))
                )
            if not is_packages:
                ACCESSES.read(os.fsdecode(key))
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        frame = _reading_frame()
        is_projects = frame is not None and OBSERVER.counts(frame.f_code.co_filename)
        type(self)._copied = (0, 0) if is_projects else _reader()
        return super().__iter__()


def _reading_frame() -> FrameType | None:
    """Return the innermost frame that is not of ``os.environ`` itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(_OF_ENVIRON):
        frame = frame.f_back
    return frame


def _reader() -> tuple[int, int]:
    frame = _reading_frame()
    return (0, 1) if frame is None else (id(frame), frame.f_lasti)


_LOADING = (
    (SourceFileLoader, "exec_module"),
    (SourcelessFileLoader, "exec_module"),
    (ExtensionFileLoader, "create_module"),
    (ExtensionFileLoader, "exec_module"),
)
"""The steps of an import that run a module's own code."""


def _observe_loading(load: Callable[..., Any]) -> Callable[..., Any]:
    """Have a package import what it wants unnoticed, and each module of the project noted that it imports in turn."""

    @functools.wraps(load)
    def load_observed(loader: Any, module: Any) -> Any:
        with ACCESSES.apart():
            is_counted = OBSERVER.counts(loader.path)
            is_noted = is_counted or not is_foreign(loader.path)
        noting = ACCESSES.heard() if is_counted else contextlib.nullcontext() if is_noted else ACCESSES.apart()
        with noting:
            return load(loader, module)

    return load_observed


class _Each:
    """Names of a directory, as an import looks through them: it asks the disk for each that it wants."""

    def __contains__(self, name: object) -> bool:
        return True


_children: Any = None

_fill_cache_from_listing = FileFinder._fill_cache  # type: ignore[attr-defined]


def _fill_cache(finder: FileFinder) -> None:
    """Have imports ask for names, where these can come and go: a listing would make every name in there count."""
    path = os.path.abspath(finder.path or ".")
    with ACCESSES.apart():
        if OBSERVER.kernel_file is not None and (OBSERVER.counts(f"{path}/") or _is_site(path)):
            finder._path_cache = finder._relaxed_path_cache = _Each()  # type: ignore[attr-defined]
        else:
            _fill_cache_from_listing(finder)


def _is_portable(name: str) -> bool:
    """Return whether a shell can set a variable of this name."""
    return name.isascii() and name.isidentifier()


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_systems(path: str) -> bool:
    """Return whether a name is of the system's package manager, by whatever way it was reached."""
    return f"{path}/".startswith(_SYSTEMS) and not path.startswith("/usr/local/")


def _watch_metadata() -> None:
    global _children
    metadata: Any = sys.modules.get("importlib.metadata")
    if metadata is not None and _children is None:
        _children = metadata.FastPath.children
        metadata.FastPath.children = _list_apart


def _list_apart(place: Any) -> Any:
    """List a directory of packages for the metadata of distributions: no other name in there is asked for."""
    with ACCESSES.apart():
        return list(_children(place))


def _is_site(path: str) -> bool:
    return path in sys.path and installed_in(f"{path}/x") is not None


def _is_module(path: Path) -> bool:
    """Return whether an absent name is a place where an import looks."""
    if OBSERVER.kernel_file is None or not ("." not in path.name or path.name.endswith(_MODULE_SUFFIXES)):
        return False
    return str(path.parent) in sys.path or str(path.parent) in OBSERVER.packages


def _is_wanted(path: Path) -> bool:
    """Return whether the project imports a module by that name, or somebody looks for it in vain.

    Among ktuned's own packages nobody would put one.

    What packages and the standard library import along, the project does not look for.
    """
    stem = path.name.partition(".")[0]
    if is_our_place(str(path.parent)) and not OBSERVER.is_below_root(str(path)):
        return False
    if is_ours(stem) or stem == "org":
        # The standard library's copy and pickle look for Jython's.
        return False
    if stem in OBSERVER.imported:
        return True
    return stem not in sys.stdlib_module_names and stem not in sys.modules and not path.name.startswith("__")
