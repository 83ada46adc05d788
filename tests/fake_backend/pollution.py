"""What a config may do to the process that it is launched in, by kind, and whether that is as it should be."""

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


class Kind(NamedTuple):
    """One kind of state: what changes it, and whether it is unchanged."""

    pollute: Callable[[], object]
    is_clean: Callable[[], bool]


def _blas() -> ctypes.CDLL | None:
    import numpy

    found = glob.glob(os.path.join(os.path.dirname(numpy.__file__), "..", "numpy.libs", "libscipy_openblas*"))
    return ctypes.CDLL(found[0]) if found else None


def _threads_of_blas() -> int:
    library = _blas()
    return 0 if library is None else int(library.scipy_openblas_get_num_threads64_())


def _set_threads_of_blas() -> None:
    library = _blas()
    if library is not None:
        library.scipy_openblas_set_num_threads64_(_THREADS_OF_BLAS + 1)


_THREADS_OF_BLAS = _threads_of_blas()


def _leave_a_thread() -> None:
    threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()


def count_in_library(step: int) -> int:
    """Return what a library of the project counts, which keeps its number for as long as it is loaded."""
    library = ctypes.CDLL(os.path.join(_HOME, "libcounts.so"))
    return int(library.count(step))


KINDS = {
    "rounding": Kind(lambda: _libm.fesetround(_FE_UPWARD), lambda: _libm.fegetround() == _FE_TONEAREST),
    "environment": Kind(lambda: _libc.setenv(b"POLLUTED", b"1", 1), lambda: _libc.getenv(b"POLLUTED") is None),
    "python_environment": Kind(lambda: os.environ.update(POLLUTED_TOO="1"), lambda: "POLLUTED_TOO" not in os.environ),
    "affinity": Kind(lambda: os.sched_setaffinity(0, {min(_CORES)}), lambda: os.sched_getaffinity(0) == _CORES),
    "directory": Kind(lambda: os.chdir("/"), lambda: os.getcwd() == _HOME),
    "umask": Kind(lambda: os.umask(0), lambda: (mask := os.umask(_MASK), os.umask(mask))[0] == _MASK),
    "signals": Kind(
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}),
        lambda: signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    ),
    "limits": Kind(
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES[0] - 1, _FILES[1])),
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE) == _FILES,
    ),
    "timers": Kind(
        lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 3600),
        lambda: signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0,
    ),
    "slack": Kind(
        lambda: _libc.prctl(_TIMER_SLACK_SET, 1, 0, 0, 0), lambda: _libc.prctl(_TIMER_SLACK_GET, 0, 0, 0, 0) > 1
    ),
    "blas": Kind(_set_threads_of_blas, lambda: _threads_of_blas() == _THREADS_OF_BLAS),
    "thread": Kind(_leave_a_thread, lambda: all(one.name != "left" for one in threading.enumerate())),
}


def is_clean(but: str) -> bool:
    """Return whether all is as it should be, but for one kind."""
    return all(kind.is_clean() for name, kind in KINDS.items() if name != but)
