"""The observer's library: compiled once by the system's C compiler, and kept in the user's cache.

Wheels with a binary would be needed for each C library and processor, but machines that compile kernels have a C
compiler. Without a compiler, answers say ``not fully observed``, and ``ktuned doctor`` names the remedy.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ktuned.ipc import Trust, Untrusted
from ktuned.observer.log import LOG_VARIABLE, Log
from ktuned.user_directories import NoHomeDirectory, find_user_directories

OFF_VARIABLE = "KTUNED_UNOBSERVED"
"""The variable that switches the observer off, for programs that fail with a preloaded library."""

REASON_VARIABLE = "KTUNED_NOT_OBSERVED"
"""The variable that tells a worker why it has no observer."""

DAEMON_MARK, WORKER_MARK = "KTUNED_DAEMON", "KTUNED_WORKER"
"""The variables by which the descendants of a daemon, or of a worker, are found and killed. The observer hides them
from all code that it observes."""

TRUSTED_VARIABLE = "KTUNED_TRUSTED"
SOURCE = Path(__file__).with_name("observer.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-g0", "-shared", "-fPIC", "-fvisibility=hidden", "-Wno-nonnull-compare")
_SPLITS_PRELOAD = re.compile(r"[\s:]")
COMPILE_S = 60
"""Deadline of the compile, which usually takes a second."""

_compiling = threading.Lock()


class LibraryUnavailable(Exception):
    """The library could not be built; the message says why."""


@functools.cache
def build_library() -> Path:
    """Return the library's path; compile it if it is not in the cache yet.

    Raises:
        LibraryUnavailable: there is no compiler, it failed, or another user could have written the library.
    """
    try:
        cache = find_user_directories().cache
    except NoHomeDirectory as error:
        raise LibraryUnavailable(str(error)) from error
    if _SPLITS_PRELOAD.search(str(cache)):
        raise LibraryUnavailable(
            f"the dynamic linker splits LD_PRELOAD at blanks and colons, and there is one in {cache}; "
            "set KTUNED_HOME to a directory without them"
        )
    text = SOURCE.read_bytes()
    made_of = hashlib.sha256(text + repr((FLAGS, platform.machine(), platform.libc_ver())).encode()).hexdigest()
    place = cache / f"libktuned_observer-{made_of[:16]}.so"
    try:
        if not place.exists():
            _compile_library(place)
        Trust().check_file(str(place))
    except Untrusted as error:
        raise LibraryUnavailable(error.message) from error
    except OSError as error:
        raise LibraryUnavailable(f"{place}: {error.strerror}") from error
    return place


def _compile_library(place: Path) -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise LibraryUnavailable(f"there is no C compiler ({', '.join(COMPILERS)}) on the PATH")
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        made = Path(scratch, "observer.so")
        command = [compiler, *FLAGS, "-o", str(made), str(SOURCE), "-ldl"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_S)
        except subprocess.TimeoutExpired as error:
            raise LibraryUnavailable(f"{compiler} did not compile it in {COMPILE_S} s") from error
        if done.returncode:
            raise LibraryUnavailable(f"{compiler}: {(done.stderr.strip().splitlines() or ['no message'])[0]}")
        made.replace(place)


def prepare_library() -> None:
    """Build the library, if possible. Threads that ask at the same time wait for one compile."""
    with _compiling, suppress(LibraryUnavailable):
        build_library()


def make_worker_variables(scratch: Path, environment: Mapping[str, str], trusted: Sequence[str]) -> dict[str, str]:
    """Make an empty log, and return the variables that turn on a worker's observer, or the reason why there is none.

    Args:
        scratch: the directory for the log.
        environment: the worker's other variables, with its marks; libraries that these preload or audit come after the
            observer.
        trusted: directories whose programs may run without a check of who can write them.
    """
    if environment.get(OFF_VARIABLE):
        return {REASON_VARIABLE: "the observer is switched off"}
    try:
        here = str(build_library())
        scratch.mkdir(parents=True, exist_ok=True)
        place = scratch / "observed"
        Log.create(place, {name: environment[name] for name in (DAEMON_MARK, WORKER_MARK) if name in environment})
    except (LibraryUnavailable, OSError) as error:
        return {REASON_VARIABLE: f"no observer runs below this worker: {error}"}
    found = {LOG_VARIABLE: str(place), TRUSTED_VARIABLE: ":".join(map(os.path.realpath, trusted))}
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        found[name] = ":".join(filter(None, (here, environment.get(name, ""))))
    return found
