"""A crash in a worker is reported as what it was, whatever handlers the libraries in it have installed."""

import signal
import subprocess
import sys

import pytest

CRASH = """
import ctypes, signal
{library}
from ktuned.worker.fault_reporter import restore_default_signals
restore_default_signals()
ctypes.string_at(0)
"""


@pytest.mark.parametrize("library", ["", "import tvm_ffi", "signal.signal(signal.SIGSEGV, lambda *_: None)"])
def test_a_fatal_signal_ends_the_process_at_once(library: str) -> None:
    """The stack dump is Python's; the signal is the crash's, not one of a handler that symbolises a broken process."""
    ended = subprocess.run(
        [sys.executable, "-c", CRASH.format(library=library)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ended.stderr
    assert "Segfault encountered" not in ended.stderr
