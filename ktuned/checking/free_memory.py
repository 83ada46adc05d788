"""Room on a GPU that an application uses, too: the memory that a problem needs, and whether it is free.

A problem is opened only if the memory that it is estimated to need is free, with a margin. Then torch is limited to
that need, or to half of the free memory if this is more: the estimate may be too low, and a config must not fail for
it. The application keeps the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ktuned.backends import gpu_uuids, nvml
from ktuned.checking.tensor_library import find_library
from ktuned.model import KtunedError

MARGIN = 1.1
"""Free memory required, in multiples of the need: the application may allocate, too, while a problem is opened."""

LIMIT_SHARE = 2
"""Divisor of the free memory: a problem may take the quotient even if it needs less."""

CONTEXT_BYTES = 640 << 20
"""Memory of a process's context with torch's kernels; some 500 MiB on an H100."""

FLUSH_BYTES = 128 << 20
"""Size of the buffer that flushes the second-level cache, which is half as large."""

BAND_BYTES = 4 << 20
"""Size of the guards around two copies of a tensor."""

COPIES = 4
"""Copies of each tensor: for launches, ktuned's own, the reference's input, and the reference's result."""

CHECK_BYTES = 48
"""Bytes per element of an output in a comparison: both sides, difference and tolerance in double, and masks."""

SPARED_SHARE = 0.5
"""Share of a GPU's memory that must be free before a spare makes its context: the next problem may be larger, and
configs may allocate."""


class DeviceCrowded(KtunedError):
    """An application leaves too little memory for a problem. Nothing is wrong with either."""

    code = "device_crowded"


def estimate_needed_bytes(tensors: Mapping[str, tuple[int, int]], *, has_context: bool) -> int:
    """Return the memory in bytes that a problem needs; ``tensors`` are pairs of bytes and elements. No IO."""
    total = FLUSH_BYTES + (0 if has_context else CONTEXT_BYTES)
    for size, _ in tensors.values():
        total += COPIES * size + BAND_BYTES
    # One output is compared at a time.
    return total + max((CHECK_BYTES * elements for _, elements in tensors.values()), default=0)


def require_free_memory(device: str, declared: Mapping[str, Any]) -> None:
    """Check that a device has room for a problem's tensors, and limit torch to it.

    Raises:
        DeviceCrowded: there is too little.
    """
    import torch

    from ktuned.declaration import find_layout

    sizes = {}
    for name, entry in declared.items():
        layout = find_layout(entry)
        if layout is None:
            # A sparse tensor is never compared element by element.
            sizes[name] = (find_library(entry).count_element_bytes(entry), 0)
            continue
        dtype, shape, _ = layout
        elements = math.prod(shape)
        sizes[name] = (elements * getattr(torch, dtype).itemsize, elements)
    has_context = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    need = estimate_needed_bytes(sizes, has_context=has_context)
    free, total = _read_memory(device)
    # This problem can use the memory that torch still holds from the last one.
    available = free + (torch.cuda.memory_reserved(device) if has_context else 0)
    if available < MARGIN * need:
        raise DeviceCrowded(
            f"an application leaves {available >> 20} MiB of {device} free; this problem needs {need >> 20} MiB, "
            "and a tenth more to spare"
        )
    # The limit is on what torch allocates; the context does not count.
    torch.cuda.set_per_process_memory_fraction(min(1.0, choose_limit_bytes(need, available) / total), device)


def require_free_memory_for_spare(device: str) -> None:
    """Check that a device has room for the context of a spare worker, before the context is made.

    Raises:
        RuntimeError: there is too little.
    """
    memory = _read_memory_by_nvml(device)
    if memory is not None and memory[0] - CONTEXT_BYTES < SPARED_SHARE * memory[1]:
        free, total = (size >> 20 for size in memory)
        raise RuntimeError(f"only {free} of {total} MiB are free, and spares must leave half of the memory free")


def choose_limit_bytes(need: int, available: int) -> float:
    """Return the memory in bytes that a problem may take of the ``available`` bytes. No IO."""
    return max(MARGIN * need, available / LIMIT_SHARE)


def _read_memory_by_nvml(device: str) -> tuple[int, int] | None:
    """Return the free and the total memory of a device in bytes; ``None`` if NVML does not know."""
    uuid = gpu_uuids().get(device, "")
    return nvml.read_memory(uuid) if uuid else None


def _read_memory(device: str) -> tuple[int, int]:
    """Return the free and the total memory of a device in bytes."""
    if (memory := _read_memory_by_nvml(device)) is not None:
        return memory
    import torch

    # Without NVML, the memory can only be read with a context.
    free, total = torch.cuda.mem_get_info(device)
    return int(free), int(total)
