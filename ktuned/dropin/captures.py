"""An application's use of CUDA. A drop-in decides nothing while a graph is captured, and loads configs on the GPU of
the key's calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any

_RELAXED = 2
"""``CU_STREAM_CAPTURE_MODE_RELAXED``"""


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured on torch's current stream."""
    torch = sys.modules.get("torch")
    return bool(torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def allow_captures() -> None:
    """Let this thread load kernels while another thread captures a CUDA graph; otherwise loading ends the capture."""
    # Without the driver's library nothing can be captured or loaded.
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))


def use_device(index: int | None) -> contextlib.AbstractContextManager[Any]:
    """Make a GPU torch's current device; needed because a new thread begins with GPU 0."""
    torch: Any = sys.modules.get("torch")
    if index is None or torch is None or not torch.cuda.is_available():
        return contextlib.nullcontext()
    device: contextlib.AbstractContextManager[Any] = torch.cuda.device(index)
    return device
