"""Accesses: the files and variables that a kernel's results can depend on, as the observer's log shows them.

The log (:mod:`ktuned.observer`) holds each name that this process and its children have opened, tested, listed,
executed, mapped or searched, and each variable that C code has read. Variables that Python reads are recorded here,
because Python copies the environment when it starts. It does not matter which code has read a name, or why.

Each load of a kernel file begins an epoch, and so does each compile. ``files``, ``variables`` and ``unobserved`` return
what was read since then; each of them first reads the new entries of the log.

====================================  ==================================================================
what happened to a name               what is recorded
====================================  ==================================================================
a file was opened, executed, mapped   the digest of its bytes
a directory was listed                a digest of the names in it
a directory was on the way to a file  that it exists, unless a recorded file below it implies that
a name was not there                  its absence: the result may differ once it appears
this epoch's code wrote it first      nothing: a run does not depend on its own output
a process could not be observed       the reason; answers then say ``not fully observed``
another user could have written it    :class:`Untrusted`, which :meth:`Accesses.check_trust` raises
====================================  ==================================================================

Files in some *kinds of places are not recorded*, because something else represents them in a digest:

====================================  ==================================================================
place                                 represented by
====================================  ==================================================================
files of Linux itself (/proc, /sys)   the device and its driver
installed by the system (/usr)        the toolchain and the interpreter, by their versions and bytes
the interpreter's library, bytecode   the interpreter; for bytecode, the sources
installed distributions, and files    the distributions' versions: a process imports a distribution
that are read when they are imported  once, for the first kernel that needs it
ktuned, its worker's own directories  the version of measuring; a run does not depend on its own output
records of adopted functions' calls   the problems, which name them by their content
compilers' caches                     the sources, which were read when the cached file was made
====================================  ==================================================================

The observer library itself leaves out the first two.

Imports need care. To find one module, Python's import system lists every directory of ``sys.path``, so that each new
file in one of them would seem to change the kernel. So while a kernel file is observed, imports ask the disk for single
names instead (:func:`_fill_finder_cache`). The imports of installed packages are not recorded (:func:`_wrap_loading`).
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
from contextlib import AbstractContextManager, contextmanager
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

from ktuned.dependencies.code_observer import OBSERVER
from ktuned.dependencies.distributions import is_unowned
from ktuned.dependencies.origin import (
    OUR_PACKAGE,
    STDLIB,
    find_installed_place,
    is_foreign,
    is_our_file,
    is_our_place,
    is_ours,
    list_cache_directories,
)
from ktuned.dependencies.unobservable import explain_unobservable
from ktuned.ipc import ABSENT, DIRECTORY, Untrusted, is_directory_stamp, normalize_path, stamp, stamp_directory
from ktuned.observer import OFF_VARIABLE, Kind, Log, Note

_OWN_VARIABLES = ("KTUNED_", "LD_PRELOAD", "LD_AUDIT", "TMPDIR", "TMP", "TEMP", "PYTHON")
"""Prefixes of variables that the daemon sets for a worker, or that configure the interpreter's start."""

_MESSAGE_VARIABLES = (
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
"""Variables that decide the words and colours of messages, and the shell's directory, which is not the worker's."""

_ENVIRONMENT_PREFIXES = (sys.prefix, sys.base_prefix, *list_cache_directories())

_INTERPRETER = frozenset(
    {
        os.path.realpath(sys.executable),
        os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or ""),
    }
)
"""The interpreter and its library, which the toolchain's version represents."""

_CALL_RECORD = re.compile(r"/calls/[0-9a-f]{16}\.[a-z.]+$")
"""The record of an application's call of an adopted function: it is named by its content, and a problem names it."""

_DRIVER_SOCKETS = ("/tmp/nvidia-mps/", "/run/nvidia", "/var/run/nvidia")
"""Prefixes of sockets of a driver's own programs, which the device represents."""

_SYSTEM_DIRECTORIES = ("/usr/", "/lib/", "/lib32/", "/lib64/", "/bin/", "/sbin/")

_ENVIRON_SOURCES = ("/os.py", "/_collections_abc.py", "<frozen os>", "<frozen _collections_abc>", __file__)
"""Ends of the files in which reading a variable is implemented. Their frames are not the reader's."""

_SEARCH_VARIABLES = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "SHLVL", "_"})
"""Variables that say where to look. The files that are found there, or are absent, are observed themselves."""

_MODULE_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)

NO_OBSERVER = "no observer runs below this worker: see `ktuned doctor`"


class Accesses:
    """The files and variables that were read since :meth:`begin_epoch`, which each load of a kernel file calls.

    Attributes:
        own_directories: directories in which ktuned keeps its own files; nothing there is recorded.
        survives_load: set by a request that loads its kernel file on the way: the load begins no new epoch.
    """

    def __init__(self) -> None:
        self.own_directories: tuple[str, ...] = ()
        self.log: Log | None = None
        self.survives_load = False
        self._is_recording = False
        self._epoch = 0
        self._forget_all()

    def _forget_all(self) -> None:
        self._files: dict[Path, str] = {}
        self._written_paths: set[str] = set()
        self._tested_paths: set[Path] = set()
        self._variables: dict[str, str | None] = {}
        self._unobserved: dict[str, None] = {}
        self._trust_fault: Untrusted | None = None

    def start_recording(self) -> None:
        """Hook into Python's environment and imports, once for the life of this process, and open the log."""
        if self._is_recording:
            return
        self._is_recording = True
        self.log = Log.open_own()
        sys.modules["ktuned.ipc.stamps"].pause_recording = self.pause_recording  # type: ignore[attr-defined]
        OBSERVER.pause_recording = self.pause_recording
        if "KTUNED_WORKER" in os.environ:
            self.own_directories = (*self.own_directories, os.environ["TMPDIR"])
        self._left_out_directories = (
            *list_cache_directories(),
            *(f"{os.path.abspath(place)}/" for place in self.own_directories),
            f"{OUR_PACKAGE}/",
        )
        for environment in (os.environ, os.environb):
            environment.__class__ = _RecordingEnviron
        FileFinder._fill_cache = _fill_finder_cache  # type: ignore[attr-defined]
        for loader, step in _LOADING_STEPS:
            setattr(loader, step, _wrap_loading(getattr(loader, step)))

    def begin_epoch(self) -> None:
        """Forget all accesses, and record each name again that is read from now on."""
        self._forget_all()
        if self._is_recording:
            with self.pause_recording():
                self._record_customization()
                self._record_bare_modules()
            _hide_metadata_listings()
        if self.log is not None:
            for _ in self.log.read_notes():
                pass
            self.log.empty_if_half_full()
            self._epoch = self.log.begin_epoch()

    def _record_bare_modules(self) -> None:
        """Record the modules of this process that no distribution owns: they are not read again in this epoch."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__dict__", {}).get("__file__")
            if "." not in name and isinstance(file, str) and not self.is_left_out(file) and find_installed_place(file):
                self._files[Path(file)] = stamp(Path(file))

    def _record_customization(self) -> None:
        """Record the modules that the interpreter ran at its start, before any kernel file."""
        for site in [place for place in sys.path if find_installed_place(f"{place}/x") is not None]:
            for name in ("sitecustomize.py", "usercustomize.py"):
                path = Path(site, name)
                if path.exists() and not self.is_left_out(str(path)):
                    self._files[path] = stamp(path)

    @property
    def extent(self) -> int:
        """A number that grows whenever a new name is recorded."""
        self._read_log()
        return len(self._files) + len(self._variables) + len(self._unobserved)

    @property
    def files(self) -> Mapping[Path, str]:
        """The recorded files and directories with their digests, which are empty for absent ones."""
        self._read_log()
        # Leave out a directory on the way to a recorded file, or to installed packages: it surely exists.
        passed = {parent for path in self._files for parent in path.parents}
        for place in map(Path, (*sys.path, *_ENVIRONMENT_PREFIXES)):
            passed |= {place, *place.parents}
        return {path: digest for path, digest in self._files.items() if digest != DIRECTORY or path not in passed}

    @property
    def variables(self) -> Mapping[str, str | None]:
        """The variables that were read, with their values before the kernel file changed any; None if unset."""
        self._read_log()
        return self._variables

    @property
    def unobserved(self) -> list[str]:
        """The reasons why not everything that decides a result could be observed."""
        self._read_log()
        return list(self._unobserved)

    def check_trust(self) -> None:
        """Check that another user could have written none of the files that were used, or that were kept from running.

        Raises:
            Untrusted: another user could have written one; the message says which.
        """
        self._read_log()
        if self._trust_fault is not None:
            raise self._trust_fault

    def record_unobserved(self, reason: str) -> None:
        """Record a reason why not everything could be observed."""
        self._unobserved[reason] = None

    def record_variable(self, name: str) -> None:
        """Record that a variable was read."""
        if name not in _SEARCH_VARIABLES and not name.startswith((*_OWN_VARIABLES, *_MESSAGE_VARIABLES)):
            environment = os.environ if OBSERVER.kernel_file is None else OBSERVER.environ
            self._variables.setdefault(name, environment.get(name))

    def _read_log(self) -> None:
        if not self._is_recording:
            return
        if self.log is None:
            self.record_unobserved("the observer is switched off" if os.environ.get(OFF_VARIABLE) else NO_OBSERVER)
            return
        if self.log.is_full:
            self.record_unobserved("the observer's log is full")
        notes = [note for note in self.log.read_notes() if note.epoch >= self._epoch]
        with self.pause_recording():
            self._record_notes(notes)

    def _record_notes(self, notes: Iterable[Note]) -> None:
        for note in notes:
            match note.kind:
                case Kind.VARIABLE if _is_portable(note.name) or note.name in os.environ:
                    self.record_variable(note.name)
                case Kind.VARIABLE:
                    # Ignore it: drivers ask for names that nobody can set.
                    pass
                case Kind.HIDDEN:
                    self.record_unobserved(note.name)
                case Kind.CONNECTED if note.name.startswith(_DRIVER_SOCKETS):
                    pass
                case Kind.CONNECTED:
                    self.record_unobserved(f"a connection to another program ({note.name})")
                case Kind.REFUSED:
                    self._trust_fault = Untrusted(
                        f"{note.name} can be written by others, and was not run",
                        hint="have it, and the directories that lead to it, belong to you or root alone",
                    )
                case Kind.WRITTEN:
                    self._written_paths.add(note.name)
                    # The name was only tested before this write. The run does not depend on its earlier content.
                    if Path(note.name) in self._tested_paths:
                        self._files.pop(Path(note.name), None)
                case _:
                    self._record_path(note)

    def _record_path(self, note: Note) -> None:
        if not _is_utf8(note.name):
            self.record_unobserved(f"{note.name!a} is no UTF-8")
            return
        # Code that does not read through libc leaves no notes. Record that, wherever the code lies.
        if note.kind in (Kind.EXECUTED, Kind.MAPPED) and note.is_found:
            is_installed = _is_of_system(note.name) or find_installed_place(note.name) is not None
            is_program = note.kind is Kind.EXECUTED
            if reason := explain_unobservable(note.name, is_program=is_program, is_installed=is_installed):
                self.record_unobserved(reason)
        path = normalize_path(Path(note.name))
        if str(path) in self._written_paths or self.is_left_out(str(path)):
            return
        # Executed Python code counts by its syntax tree (CodeObserver), unless it is opened again to read its text.
        if note.kind is not Kind.OPENED and OBSERVER.find_digest(path) is not None:
            return
        if note.kind is Kind.TESTED and path not in self._files:
            self._tested_paths.add(path)
        elif note.kind is not Kind.TESTED:
            self._tested_paths.discard(path)
        # The first observation counts. A later listing only adds the names to a directory that is known to exist.
        known = self._files.get(path)
        if known is not None and not (is_directory_stamp(known) and note.kind is Kind.LISTED):
            return
        if not note.is_found:
            self._record_absent(path)
            return
        try:
            mode = os.stat(path).st_mode
        except OSError:
            # A link that leads nowhere counts as absent. Anything else was made unobserved, and removed.
            if os.path.islink(path):
                self._files[path] = ABSENT
            return
        if stat.S_ISDIR(mode):
            self._files[path] = stamp(path) if note.kind is Kind.LISTED else stamp_directory(path)
        elif stat.S_ISREG(mode):
            self._files[path] = stamp(path)
            try:
                OBSERVER.check_trust([path])
            except Untrusted as error:
                self._trust_fault = error
        elif not note.name.startswith("/dev/"):
            self.record_unobserved(f"{path} is not a regular file")

    def _record_absent(self, path: Path) -> None:
        """Record that a name is absent; if its directory is absent, too, record the directory instead."""
        while not path.parent.exists():
            path = path.parent
        if str(path) in self._written_paths or os.path.lexists(path):
            # It exists by now: the run itself has made it, or an unobserved program.
            return
        if _is_module_place(path) and not _counts_when_absent(path):
            return
        self._files.setdefault(path, ABSENT)

    def is_left_out(self, path: str) -> bool:
        """Return whether a path is of a kind that is not recorded; the module's table lists the kinds."""
        if "/__pycache__" in path or (
            f"{path}/".startswith(self._left_out_directories) and not OBSERVER.is_below_root(path)
        ):
            return True
        place = find_installed_place(path)
        if place is not None:
            # A package's metadata counts, because code may look at a version without importing the package.
            return not (is_unowned(path) or path.endswith(".dist-info/METADATA")) or is_our_file(path)
        if OBSERVER.is_below_root(path):
            return "/.git" in path or _CALL_RECORD.search(path) is not None
        return _is_of_system(path) or path in _INTERPRETER or f"{path}/".startswith(STDLIB) or is_our_file(f"{path}/")

    def pause_recording(self) -> AbstractContextManager[None]:
        """Record nothing within the context, in any process: ktuned itself reads files, or a config is timed."""
        return self._switch_recording(is_silent=True)

    def resume_recording(self) -> AbstractContextManager[None]:
        """Record within the context, although it is inside of :meth:`pause_recording`."""
        return self._switch_recording(is_silent=False)

    @contextmanager
    def _switch_recording(self, *, is_silent: bool) -> Iterator[None]:
        if self.log is None or self.log.is_silent is is_silent:
            yield
            return
        self.log.set_silent(is_silent)
        try:
            yield
        finally:
            self.log.set_silent(not is_silent)


ACCESSES = Accesses()
"""The accesses of this process."""


class _RecordingEnviron(os._Environ):  # type: ignore[type-arg]
    """The environment of a worker, which records the variables that the project's code reads.

    If a package copies the whole environment to pass it on, none of it counts as read. If the project's own code
    iterates over the environment, each variable counts.
    """

    _copied = (0, 0)
    """Identity of the frame in which a package iterates over the environment, and its instruction."""

    def __getitem__(self, key: Any) -> Any:
        if OBSERVER.kernel_file is not None and isinstance(key, str | bytes) and _identify_reader() != self._copied:
            frame = _find_reading_frame()
            with ACCESSES.pause_recording():
                # Variables that installed packages read are listed by their backends.
                is_packages = frame is not None and (
                    find_installed_place(frame.f_code.co_filename) is not None
                    or is_ours(str(frame.f_globals.get("__name__", "")))
                )
            if not is_packages:
                ACCESSES.record_variable(os.fsdecode(key))
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        frame = _find_reading_frame()
        is_projects = frame is not None and OBSERVER.counts_by_content(frame.f_code.co_filename)
        type(self)._copied = (0, 0) if is_projects else _identify_reader()
        return super().__iter__()


def _find_reading_frame() -> FrameType | None:
    """Return the innermost frame outside of the implementation of ``os.environ``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(_ENVIRON_SOURCES):
        frame = frame.f_back
    return frame


def _identify_reader() -> tuple[int, int]:
    """Return the identity of the frame that reads the environment, and the offset of its current instruction."""
    frame = _find_reading_frame()
    return (0, 1) if frame is None else (id(frame), frame.f_lasti)


_LOADING_STEPS = (
    (SourceFileLoader, "exec_module"),
    (SourcelessFileLoader, "exec_module"),
    (ExtensionFileLoader, "create_module"),
    (ExtensionFileLoader, "exec_module"),
)
"""The steps of an import that run a module's own code."""


def _wrap_loading(load: Callable[..., Any]) -> Callable[..., Any]:
    """Record the reads of the project's modules while they are imported, but not those of installed packages.

    Each import decides anew, because a package may import a module of the project, whose reads count again.
    """

    @functools.wraps(load)
    def load_observed(loader: Any, module: Any) -> Any:
        with ACCESSES.pause_recording():
            is_counted = OBSERVER.counts_by_content(loader.path)
            is_installed = not is_counted and is_foreign(loader.path)
        recording: AbstractContextManager[None] = contextlib.nullcontext()
        if is_counted:
            recording = ACCESSES.resume_recording()
        elif is_installed:
            recording = ACCESSES.pause_recording()
        with recording:
            return load(loader, module)

    return load_observed


class _EveryName:
    """A listing of a directory that seems to contain every name, so that imports ask the disk for single names."""

    def __contains__(self, name: object) -> bool:
        return True


_list_children: Any = None

_fill_cache_from_listing = FileFinder._fill_cache  # type: ignore[attr-defined]


def _fill_finder_cache(finder: FileFinder) -> None:
    """Fill an import's cache of a directory's names; if names may come and go there, with :class:`_EveryName`."""
    path = os.path.abspath(finder.path or ".")
    with ACCESSES.pause_recording():
        if OBSERVER.kernel_file is not None and (OBSERVER.counts_by_content(f"{path}/") or _is_site(path)):
            finder._path_cache = finder._relaxed_path_cache = _EveryName()  # type: ignore[attr-defined]
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


def _is_of_system(path: str) -> bool:
    """Return whether a path belongs to the system's package manager."""
    return f"{path}/".startswith(_SYSTEM_DIRECTORIES) and not path.startswith("/usr/local/")


def _hide_metadata_listings() -> None:
    global _list_children
    metadata: Any = sys.modules.get("importlib.metadata")
    if metadata is not None and _list_children is None:
        _list_children = metadata.FastPath.children
        metadata.FastPath.children = _list_unrecorded


def _list_unrecorded(place: Any) -> Any:
    """List a directory of packages without recording it, because ``importlib.metadata`` only picks names from it."""
    with ACCESSES.pause_recording():
        return list(_list_children(place))


def _is_site(path: str) -> bool:
    return path in sys.path and find_installed_place(f"{path}/x") is not None


def _is_module_place(path: Path) -> bool:
    """Return whether an absent path is one where an import would look for a module."""
    if OBSERVER.kernel_file is None or not ("." not in path.name or path.name.endswith(_MODULE_SUFFIXES)):
        return False
    return str(path.parent) in sys.path or str(path.parent) in OBSERVER.code_directories


def _counts_when_absent(path: Path) -> bool:
    """Return whether a module that appears later at an absent path could change what the project imports."""
    stem = path.name.partition(".")[0]
    # Nobody puts a module among ktuned's own packages.
    if is_our_place(str(path.parent)) and not OBSERVER.is_below_root(str(path)):
        return False
    # The standard library's copy and pickle look for Jython's `org`.
    if is_ours(stem) or stem == "org":
        return False
    if stem in OBSERVER.imported_names:
        return True
    # Installed packages look for optional modules. This counts if the module was not found.
    return stem not in sys.stdlib_module_names and stem not in sys.modules and not path.name.startswith("__")
