"""Accesses: the files and variables that a kernel's results can depend on, as the observer's log shows them.

The log (:mod:`ktuned.observer`) holds each name that this process and its children have opened, tested, listed,
executed, mapped or searched, and each variable that C code has read. Variables that Python reads are recorded here,
because Python copies the environment when it starts.

**The rule: each name counts by what was there when it was read, whatever the name is.** Nothing is guessed from names.
What turns out to be noise is found afterwards, by comparing (:mod:`ktuned.scheduling.repetition`).

====================================  ==================================================================
what happened to a name               what is recorded
====================================  ==================================================================
a file was opened, executed, mapped   the digest of its bytes
a file was only tested                that, with its permissions, its attributes and its link; its times,
                                      if the project's code mentions times
a directory was listed                a digest of the names in it, with their kinds
a directory was on the way to a file  that it exists, unless a recorded file below it implies that
a name was not there, or is no file   its absence: the result may differ once it appears
this epoch's code made it             nothing, if no earlier byte of it could have been read
this epoch's code renamed a file      the reason, unless that file was made by it, too
a process could not be observed       the reason; answers then say ``not fully observed``
another user could have written it    :class:`Untrusted`, which :meth:`Accesses.check_trust` raises
a program other than a compiler ran   all variables, because it may read them without ``getenv``
====================================  ==================================================================

Some files and variables have an *owner*. What the owner's own code reads of them is represented by the owner's version:

====================================  ==================================================================
owner                                 owns
====================================  ==================================================================
ktuned, its version of measuring      its packages and plugins, its directories, the records of calls in
                                      them, and the variables that it sets for workers
Linux and a device's driver           ``/proc``, ``/sys``, ``/dev``, and a driver's sockets
the interpreter                       its library and its programs
the system's packages                 ``/usr``, except for what this process itself opens or tests
an installed distribution             its files, except for those that this process itself opens; what a
                                      distribution reads while it is imported is its own reading
compilers                             their caches, whose files were made of sources that count; compilers and
                                      installed libraries: variables by which they search and word messages
====================================  ==================================================================

Each load of a kernel file begins an epoch, and so does each compile. ``files``, ``variables`` and ``unobserved`` return
what was read since then; each of them first reads the new entries of the log.

Imports need care. To find one module, Python's import system lists every directory of ``sys.path``, so that each new
file in one of them would seem to change the kernel. So while a kernel file is observed, imports ask the disk for single
names instead (:func:`_fill_finder_cache`).
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import math
import mmap
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ExtensionFileLoader, FileFinder, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from ktuned.dependencies.code_observer import OBSERVER
from ktuned.dependencies.distributions import find_owners, find_record, is_unowned
from ktuned.dependencies.origin import (
    find_installed_place,
    is_foreign,
    is_of_cache,
    is_of_stdlib,
    is_our_file,
    is_ours,
    list_cache_directories,
)
from ktuned.dependencies.python_files import mentions_any
from ktuned.dependencies.unobservable import explain_unobservable
from ktuned.ipc import (
    ABSENT,
    DIRECTORY,
    Sight,
    Untrusted,
    is_directory_stamp,
    is_special_stamp,
    normalize_path,
    read_sight,
    stamp,
    stamp_attributes,
    stamp_directory,
)
from ktuned.model import ALL_VARIABLES, describe_environment, is_own_variable
from ktuned.observer import REASON_VARIABLE, Kind, Log, Note, prove_observed
from ktuned.user_directories import NoHomeDirectory, find_user_directories

_TIME_NAMES = frozenset(
    {
        "st_mtime",
        "st_mtime_ns",
        "st_ctime",
        "st_ctime_ns",
        "st_atime",
        "st_atime_ns",
        "getmtime",
        "getctime",
        "getatime",
    }
)
"""Names that code must mention to learn when a file was changed."""

_START_VARIABLES = ("PYTHONHASHSEED", "PYTHONOPTIMIZE")
"""Variables that the interpreter reads when it starts, and that decide what code does."""

_START_MODULES = ("sitecustomize", "usercustomize")
_START_FILES = (*(f"{name}.py" for name in _START_MODULES), *_START_MODULES)
"""Modules that the interpreter imports when it starts, from any directory of ``sys.path``."""

_INTERPRETER = frozenset(
    {
        os.path.realpath(sys.executable),
        os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or ""),
    }
)
"""The interpreter and its library, which the toolchain's version represents."""

_DRIVER_SOCKETS = ("/tmp/nvidia-mps/", "/run/nvidia", "/var/run/nvidia")
"""Prefixes of sockets of a driver's own programs, which the device represents."""

_SYSTEM_DIRECTORIES = ("/usr/", "/lib/", "/lib32/", "/lib64/", "/bin/", "/sbin/")

_PROGRAM_KINDS = (Kind.EXECUTED, Kind.MAPPED, Kind.SEARCHED)

NO_OBSERVER = "no observer runs below this worker: see `ktuned doctor`"


@dataclass
class _Reads:
    """Files and attributes with their stamps, and variables with their values."""

    files: dict[Path, str] = field(default_factory=dict)
    attributes: dict[Path, str] = field(default_factory=dict)
    variables: dict[str, str | None] = field(default_factory=dict)

    def add_earlier(self, earlier: _Reads) -> _Reads:
        """Return these reads and earlier ones: the first observation of a name counts."""
        return _Reads(
            {**self.files, **earlier.files},
            {**self.attributes, **earlier.attributes},
            {**self.variables, **earlier.variables},
        )


class Accesses:
    """The files and variables that were read since :meth:`begin_epoch`, which each load of a kernel file calls.

    Attributes:
        own_directories: directories in which ktuned keeps its own files; nothing there is recorded.
        failure: why this process is not observed; empty if it is.
        start_files: the files that change how this interpreter starts, with their stamps; most of them are absent.
        survives_load: set by a request that loads its kernel file on the way: the load begins no new epoch.
    """

    def __init__(self) -> None:
        self.own_directories: tuple[str, ...] = ()
        self.failure = ""
        self.log: Log | None = None
        self.survives_load = False
        self._is_recording = False
        self._epoch = 0
        self._own_places: tuple[str, ...] = ()
        self._start_directories: tuple[str, ...] = ()
        self.start_files: dict[Path, str] = {}
        self._start_sights: list[Sight | None] = []
        self._stamps_at_start: dict[Path, str] = {}
        self._forget_all()

    def _forget_all(self) -> None:
        self._reads = _Reads()
        self._before_run: _Reads | None = None
        self._written_paths: set[str] = set()
        self._tested_paths: set[Path] = set()
        self._unobserved: dict[str, None] = {}
        self._trust_fault: Untrusted | None = None

    def start_recording(self, began: float) -> None:
        """Hook into Python's environment and imports, once for the life of this process, and open the log.

        ``began`` is when the interpreter started, as a Unix time in s. A file that changed since then may not be what
        the interpreter has run.
        """
        if self._is_recording:
            return
        self._is_recording = True
        self.log = Log.open_own()
        sys.modules["ktuned.ipc.stamps"].pause_recording = self.pause_recording  # type: ignore[attr-defined]
        OBSERVER.pause_recording = self.pause_recording
        own = list(self.own_directories)
        with contextlib.suppress(NoHomeDirectory):
            # The files of adopted functions are named by their content.
            own.append(str(find_user_directories().state / "adopted"))
        self._own_places = tuple(f"{place}/" for one in own for place in {os.path.abspath(one), os.path.realpath(one)})
        if self.log is None:
            self.failure = os.environ.get(REASON_VARIABLE, NO_OBSERVER)
        else:
            self.log.set_owner(os.getpid())
        self._start_directories = tuple(one for one in sys.path if os.path.isdir(one) and not is_of_stdlib(f"{one}/x"))
        self._stamp_start_files()
        self._stamps_at_start = {} if _may_have_changed(self.start_files, began) else self.start_files
        for environment in (os.environ, os.environb):
            environment.__class__ = _RecordingEnviron
        FileFinder._fill_cache = _fill_finder_cache  # type: ignore[attr-defined]
        linecache.updatecache = _wrap_line_reading(linecache.updatecache)
        for loader, step in _LOADING_STEPS:
            setattr(loader, step, _wrap_loading(getattr(loader, step)))

    def prove_observed(self) -> None:
        """Make one known access of each kind; if one leaves no note, this process counts as not observed."""
        if self.log is not None:
            self.failure = prove_observed(self.log)

    def begin_epoch(self) -> None:
        """Forget all accesses, and record each name again that is read from now on."""
        self._forget_all()
        if self._is_recording:
            with self.pause_recording():
                self._reads.files |= {path: digest for path, digest in self.start_files.items() if digest}
                self._record_bare_modules()
            for name in _START_VARIABLES:
                self.record_variable(name)
        if self.log is not None:
            for _ in self.log.read_notes():
                pass
            self.log.empty_if_half_full()
            self._epoch = self.log.begin_epoch()

    def begin_run(self) -> None:
        """Record only what is read from now on, by a reference, checks and launches, until :meth:`end_run`."""
        self._read_log()
        self._before_run, self._reads = self._reads, _Reads()
        if self.log is not None:
            self._epoch = self.log.begin_epoch()

    def end_run(self) -> None:
        """Also count what was read before :meth:`begin_run`, if that was called."""
        self._read_log()
        if self._before_run is not None:
            self._reads = self._reads.add_earlier(self._before_run)
            self._before_run = None

    def _record_bare_modules(self) -> None:
        """Record the modules of this process that no distribution owns: they are not read again in this epoch."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__dict__", {}).get("__file__")
            if "." not in name and isinstance(file, str) and not is_our_file(file) and is_unowned(file):
                self._reads.files[Path(file)] = stamp(Path(file))

    @property
    def has_stale_start(self) -> bool:
        """True if a fresh process would start otherwise than this one has."""
        self._stamp_start_files()
        return self._is_recording and self.start_files != self._stamps_at_start

    def _stamp_start_files(self) -> None:
        """Stamp the files that change how this interpreter starts, if they or their directories look otherwise now."""
        with self.pause_recording():
            sights = self._list_start_sights()
            if sights != self._start_sights:
                self.start_files = _stamp_start_files(self._start_directories)
                self._start_sights = self._list_start_sights()

    def _list_start_sights(self) -> list[Sight | None]:
        present = [str(path) for path, digest in self.start_files.items() if digest]
        return [read_sight(path) for path in (*self._start_directories, *present)]

    @property
    def extent(self) -> int:
        """A number that grows whenever a new name is recorded."""
        self._read_log()
        return len(self._reads.files) + len(self._reads.attributes) + len(self._reads.variables) + len(self._unobserved)

    @property
    def files(self) -> Mapping[Path, str]:
        """The recorded files and directories with their stamps, which are empty for absent ones."""
        self._read_log()
        # Leave out a directory on the way to a recorded file, or to installed packages: it surely exists.
        passed = {parent for path in self._reads.files for parent in path.parents}
        for place in map(Path, (*sys.path, sys.prefix, sys.base_prefix, *list_cache_directories())):
            passed |= {place, *place.parents}
        return {
            path: f"{digest}{self._reads.attributes.get(path, '')}"
            for path, digest in self._reads.files.items()
            if digest != DIRECTORY or path not in passed
        }

    @property
    def variables(self) -> Mapping[str, str | None]:
        """The variables that were read, with their values before the kernel file changed any; None if unset."""
        self._read_log()
        return self._reads.variables

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

    @property
    def _environment(self) -> Mapping[str, str]:
        return os.environ if OBSERVER.kernel_file is None else OBSERVER.environ

    def record_variable(self, name: str) -> None:
        """Record that a variable was read."""
        if not is_own_variable(name):
            self._reads.variables.setdefault(name, self._environment.get(name))

    def record_all_variables(self) -> None:
        """Record that any variable may have been read."""
        self._reads.variables.setdefault(ALL_VARIABLES, describe_environment(self._environment))

    def _read_log(self) -> None:
        if not self._is_recording:
            return
        if self.failure:
            self.record_unobserved(self.failure)
        if self.log is None:
            return
        if self.log.is_full:
            self.record_unobserved("the observer's log is full")
        notes = [note for note in self.log.read_notes() if note.epoch >= self._epoch]
        with self.pause_recording():
            self._record_notes(notes)

    def _record_notes(self, notes: Iterable[Note]) -> None:
        for note in notes:
            match note.kind:
                case Kind.VARIABLE if not _is_portable(note.name) and note.name not in os.environ:
                    # Drivers ask for names that nobody can set.
                    pass
                case Kind.VARIABLE:
                    self.record_variable(note.name)
                case Kind.ENVIRONMENT:
                    self.record_all_variables()
                case Kind.HIDDEN:
                    self.record_unobserved(note.name)
                case Kind.CONNECTED if note.name.startswith(_DRIVER_SOCKETS):
                    pass
                case Kind.CONNECTED:
                    self.record_unobserved(f"a connection to another program ({note.name})")
                case Kind.REFUSED:
                    self._trust_fault = Untrusted(
                        f"{note.name} can be written by others, and was not run",
                        hint="make it, and the directories above it, writable by you or root alone",
                    )
                case Kind.RENAMED:
                    if not self._was_made(note.name) and not is_of_cache(note.name):
                        self.record_unobserved(f"{note.name} was renamed by the kernel's own code")
                case Kind.WRITTEN:
                    self._written_paths.add(note.name)
                    # The name was only tested before this write. The run does not depend on its earlier content.
                    if Path(note.name) in self._tested_paths:
                        self._reads.files.pop(Path(note.name), None)
                        self._reads.attributes.pop(Path(note.name), None)
                case _:
                    self._record_path(note)

    def _was_made(self, name: str) -> bool:
        """Return whether this epoch's code has made a name, or it is ktuned's own."""
        return name in self._written_paths or f"{name}/".startswith(self._own_places)

    def _record_path(self, note: Note) -> None:
        if not _is_utf8(note.name):
            self.record_unobserved(f"{note.name!a} is no UTF-8")
            return
        if note.kind in (Kind.EXECUTED, Kind.MAPPED) and note.is_found:
            self._examine_program(note)
        path = normalize_path(Path(note.name))
        # A linker's driver tests whether its options (-lm) are files.
        is_option = path.name.startswith("-") and note.kind is Kind.TESTED and not note.is_found
        if self._was_made(str(path)) or is_option:
            return
        if self._has_owner(note, str(path)):
            self._record_owners(note, str(path))
            return
        # Executed Python code counts by its syntax tree (CodeObserver), unless it is opened again to read its text.
        if note.kind is not Kind.OPENED and OBSERVER.find_digest(path) is not None:
            return
        if note.kind is Kind.TESTED and path not in self._reads.files:
            self._tested_paths.add(path)
        elif note.kind is not Kind.TESTED:
            self._tested_paths.discard(path)
        # The first observation counts. A later listing only adds the names to a directory that is known to exist.
        known = self._reads.files.get(path)
        if known is None or (is_directory_stamp(known) and note.kind is Kind.LISTED):
            self._record_content(note, path)
        asks_times = note.kind in (Kind.OPENED, Kind.TESTED) and _mentions_times(
            OBSERVER.executed_files, OBSERVER.generation
        )
        if (note.kind is Kind.TESTED or asks_times) and path in self._reads.files:
            self._reads.attributes.setdefault(path, stamp_attributes(path, has_times=asks_times))

    def _examine_program(self, note: Note) -> None:
        """Record what code may read without a note, wherever the code lies."""
        is_installed = _is_of_system(note.name) or find_installed_place(note.name) is not None
        is_program = note.kind is Kind.EXECUTED
        if reason := explain_unobservable(note.name, is_program=is_program, is_installed=is_installed):
            self.record_unobserved(reason)
        is_ours = self._was_made(note.name) or note.name == os.environ.get("LD_PRELOAD", "").partition(":")[0]
        if not is_program and not is_installed and not is_ours and _mentions_environ(note.name):
            self.record_all_variables()

    def _record_content(self, note: Note, path: Path) -> None:
        found = stamp(path)
        if not note.is_found or not os.path.exists(path):
            # A name that is gone by now was removed by the run. It would be read again if it came back.
            self._record_absent(path)
        elif is_special_stamp(found):
            self._reads.files[path] = found
            if note.kind is not Kind.TESTED:
                self.record_unobserved(f"{path} is not a regular file")
        elif os.path.isdir(path):
            self._reads.files[path] = found if note.kind is Kind.LISTED else stamp_directory(path)
        else:
            self._reads.files[path] = found
            try:
                OBSERVER.check_trust([path])
            except Untrusted as error:
                self._trust_fault = error

    def _record_absent(self, path: Path) -> None:
        """Record that a name is absent; if its directory is absent, too, record the directory instead."""
        while not path.parent.exists():
            path = path.parent
        # If it exists by now, an unobserved program has made it.
        if str(path) not in self._written_paths and not os.path.exists(path):
            self._reads.files.setdefault(path, ABSENT)

    def _has_owner(self, note: Note, path: str) -> bool:
        """Return whether the version of a name's owner represents it; the module's table lists the owners."""
        is_below_root = OBSERVER.is_below_root(path)
        if is_our_file(f"{path}/" if os.path.isdir(path) else path) and not is_below_root:
            return True
        if is_of_cache(path) and not is_below_root:
            return True
        is_own_reading = note.pid == os.getpid() and note.kind not in _PROGRAM_KINDS
        if find_installed_place(path) is not None:
            is_content_read = is_own_reading and note.is_found and note.kind in (Kind.OPENED, Kind.LISTED)
            return not is_unowned(path) and (not is_content_read or find_record(path) is not None)
        if is_below_root:
            return False
        if is_of_stdlib(f"{path}/") or path in _INTERPRETER:
            return True
        return _is_of_system(path) and not is_own_reading

    def _record_owners(self, note: Note, path: str) -> None:
        """Record the distributions that own an installed file, by the files that list their contents.

        What this process imports is recorded with its imports, and what a distribution reads then is its own reading.
        """
        record = find_record(path)
        if record is not None and note.is_found and note.kind is Kind.OPENED:
            self._reads.files.setdefault(record, stamp(record))
        place = find_installed_place(path)
        if place is not None and note.pid != os.getpid() and note.is_found and not is_our_file(path):
            for owner in find_owners(place):
                self._reads.files.setdefault(owner.record, stamp(owner.record))

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
    iterates over the environment, all of it counts.
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
        if is_projects:
            ACCESSES.record_all_variables()
        type(self)._copied = (0, 0) if is_projects else _identify_reader()
        return super().__iter__()


def _find_reading_frame() -> FrameType | None:
    """Return the innermost frame outside of the standard library, which reads for its callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _implements_reading(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _implements_reading(path: str) -> bool:
    return path == __file__ or path.startswith("<frozen ") or is_of_stdlib(path)


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


def _wrap_line_reading(update: Callable[..., Any]) -> Callable[..., Any]:
    """Record the lines that are shown of the project's files, but not those of installed ones, as in a traceback."""

    @functools.wraps(update)
    def update_observed(filename: str, module_globals: Any = None) -> Any:
        is_installed = find_installed_place(filename) is not None
        with ACCESSES.pause_recording() if is_installed else contextlib.nullcontext():
            return update(filename, module_globals)

    return update_observed


class _EveryName:
    """A listing of a directory that seems to contain every name, so that imports ask the disk for single names."""

    def __contains__(self, name: object) -> bool:
        return True


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


def _is_site(path: str) -> bool:
    return path in sys.path and find_installed_place(f"{path}/x") is not None


def _stamp_start_files(directories: Iterable[str]) -> dict[Path, str]:
    """Return the files that change how an interpreter starts with a ``sys.path`` of these directories, with stamps."""
    found: dict[Path, str] = {}
    for directory in directories:
        paths = [Path(directory, name) for name in _START_FILES]
        if find_installed_place(f"{directory}/x") is not None:
            names = sorted(name for name in os.listdir(directory) if name.endswith(".pth"))
            paths += [path for path in (Path(directory, name) for name in names) if _runs_code(path)]
        found |= {path: stamp(path) for path in paths if path.suffix != ".pth" or is_unowned(str(path))}
    return found


def _may_have_changed(start_files: Mapping[Path, str], began: float) -> bool:
    """Return whether a file that an interpreter runs at its start may have changed since it ``began`` to start."""
    if any(name in sys.modules and not _is_present(sys.modules[name]) for name in _START_MODULES):
        return True
    return any(_find_change_time(path) >= began for path, digest in start_files.items() if digest)


def _find_change_time(path: Path) -> float:
    """Return when a file changed last, as a Unix time in s; infinite if it has just gone."""
    try:
        return path.stat().st_ctime
    except OSError:
        return math.inf


def _is_present(module: ModuleType) -> bool:
    return os.path.exists(getattr(module, "__file__", None) or os.devnull)


def _runs_code(path: Path) -> bool:
    """Return whether a ``.pth`` file has a line that the interpreter runs; other lines only add directories."""
    try:
        return any(line.startswith("import") for line in path.read_text(errors="replace").splitlines())
    except OSError:
        return False


@functools.lru_cache(maxsize=8)
def _mentions_times(executed: frozenset[Path], generation: int) -> bool:
    return any(mentions_any(path, OBSERVER.read_content(path), _TIME_NAMES) for path in executed)


def _mentions_environ(path: str) -> bool:
    """Return whether a library refers to the environment as a whole."""
    try:
        with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"environ\0") >= 0
    except (OSError, ValueError):
        return False
