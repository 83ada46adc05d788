"""Accesses of a kernel file's code beside its modules: data files, environment variables, child processes.

An audit hook sees each file that Python code opens and each directory that the project lists; interposed functions of
``os`` see the variables that the project reads, and the files that it looks for or at without opening them. Child
processes, native libraries, databases and connections of the project cannot be looked into: the kernel is then not
fully observed, unless it declares its files (``depends=``).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import FrameType
from typing import Any

from ktuned.ipc import ABSENT, Untrusted, lexical, stamp
from ktuned.spec import callers
from ktuned.spec.observer import OBSERVER
from ktuned.spec.origin import caches, installed_in, is_foreign, is_our_file, is_ours
from ktuned.spec.os_calls import interpose

_SYSTEM = (
    *("/usr/", "/lib/", "/lib32/", "/lib64/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/", "/var/", "/bin/"),
    *("/sbin/", "/boot/", "/snap/", "/nix/store/", "/opt/nvidia/", "/tmp/torchinductor_"),
)
"""Directories of the system's own files: they belong to the toolchain, or to no kernel."""

_ASKING = ("/platform.py", "/ctypes/util.py", "/uuid.py", "/sysconfig.py", "/webbrowser.py")
"""Modules of the standard library that start programs to ask the system what it is."""

_BUILDERS = ("torch.utils.cpp_extension", "torch.utils._cpp_extension_versioner", "cffi")
"""Modules of other packages that compile the project's own sources: what compilers read there is not observed."""

NATIVE_READERS = frozenset(
    {"cv2", "duckdb", "faiss", "h5py", "lmdb", "netCDF4", "onnxruntime", "polars", "pyarrow", "rasterio", "safetensors"}
    | {"sentencepiece", "soundfile", "tables", "tensorstore", "tokenizers", "torchvision"}
)
"""Packages that open files natively, where no audit hook sees it."""

NATIVE_DATABASES = frozenset({"dbm", "shelve"})
"""Modules of the standard library that do."""

_MODULES = (".py", ".pyc", *(f".{suffix.rpartition('.')[2]}" for suffix in EXTENSION_SUFFIXES))
"""Suffixes of files that are a module each, which the observer has read."""

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
        self._asked: dict[Path, str] = {}
        self._written: set[Path] = set()
        self._variables: dict[str, str | None] = {}
        self._unobserved: dict[str, None] = {}
        self._state = threading.local()

    def watch(self) -> None:
        """Observe from now on, while a kernel file is loaded; a hook stays for the life of the process."""
        if self._is_watching:
            return
        import tempfile

        self._is_watching = True
        prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix]
        places = (tempfile.gettempdir(), *self.own)
        self._caches = (*caches(), *(f"{os.path.abspath(place)}/" for place in places))
        self._system = (*_SYSTEM, *(f"{prefix}/" for prefix in prefixes))
        interpose(self)
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

    def ask(self, name: object, user: FrameType | None) -> None:
        """Note that the code of a frame looks for a file, or at one, if that is the project's.

        One that is missing matters when it appears; one that is there counts by its content, which has a size.
        """
        if getattr(self._state, "is_busy", False) or not callers.is_project(user):
            return
        if not isinstance(name, str | bytes | os.PathLike):
            return
        self._state.is_busy = True
        try:
            path = lexical(Path(os.fsdecode(name)))
            self._begin()
            is_known = path in self._written or path in self._files or OBSERVER.digest(path) is not None
            if not is_known and not self._is_excluded(str(path)) and not path.is_dir():
                self._files[path] = self._asked[path] = stamp(path)
        finally:
            self._state.is_busy = False

    def hide(self, reason: str) -> None:
        """Note something that cannot be observed."""
        self._begin()
        self._unobserved[reason] = None

    def read(self, name: str, user: FrameType | None) -> None:
        """Note that a variable was read by the code of a frame, if that is the project's."""
        if callers.is_project(user) and not name.startswith(_OWN_VARIABLES):
            self._begin()
            self._variables.setdefault(name, OBSERVER.environ.get(name))

    def read_all(self, user: FrameType) -> None:
        """Note that the code of a frame walks over all variables, if that is the project's: it may use any of them."""
        if OBSERVER.kernel_file is not None and callers.is_project(user):
            self.hide(f"{callers.place(user)} reads all environment variables")

    def follow_link(self, name: object, user: FrameType | None) -> None:
        """Note that the code of a frame reads what a link says, if that is the project's."""
        if user is not None and callers.is_project(user):
            self.hide(f"{callers.place(user)} reads the link {os.path.basename(str(name))}")

    def start(self, frame: FrameType, program: str) -> None:
        """Note that a child process is started by or for the code of a frame, if that is the project's."""
        self._started("os.posix_spawn", (program,), frame)

    def _begin(self) -> None:
        if self._generation != OBSERVER.generation:
            self._generation = OBSERVER.generation
            self._files, self._asked, self._written, self._variables, self._unobserved = {}, {}, set(), {}, {}

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
        if not isinstance(name, str | bytes | os.PathLike) or str(name).startswith(callers.STDLIB):
            return
        path, user = lexical(Path(os.fsdecode(name))), callers.user(sys._getframe(2))
        if not (self._is_archive(path) if user is None else self._is_read_for(path, user)):
            return
        self._begin()
        is_made = bool(flags & os.O_CREAT) and not path.exists()
        if flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_TRUNC or is_made:
            self._written.add(path)
            if path in self._asked or self._files.get(path) == ABSENT:
                # It was missing until the code made it, or what it held is gone.
                self._asked.pop(path, None)
                del self._files[path]
        elif path in self._files:
            self._asked.pop(path, None)
        elif path not in self._written and OBSERVER.digest(path) is None:
            self._note(path)

    def _is_read_for(self, path: Path, user: FrameType) -> bool:
        """Return whether a file that some code opens may be a kernel's data."""
        if is_ours(callers.module_name(user)):
            return False
        # Other packages read their own files; the project's code may read theirs.
        return not self._is_excluded(str(path)) or (installed_in(str(path)) is not None and callers.is_project(user))

    def _is_archive(self, path: Path) -> bool:
        """Return whether a file that an import opens is no module of its own, but has some of the project's in it."""
        return path.suffix not in _MODULES and OBSERVER.counts(str(path))

    def _listed(self, event: str, arguments: tuple[Any, ...]) -> None:
        name = "." if arguments[0] is None else arguments[0]
        if not isinstance(name, str | bytes | os.PathLike):
            return
        path, user = lexical(Path(os.fsdecode(name))), callers.user(sys._getframe(2))
        if callers.is_project(user) and not self._is_excluded(f"{path}/"):
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

    def _started(self, event: str, arguments: tuple[Any, ...], frame: FrameType | None = None) -> None:
        frame = frame or sys._getframe(2)
        user = callers.user(frame)
        if user is None or not (callers.is_project(user) or callers.module_name(user) in _BUILDERS):
            return
        if not any(step.f_code.co_filename.endswith(_ASKING) for step in callers.frames(frame)):
            self.hide(f"{callers.place(user)} starts a child process{_program(event, arguments)}")

    def _loaded(self, event: str, arguments: tuple[Any, ...]) -> None:
        name = arguments[0]
        user = callers.user(sys._getframe(2))
        if not isinstance(name, str) or user is None or is_ours(callers.module_name(user)):
            return
        is_own = "/" in name and not self._is_excluded(os.path.abspath(name))
        if (is_own or callers.is_project(user)) and not _is_mapped(os.path.basename(name)):
            if is_own:
                self._note(lexical(Path(name)))
            self.hide(f"{callers.place(user)} loads the library {os.path.basename(name)}")

    def _connected(self, event: str, arguments: tuple[Any, ...]) -> None:
        user = callers.user(sys._getframe(2))
        target = arguments[-1]
        if user is not None and callers.is_project(user) and target not in (":memory:", b":memory:", ""):
            self.hide(f"{callers.place(user)} {_CONNECTIONS[event]}")

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


def _is_mapped(library: str) -> bool:
    """Return whether this process has a library of that name already."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as stream:
        return any(line.rstrip("\n").endswith(f"/{library}") for line in stream)


def _program(event: str, arguments: tuple[Any, ...]) -> str:
    """Return the program's name in brackets, where the event has it."""
    first = arguments[0] if arguments else None
    if event == "os.fork" or not isinstance(first, str | bytes | os.PathLike) or not first:
        return ""
    words = os.fsdecode(first).split() or [""]
    return f" ({os.path.basename(words[0])})"
