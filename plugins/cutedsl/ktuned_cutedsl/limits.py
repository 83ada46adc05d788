"""Limits of the target architecture, checked when a function is compiled, without a device."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ktuned.backends import cubin, launch_limits
from ktuned_cutedsl.resources import Launch

FIRST_WITH_CLUSTERS = 90


def explain_unlaunchable(target: str, kernels: Iterable[cubin.Kernel], launches: Iterable[Launch]) -> str:
    """Return why ``target`` (``sm_90a``) cannot launch the kernels; empty if it can, as far as sizes are known."""
    launches = list(launches)
    kernels = list(kernels)
    for launch in launches:
        if reason := launch_limits.why_too_large(target, prod(size or 1 for size in launch.block), 0, 0):
            return reason
        blocks = prod(size or 1 for size in launch.cluster)
        if blocks > 1 and launch_limits.capability(target) < FIRST_WITH_CLUSTERS:
            return f"{target} has no clusters"
        if blocks > launch_limits.MAX_CLUSTER_BLOCKS:
            return f"a cluster has {blocks} blocks; {target} allows {launch_limits.MAX_CLUSTER_BLOCKS}"
        pairs = zip(launch.grid, launch.cluster, strict=True)
        if any(grid is not None and size and grid % size for grid, size in pairs):
            return f"a grid of {launch.grid} blocks cannot be cut into clusters of {launch.cluster}"
    # It is not known which kernel a launch belongs to, so the smallest need counts: every kernel has at least that.
    static_bytes = min((kernel.shared_bytes for kernel in kernels), default=0)
    dynamic_bytes = max((launch.shared_bytes or 0 for launch in launches), default=0)
    reasons = [launch_limits.why_too_large(target, 1, 0, static_bytes + dynamic_bytes)]
    reasons += [launch_limits.why_too_large(target, kernel.threads or 0, kernel.registers, 0) for kernel in kernels]
    return next(filter(None, reasons), "")
