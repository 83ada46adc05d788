"""Reports the tensor at which this process faults, by a signal handler of the observer's library.

Where the library is not preloaded (there is no C compiler, or the observer is switched off), a crash is reported
without the tensor.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
from collections.abc import Iterable

from ktuned.checking import Region
from ktuned.ipc import FAULT_AT

FATAL_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
"""Signals whose handlers are put back before each config."""


class _Region(ctypes.Structure):
    """``struct region`` of ``observer.c``."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("start", "size", "first", "end")),
        ("name", ctypes.c_char_p),
    )


class FaultReporter:
    """Writes to the journal with this ``descriptor`` where the process faults."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._regions: ctypes.Array[_Region] = (_Region * 0)()
        # The library is in the process's global name space if it was preloaded, and only then.
        self._report_faults = getattr(ctypes.CDLL(None), "ktuned_report_faults", None)

    def watch_regions(self, regions: Iterable[Region]) -> None:
        """Report faults from now on, described by these tensors.

        Call it again after a library was loaded, because loading may install other handlers.
        """
        restore_default_signals()
        if self._report_faults is None:
            return
        found = [_Region(one.start, one.size, one.first, one.end, one.name.encode()) for one in regions]
        table = (_Region * len(found))(*found)
        self._report_faults(ctypes.c_int(self._descriptor), ctypes.c_long(FAULT_AT), table, ctypes.c_size_t(len(table)))
        # The handler uses the table until the next call.
        self._regions = table


def restore_default_signals() -> None:
    """Let a fatal signal end the process after a short stack dump, whatever handlers libraries have installed.

    Some handlers symbolise a backtrace (apache-tvm-ffi does). That takes seconds, and with a broken heap it never ends,
    so that a crash looks like a hang. The defaults must be restored before faulthandler is enabled, because it passes
    the signal on to the handler that it has found.
    """
    faulthandler.disable()
    for number in FATAL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(all_threads=False)
