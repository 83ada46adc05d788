"""Room on a GPU beside an application: the memory that a problem takes, and whether it is free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ktuned.backends import gpu_uuids, nvml
from ktuned.model import KtunedError

MARGIN: Final = 1.1
"""Memory that must be free beside the need: the application may allocate, too, while a problem is opened."""

LIMIT_SHARE: Final = 2
"""The free memory by what a problem may take of it where that is more than its need: the need is an estimate, and a
config that meets a limit is not to blame. Half of what was free stays the application's."""

CONTEXT_BYTES: Final = 640 << 20
"""A process's context with torch's kernels: some 500 MiB on an H100."""

FLUSH_BYTES: Final = 128 << 20
"""The buffer that flushes the second-level cache: twice as large as that."""

BAND_BYTES: Final = 4 << 20
"""Guards around the two copies of each tensor."""

COPIES: Final = 4
"""Of each tensor: the config's, ktuned's own, the one that the reference works on, and what that returns."""

CHECK_BYTES: Final = 48
"""Bytes for each element of an output while it is compared: both sides, their difference and the tolerance in double,
and masks."""

SPARED_SHARE: Final = 0.5
"""Of a GPU's memory, what spares leave free: the next problem may be larger, and configs may allocate."""


class DeviceCrowded(KtunedError):
    """An application's memory leaves too little for a problem; nothing is wrong with either."""

    code = "device_crowded"


def needed_bytes(tensors: Mapping[str, tuple[int, int]], *, has_context: bool) -> int:
    """Return the memory that a problem takes; ``tensors`` have a size in bytes and elements. No IO."""
    total = FLUSH_BYTES + (0 if has_context else CONTEXT_BYTES)
    for size, _ in tensors.values():
        total += COPIES * size + BAND_BYTES
    # One output is compared at a time.
    return total + max((CHECK_BYTES * elements for _, elements in tensors.values()), default=0)


def require_room(device: str, declared: Mapping[str, Any]) -> None:
    """Check that a device has room for a problem's tensors, and keep this process within it.

    Raises:
        DeviceCrowded: it has not.
    """
    import torch

    from ktuned.spec import find_layout

    sizes = {}
    for name, entry in declared.items():
        dtype, shape, _ = find_layout(entry)
        elements = math.prod(shape)
        sizes[name] = (elements * getattr(torch, dtype).itemsize, elements)
    has_context = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    need = needed_bytes(sizes, has_context=has_context)
    free, total = _memory(device)
    # Memory of the last problem that torch keeps is this one's.
    available = free + (torch.cuda.memory_reserved(device) if has_context else 0)
    if available < MARGIN * need:
        raise DeviceCrowded(
            f"{device} has {available >> 20} MiB free beside an application; this problem takes {need >> 20} MiB, "
            "and a tenth of that must stay free"
        )
    # Torch's limit is for what it allocates, not for the context.
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes(need, available) / total), device)


def require_room_for_spare(device: str) -> None:
    """Check that a device has room for the context of a worker that only stands by, before that is made.

    Raises:
        RuntimeError: it has not.
    """
    uuid = gpu_uuids().get(device, "")
    found = nvml.memory(uuid) if uuid else None
    if found is not None and found[0] - CONTEXT_BYTES < SPARED_SHARE * found[1]:
        free, total = (size >> 20 for size in found)
        raise RuntimeError(f"{free} of {total} MiB are free there, and spares leave half of the memory")


def limit_bytes(need: int, available: int) -> float:
    """Return the memory that a problem may take, of so much that is free. No IO."""
    return max(MARGIN * need, available / LIMIT_SHARE)


def _memory(device: str) -> tuple[int, int]:
    """Return the free and the whole memory of a device in bytes."""
    uuid = gpu_uuids().get(device, "")
    found = nvml.memory(uuid) if uuid else None
    if found is not None:
        return found
    import torch

    # It takes a context to learn it in this way.
    free, total = torch.cuda.mem_get_info(device)
    return int(free), int(total)
