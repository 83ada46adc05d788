"""The observer's library: compiled once by the system's C compiler, and kept in the user's cache.

A wheel with the binary would be one for each C library and processor; a compiler is there wherever kernels are
compiled. Where it is not, answers say ``not fully observed``, and ``ktuned doctor`` has the remedy.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ktuned.ipc import Trust, Untrusted
from ktuned.observer.log import VARIABLE, Log

OFF = "KTUNED_UNOBSERVED"
"""The variable that switches the observer off: for a program that no library may be preloaded into."""

TRUSTED = "KTUNED_TRUSTED"
SOURCE = Path(__file__).with_name("observer.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-g0", "-shared", "-fPIC", "-fvisibility=hidden", "-Wno-nonnull-compare")
COMPILE_S = 60
"""A compile takes a second; one that takes a minute has gone wrong."""


class Unavailable(Exception):
    """There is no library; the message says why."""


@functools.cache
def library() -> Path:
    """Return the library, and compile it where it is not there yet.

    Raises:
        Unavailable: it cannot be had.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ktuned")
    text = SOURCE.read_bytes()
    made_of = hashlib.sha256(text + repr((FLAGS, platform.machine(), platform.libc_ver())).encode()).hexdigest()
    place = cache / f"libktuned_observer-{made_of[:16]}.so"
    try:
        if not place.exists():
            _compile(place)
        Trust().check_file(str(place))
    except Untrusted as error:
        raise Unavailable(error.message) from error
    except OSError as error:
        raise Unavailable(f"{place}: {error.strerror}") from error
    return place


def _compile(place: Path) -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise Unavailable(f"there is no C compiler ({', '.join(COMPILERS)}) on the PATH")
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        made = Path(scratch, "observer.so")
        command = [compiler, *FLAGS, "-o", str(made), str(SOURCE), "-ldl"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_S)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{compiler} did not compile it in {COMPILE_S} s") from error
        if done.returncode:
            raise Unavailable(f"{compiler}: {(done.stderr.strip().splitlines() or ['no message'])[0]}")
        made.replace(place)


def prepare() -> None:
    """Have the library made, if it can be."""
    with suppress(Unavailable):
        library()


def settings(scratch: Path, environment: Mapping[str, str], trusted: Sequence[str]) -> dict[str, str]:
    """Return the variables of a worker that is observed, with its log in ``scratch``; none if it cannot be.

    What ``environment`` preloads or audits comes after the observer.
    """
    if environment.get(OFF):
        return {}
    try:
        here = str(library())
        scratch.mkdir(parents=True, exist_ok=True)
        place = scratch / "observed"
        Log.create(place)
    except (Unavailable, OSError):
        return {}
    found = {VARIABLE: str(place), TRUSTED: ":".join(map(os.path.realpath, trusted))}
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        found[name] = ":".join(filter(None, (here, environment.get(name, ""))))
    return found
