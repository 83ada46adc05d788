"""Accesses of a kernel file's code beside its modules: data files, environment variables, child processes.

An audit hook sees each file that Python code opens and each directory that the project lists; a recording
``os.environ`` sees the variables that the project reads, a recording ``os.stat`` the files that it finds missing. Child
processes, native libraries, databases and connections of the project cannot be looked into: the kernel is then not
fully observed, unless it declares its files (``depends=``).
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ktuned.ipc import ABSENT, Untrusted, lexical, stamp
from ktuned.spec.observer import OBSERVER
from ktuned.spec.origin import caches, installed_in, is_foreign, is_our_file, is_ours

_SYSTEM = (
    *("/usr/", "/lib/", "/lib32/", "/lib64/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/", "/var/", "/bin/"),
    *("/sbin/", "/boot/", "/snap/", "/nix/store/", "/opt/nvidia/", "/tmp/torchinductor_"),
)
"""Directories of the system's own files: they belong to the toolchain, or to no kernel."""

_STDLIB = f"{Path(sysconfig.get_path('stdlib')).resolve()}/"
"""Not ``platstdlib``: in a virtual environment that is where its packages are installed."""

_ASKING = ("/platform.py", "/ctypes/util.py", "/uuid.py", "/sysconfig.py", "/webbrowser.py")
"""Modules of the standard library that start programs to ask the system what it is."""

_READING = ("/os.py", "/_collections_abc.py", "<frozen os>", "<frozen _collections_abc>")
_BUILDERS = ("torch.utils.cpp_extension", "torch.utils._cpp_extension_versioner", "cffi")
"""Modules of other packages that compile the project's own sources: what compilers read there is not observed."""

NATIVE_READERS = frozenset({"safetensors", "h5py", "pyarrow", "tables", "netCDF4"})
"""Packages that open files natively, where no audit hook sees it."""

_OWN_VARIABLES = ("KTUNED_", "TMPDIR", "LC_", "PWD", "OLDPWD", "SHLVL")
"""Beginnings of the names of variables that ktuned or a shell sets for itself."""


class Accesses:
    """The files, variables and unobservable doings of the kernel file that is loaded.

    ``own`` are directories of ktuned's own files, which are no kernel's data.
    """

    def __init__(self) -> None:
        self.own: tuple[str, ...] = ()
        self._is_watching = False
        self._generation = 0
        self._files: dict[Path, str] = {}
        self._written: set[Path] = set()
        self._variables: dict[str, str | None] = {}
        self._unobserved: dict[str, None] = {}
        self._state = threading.local()

    def watch(self) -> None:
        """Observe from now on, while a kernel file is loaded; a hook stays for the life of the process."""
        if self._is_watching:
            return
        self._is_watching = True
        prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix]
        places = (tempfile.gettempdir(), *self.own)
        self._caches = (*caches(), *(f"{os.path.abspath(place)}/" for place in places))
        self._system = (*_SYSTEM, *(f"{prefix}/" for prefix in prefixes))
        for environment in (os.environ, os.environb):
            environment.__class__ = _RecordingEnviron
        _record_missing()
        sys.addaudithook(self._audit)

    @property
    def extent(self) -> int:
        """A number that changes when more was reached."""
        self._begin()
        return len(self._files) + len(self._variables) + len(self._unobserved)

    @property
    def files(self) -> Mapping[Path, str]:
        """The data files that were opened and directories that were listed, with their digests before that."""
        self._begin()
        return self._files

    @property
    def variables(self) -> Mapping[str, str | None]:
        """The environment variables that were read, with the values that the process was started with."""
        self._begin()
        return self._variables

    @property
    def unobserved(self) -> list[str]:
        """Reasons why not all that decides a result could be observed."""
        self._begin()
        return list(self._unobserved)

    def miss(self, name: object, user: FrameType | None) -> None:
        """Note that the code of a frame found no file of a name, if that is the project's: its appearance matters."""
        if OBSERVER.kernel_file is None or getattr(self._state, "is_busy", False):
            return
        if not isinstance(name, str | bytes | os.PathLike) or user is None or not _is_project(user):
            return
        path = lexical(Path(os.fsdecode(name)))
        if not self._is_excluded(str(path)):
            self._begin()
            self._files.setdefault(path, ABSENT)

    def hide(self, reason: str) -> None:
        """Note something that cannot be observed."""
        self._begin()
        self._unobserved[reason] = None

    def read(self, name: str, user: FrameType | None) -> None:
        """Note that a variable was read by the code of a frame, if that is the project's."""
        if user is not None and _is_project(user) and not name.startswith(_OWN_VARIABLES):
            self._begin()
            self._variables.setdefault(name, OBSERVER.environ.get(name))

    def read_all(self, user: FrameType) -> None:
        """Note that the code of a frame walks over all variables, if that is the project's: it may use any of them."""
        if OBSERVER.kernel_file is not None and _is_project(user):
            self.hide(f"{_place(user)} reads all environment variables")

    def _begin(self) -> None:
        if self._generation != OBSERVER.generation:
            self._generation = OBSERVER.generation
            self._files, self._written, self._variables, self._unobserved = {}, set(), {}, {}

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        handle = _HANDLERS.get(event)
        if handle is None or OBSERVER.kernel_file is None or getattr(self._state, "is_busy", False):
            return
        self._state.is_busy = True
        try:
            handle(self, event, arguments)
        except Untrusted:
            raise
        except Exception:
            # What is observed must not fail for being observed.
            self.hide(f"{event} could not be observed")
        finally:
            self._state.is_busy = False

    def _opened(self, event: str, arguments: tuple[Any, ...]) -> None:
        name, _, flags = arguments
        if not isinstance(name, str | bytes | os.PathLike) or _is_plainly_foreign(name):
            return
        path = lexical(Path(os.fsdecode(name)))
        if self._is_excluded(str(path)) or not _is_outside_import(sys._getframe(2)):
            return
        self._begin()
        if flags & os.O_ACCMODE == os.O_WRONLY or flags & (os.O_CREAT | os.O_TRUNC):
            self._written.add(path)
            if self._files.get(path) == ABSENT:
                # It was missing until the code made it.
                del self._files[path]
        elif path not in self._written and path not in self._files and OBSERVER.digest(path) is None:
            self._note(path)

    def _listed(self, event: str, arguments: tuple[Any, ...]) -> None:
        name = "." if arguments[0] is None else arguments[0]
        if not isinstance(name, str | bytes | os.PathLike):
            return
        path, user = lexical(Path(os.fsdecode(name))), _user(sys._getframe(2))
        if user is not None and _is_project(user) and not self._is_excluded(f"{path}/"):
            self._begin()
            self._note(path)

    def _note(self, path: Path) -> None:
        digest = stamp(path)
        if digest == ABSENT and path.exists():
            # A pipe, a socket, a device.
            self.hide(f"{path} is not a regular file")
            return
        if digest != ABSENT:
            OBSERVER.check([path])
        self._files.setdefault(path, digest)

    def _started(self, event: str, arguments: tuple[Any, ...]) -> None:
        frame = sys._getframe(2)
        user = _user(frame)
        if user is None or not (_is_project(user) or user.f_globals.get("__name__") in _BUILDERS):
            return
        if not any(step.f_code.co_filename.endswith(_ASKING) for step in _frames(frame)):
            self.hide(f"{_place(user)} starts a child process{_program(event, arguments)}")

    def _loaded(self, event: str, arguments: tuple[Any, ...]) -> None:
        name = arguments[0]
        user = _user(sys._getframe(2))
        if not isinstance(name, str) or user is None or is_ours(str(user.f_globals.get("__name__", ""))):
            return
        is_own = "/" in name and not self._is_excluded(os.path.abspath(name))
        if (is_own or _is_project(user)) and not _is_mapped(os.path.basename(name)):
            if is_own:
                self._note(lexical(Path(name)))
            self.hide(f"{_place(user)} loads the library {os.path.basename(name)}")

    def _connected(self, event: str, arguments: tuple[Any, ...]) -> None:
        user = _user(sys._getframe(2))
        target = arguments[-1]
        if user is not None and _is_project(user) and target not in (":memory:", b":memory:", ""):
            self.hide(f"{_place(user)} {_CONNECTIONS[event]}")

    def _imported(self, event: str, arguments: tuple[Any, ...]) -> None:
        file = arguments[1]
        if isinstance(file, str) and OBSERVER.counts(file) and not is_ours(str(arguments[0])):
            OBSERVER.check([Path(file)])
            self.hide(f"the module {os.path.basename(file)} is native code")

    def _is_excluded(self, path: str) -> bool:
        """Return whether a file is of the system, of an environment or of a cache, and no kernel's data."""
        if path.startswith(self._caches) or "/__pycache__/" in path:
            return True
        if is_our_file(path):
            # Read for a message that shows a line of it, and from then on from a cache.
            return True
        if OBSERVER.is_below_root(path):
            return is_foreign(path) and not OBSERVER.counts(path)
        return path.startswith(self._system) or is_foreign(path)


ACCESSES = Accesses()
"""The accesses of this process."""

_CONNECTIONS = {"sqlite3.connect": "opens a database", "socket.connect": "connects to another program"}

_Handler = Callable[[Accesses, str, tuple[Any, ...]], None]
_HANDLERS: Mapping[str, _Handler] = {
    "open": Accesses._opened,
    **dict.fromkeys(("os.listdir", "os.scandir"), Accesses._listed),
    **dict.fromkeys(
        ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec"), Accesses._started
    ),
    **dict.fromkeys(_CONNECTIONS, Accesses._connected),
    "ctypes.dlopen": Accesses._loaded,
    "import": Accesses._imported,
}


class _RecordingEnviron(os._Environ):  # type: ignore[type-arg]
    """The environment of a worker, which notes what the project reads."""

    def __getitem__(self, key: Any) -> Any:
        if OBSERVER.kernel_file is not None and isinstance(key, str | bytes):
            user = _reader(sys._getframe(1))
            # Who walks over all of them names none.
            if user is not None and _walking.get(id(user)) != user.f_lasti:
                ACCESSES.read(os.fsdecode(key), user)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        user = _reader(sys._getframe(1))
        if user is not None:
            _walking.clear()
            _walking[id(user)] = user.f_lasti
            ACCESSES.read_all(user)
        return super().__iter__()


def _record_missing() -> None:
    """Have ``os.stat``, and all that asks it whether a file exists, note what the project finds missing."""
    looked: Callable[..., os.stat_result] = os.stat

    @functools.wraps(looked)
    def recording_stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        try:
            return looked(path, *arguments, **options)
        except (FileNotFoundError, NotADirectoryError):
            if options.get("dir_fd") is None:
                ACCESSES.miss(path, _user(sys._getframe(1)))
            raise

    os.stat = recording_stat
    for supports in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        supports.add(recording_stat)


_walking: dict[int, int] = {}
"""The place of the code that walks over all variables, by its frame."""


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers in the standard library, up to the first outside it."""
    while frame is not None:
        yield frame
        file = frame.f_code.co_filename
        if not file.startswith((_STDLIB, "<frozen ")) or installed_in(file) is not None:
            return
        frame = frame.f_back


def _user(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame outside the standard library; ``None`` below an import."""
    last = None
    for last in _frames(frame):
        if last.f_code.co_filename.startswith("<frozen importlib"):
            return None
    return last


def _reader(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is not of ``os.environ`` itself."""
    while frame is not None and frame.f_code.co_filename.endswith(_READING):
        frame = frame.f_back
    return frame


def _is_project(frame: FrameType) -> bool:
    """Return whether a frame's code counts by content."""
    return OBSERVER.counts(frame.f_code.co_filename) and not is_ours(str(frame.f_globals.get("__name__", "")))


def _is_outside_import(frame: FrameType) -> bool:
    """Return whether a file is opened by neither an import nor ktuned itself."""
    user = _user(frame)
    return user is not None and not is_ours(str(user.f_globals.get("__name__", "")))


def _is_plainly_foreign(name: str | bytes | os.PathLike[Any]) -> bool:
    """Return whether a path is one of the thousands that importing a large package opens."""
    return isinstance(name, str) and (name.startswith(_STDLIB) or "/site-packages/" in name)


def _is_mapped(library: str) -> bool:
    """Return whether this process has a library of that name already."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as stream:
        return any(line.rstrip("\n").endswith(f"/{library}") for line in stream)


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _program(event: str, arguments: tuple[Any, ...]) -> str:
    """Return the program's name in brackets, where the event has it."""
    first = arguments[0] if arguments else None
    if event == "os.fork" or not isinstance(first, str | bytes | os.PathLike) or not first:
        return ""
    words = os.fsdecode(first).split() or [""]
    return f" ({os.path.basename(words[0])})"
