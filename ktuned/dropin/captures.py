"""CUDA graphs of an application: what a drop-in asks before it decides, and does before it loads a kernel."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Final

_RELAXED: Final = 2
"""``CU_STREAM_CAPTURE_MODE_RELAXED``"""


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured on torch's current stream."""
    torch = sys.modules.get("torch")
    return bool(torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def allow_captures() -> None:
    """Let this thread load a kernel while another one captures a CUDA graph, which its loading would end otherwise."""
    # Without the driver's library there is nothing to capture, and nothing can be loaded.
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))
