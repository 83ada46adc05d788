"""CUDA graphs of an application: a drop-in decides nothing while one is captured, and must not end a capture."""

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
    """Let this thread load kernels while another one captures a CUDA graph, which loading would end otherwise."""
    # Without the driver's library nothing can be captured or loaded.
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))
