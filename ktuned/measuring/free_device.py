"""Whether another program works on a device now.

A GPU gives time to one process after the other. On a free one, the smallest launch is over within some 20 µs; while
another process has work there, it waits for the end of that process's turn.
"""

from __future__ import annotations

from threading import Event
from time import perf_counter
from typing import Final

FREE_TRIP_S: Final = 150e-6
"""Longest round trip to a free GPU: an H100 takes 15 µs, and a busy host three times as long."""

LOOKS_APART_S: Final = 0.02
"""Pause between two looks. A training step leaves the GPU free for a few milliseconds here and there."""


def is_device_free(device: str, looks: int = 1) -> bool:
    """Return whether no other program worked on a device in any of some looks. A CPU counts as free: the operating
    system shares it out.
    """
    if not device.startswith("cuda"):
        return True
    import torch

    try:
        tiny = torch.empty(1, dtype=torch.int8, device=device)
        for number in range(looks):
            if number:
                Event().wait(LOOKS_APART_S)
            torch.cuda.synchronize(device)
            began = perf_counter()
            tiny.zero_()
            torch.cuda.synchronize(device)
            if perf_counter() - began > FREE_TRIP_S:
                return False
    except RuntimeError:
        # A config's fault, which its next launch will raise.
        return False
    return True
