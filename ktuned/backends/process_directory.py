"""A directory of one process, for large files that only this process can use.

Workers end by SIGKILL and cannot remove their directories. So each process that asks for a directory first removes the
directories of processes that are gone.
"""

from __future__ import annotations

import atexit
import os
import stat
from pathlib import Path

_PREFIX = "pch-"


def process_directory(tool: str) -> Path | None:
    """Return this process's directory, below ``$KTUNED_CACHE`` or else in a private directory in TMPDIR.

    It is ``None`` if the directory cannot be made, or if other users could write there. ``tool`` names its purpose.
    """
    # Imported here, because it imports four compressors, and only some backends need a directory.
    import shutil

    cache = os.environ.get("KTUNED_CACHE")
    root = Path(cache, tool) if cache else Path(_find_temporary_directory(), f"ktuned-{tool}-{os.getuid()}")
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            return None
        for directory in root.glob(f"{_PREFIX}*"):
            if not _is_running(directory.name):
                shutil.rmtree(directory, ignore_errors=True)
        own = root / _name_directory(os.getpid())
        own.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def _find_temporary_directory() -> str:
    # Not `tempfile.gettempdir()`, which plugins redirect to a scratch directory while they compile.
    return os.environ.get("TMPDIR") or "/tmp"


def _name_directory(pid: int) -> str:
    """Return the name of a process's directory: its pid and its start time, because pids are reused.

    Raises:
        OSError: the process does not exist.
    """
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{_PREFIX}{pid}-{start}"


def _is_running(name: str) -> bool:
    try:
        return _name_directory(int(name.split("-")[1])) == name
    except (OSError, ValueError, IndexError):
        return False
