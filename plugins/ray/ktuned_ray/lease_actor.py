"""The actor that holds a resource of Ray's for a lane or a slot, and does nothing else.

As long as it lives, no other job of the cluster gets that GPU, or those CPUs. A module of its own, which each node
imports.
"""

from __future__ import annotations

import ray


class LeaseActor:
    """Holds what it was started with."""

    def gpus(self) -> list[str]:
        """Return the ids of the GPUs that are held; answered once they are."""
        ids = ray.get_runtime_context().get_accelerator_ids()
        return [str(one) for one in ids.get("GPU", [])]
