"""Whether another program works on a device now.

A GPU gives time to one process after the other, in turns of some 2 ms. When a process waits for its own work, the turn
goes to another process that has some. The smallest launch then comes back after that turn; on a free GPU it comes back
at once. On an H100 the one took 2 ms, and the other 0.05 to 0.3 ms, depending on how fast the host wakes up.
"""

from __future__ import annotations

from threading import Event
from time import perf_counter

FREE_TRIP_S = 0.7e-3
"""Longest round trip to a free GPU, right after another one."""

LOOKS_APART_S = 0.02
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

        def time_trip_s() -> float:
            began = perf_counter()
            tiny.zero_()
            torch.cuda.synchronize(device)
            return perf_counter() - began

        for number in range(looks):
            if number:
                Event().wait(LOOKS_APART_S)
            # The first trip ends at the beginning of another process's turn.
            time_trip_s()
            if time_trip_s() > FREE_TRIP_S:
                return False
    except RuntimeError:
        # A config's fault, which its next launch will raise.
        return False
    return True
