"""Precompiled headers for TileLang's own compiles by NVRTC.

TileLang asks for one in each compile, but NVRTC's heap is too small for CUTLASS's headers: it fails each time, at the
end of an attempt that takes as long as the compile. With room a process makes it once, and later compiles take a
quarter of the time. The machine code is the same.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
from pathlib import Path
from typing import Any

from ktuned.backends import process_directory

FIRST_VERSION = (12, 8)
"""The first NVRTC with precompiled headers; TileLang asks for none before."""

HEAP_BYTES = 640 << 20
"""Room for one: those of a GEMM take 430 MiB. A second kind of kernel in the same process goes without."""


def options() -> tuple[str, ...]:
    """Return the options by which this process keeps a precompiled header; none where it cannot, or the disk is short.

    NVRTC has the file mapped, which is as large as the heap that it takes; each worker has one.
    """
    kept = _directory()
    if kept is None:
        return ()
    try:
        # NVRTC refuses one that is gone; caches may be cleared at any time.
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return ()
    return (f"-pch-dir={kept}",)


@functools.cache
def _directory() -> Path | None:
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
    _, *version = nvrtc.nvrtcVersion()
    own = process_directory("tilelang") if tuple(version) >= FIRST_VERSION else None
    if own is None or not _has_room_for_heaps(own):
        return None
    (status,) = nvrtc.nvrtcSetPCHHeapSize(HEAP_BYTES)
    return own if status == nvrtc.nvrtcResult.NVRTC_SUCCESS else None


def _has_room_for_heaps(directory: Path) -> bool:
    """Return whether there is room for a precompiled header's heap for a worker on each core."""
    return shutil.disk_usage(directory).free > HEAP_BYTES * len(os.sched_getaffinity(0))
