"""Precompiled headers for TileLang's own compiles by NVRTC.

TileLang requests a precompiled header in each compile, but NVRTC's heap is too small for CUTLASS's headers: each
attempt fails, after as much time as the compile itself takes. With a larger heap, a process makes the header once, and
its later compiles take a quarter of the time. The machine code is the same.
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
"""The first NVRTC with precompiled headers; for earlier ones TileLang asks for none."""

HEAP_BYTES = 640 << 20
"""Room for one header; a GEMM's takes 430 MiB. A second kind of kernel in the same process gets no header."""


def make_options() -> tuple[str, ...]:
    """Return NVRTC's options for this process's precompiled header; none if NVRTC or the disk does not allow one.

    Each worker has a file of its own, as large as the heap, which NVRTC keeps mapped.
    """
    directory = _enable_precompiled_headers()
    if directory is None:
        return ()
    try:
        # NVRTC rejects a missing directory, and caches may be cleared at any time.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return ()
    return (f"-pch-dir={directory}",)


@functools.cache
def _enable_precompiled_headers() -> Path | None:
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
    _, *version = nvrtc.nvrtcVersion()
    directory = process_directory("tilelang") if tuple(version) >= FIRST_VERSION else None
    if directory is None or not _has_room_for_heaps(directory):
        return None
    (status,) = nvrtc.nvrtcSetPCHHeapSize(HEAP_BYTES)
    return directory if status == nvrtc.nvrtcResult.NVRTC_SUCCESS else None


def _has_room_for_heaps(directory: Path) -> bool:
    """Return whether there is room for a precompiled header's heap for a worker on each core."""
    return shutil.disk_usage(directory).free > HEAP_BYTES * len(os.sched_getaffinity(0))
