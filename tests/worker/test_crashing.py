"""A crash in a worker is reported as itself, whatever signal handlers its libraries install."""

import signal
import subprocess
import sys

import pytest

CRASHING_PROGRAM = """
import ctypes, signal
{library}
from ktuned.worker.fault_reporter import restore_default_signals
restore_default_signals()
ctypes.string_at(0)
"""


@pytest.mark.parametrize("library", ["", "import tvm_ffi", "signal.signal(signal.SIGSEGV, lambda *_: None)"])
def test_a_fatal_signal_ends_the_process_at_once(library: str) -> None:
    """Python dumps the stack, and no library's handler runs in the broken process."""
    process = subprocess.run(
        [sys.executable, "-c", CRASHING_PROGRAM.format(library=library)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in process.stderr
    assert "Segfault encountered" not in process.stderr
