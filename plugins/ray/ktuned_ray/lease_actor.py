"""The actor that holds a resource of Ray's for a lane or a compile slot, and does nothing else.

As long as it lives, no other job of the cluster gets that GPU, or those CPUs. Each node imports this module, so it
imports little.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import ray

RAYLET_S: Final = 1.0
"""Interval in seconds at which the actor checks whether the node's raylet is alive."""


class LeaseActor:
    """Holds the resources that it was started with."""

    def __init__(self) -> None:
        threading.Thread(target=_end_with_node, args=(os.getppid(),), daemon=True).start()

    def list_gpus(self) -> list[str]:
        """Return the ids of the GPUs that are held; answered once they are."""
        ids = ray.get_runtime_context().get_accelerator_ids()
        return [str(one) for one in ids.get("GPU", [])]


def _end_with_node(raylet: int) -> None:
    """End this process with its node, as a keeper's actor does: Ray does so only without a subreaper."""
    while os.getppid() == raylet:
        threading.Event().wait(RAYLET_S)
    os._exit(1)
