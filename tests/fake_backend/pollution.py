"""Process state that a config can change: how to change each kind, and how to see whether it is unchanged."""

from __future__ import annotations

import ctypes
import glob
import os
import resource
import signal
import threading
from collections.abc import Callable
from typing import NamedTuple

_libc = ctypes.CDLL(None)
_libm = ctypes.CDLL("libm.so.6")
_libc.getenv.restype = ctypes.c_char_p

_FE_TONEAREST = 0
_FE_UPWARD = 0x400000 if os.uname().machine == "aarch64" else 0x800
_TIMER_SLACK_SET, _TIMER_SLACK_GET = 29, 30
_HOME, _MASK, _FILES = os.getcwd(), os.umask(0o077), resource.getrlimit(resource.RLIMIT_NOFILE)
os.umask(_MASK)
_CORES = os.sched_getaffinity(0)


class StateKind(NamedTuple):
    pollute: Callable[[], object]
    is_clean: Callable[[], bool]


def _find_blas() -> ctypes.CDLL | None:
    import numpy

    libraries = glob.glob(os.path.join(os.path.dirname(numpy.__file__), "..", "numpy.libs", "libscipy_openblas*"))
    return ctypes.CDLL(libraries[0]) if libraries else None


def _threads_of_blas() -> int:
    library = _find_blas()
    return 0 if library is None else int(library.scipy_openblas_get_num_threads64_())


def _set_threads_of_blas() -> None:
    library = _find_blas()
    if library is not None:
        library.scipy_openblas_set_num_threads64_(_THREADS_OF_BLAS + 1)


_THREADS_OF_BLAS = _threads_of_blas()


def _leave_a_thread() -> None:
    # One: a config that leaves another whenever it is timed is not measured.
    if not any(thread.name == "left" for thread in threading.enumerate()):
        threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()


def count_in_library(step: int) -> int:
    """Add to the counter of a project's C library and return it; the library keeps the counter while it is loaded."""
    library = ctypes.CDLL(os.path.join(_HOME, "libcounts.so"))
    return int(library.count(step))


KINDS = {
    "rounding": StateKind(lambda: _libm.fesetround(_FE_UPWARD), lambda: _libm.fegetround() == _FE_TONEAREST),
    "environment": StateKind(lambda: _libc.setenv(b"POLLUTED", b"1", 1), lambda: _libc.getenv(b"POLLUTED") is None),
    "python_environment": StateKind(
        lambda: os.environ.update(POLLUTED_TOO="1"), lambda: "POLLUTED_TOO" not in os.environ
    ),
    "affinity": StateKind(lambda: os.sched_setaffinity(0, {min(_CORES)}), lambda: os.sched_getaffinity(0) == _CORES),
    "directory": StateKind(lambda: os.chdir("/"), lambda: os.getcwd() == _HOME),
    "umask": StateKind(lambda: os.umask(0), lambda: (mask := os.umask(_MASK), os.umask(mask))[0] == _MASK),
    "signals": StateKind(
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}),
        lambda: signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    ),
    "limits": StateKind(
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES[0] - 1, _FILES[1])),
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE) == _FILES,
    ),
    "timers": StateKind(
        lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 3600),
        lambda: signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0,
    ),
    "slack": StateKind(
        lambda: _libc.prctl(_TIMER_SLACK_SET, 1, 0, 0, 0), lambda: _libc.prctl(_TIMER_SLACK_GET, 0, 0, 0, 0) > 1
    ),
    "blas": StateKind(_set_threads_of_blas, lambda: _threads_of_blas() == _THREADS_OF_BLAS),
    "thread": StateKind(_leave_a_thread, lambda: all(one.name != "left" for one in threading.enumerate())),
}


def is_clean(but: str) -> bool:
    """Return whether all kinds of state but one are unchanged."""
    return all(kind.is_clean() for name, kind in KINDS.items() if name != but)
