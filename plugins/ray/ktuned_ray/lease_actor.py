"""The actor that holds a resource of Ray's for a lane or a slot, and does nothing else.

As long as it lives, no other job of the cluster gets that GPU, or those CPUs. A module of its own, which each node
imports.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import ray

RAYLET_S: Final = 1.0
"""Interval of looks whether the node's raylet lives."""


class LeaseActor:
    """Holds what it was started with."""

    def __init__(self) -> None:
        threading.Thread(target=_end_with_node, args=(os.getppid(),), daemon=True).start()

    def gpus(self) -> list[str]:
        """Return the ids of the GPUs that are held; answered once they are."""
        ids = ray.get_runtime_context().get_accelerator_ids()
        return [str(one) for one in ids.get("GPU", [])]


def _end_with_node(raylet: int) -> None:
    """End this process with its node, as a keeper's actor does: Ray does so only without a subreaper."""
    while os.getppid() == raylet:
        threading.Event().wait(RAYLET_S)
    os._exit(1)
