"""Limits of the target architecture, checked when a kernel is compiled, without a device."""

from __future__ import annotations

from ktuned.backends import Resources, launch_limits
from ktuned_triton.launch_plan import LaunchPlan

MAX_GRID = (2**31 - 1, 65535, 65535)


def explain_unlaunchable(plan: LaunchPlan, used: Resources) -> str:
    """Return why the plan's target cannot launch the kernel; empty if it can."""
    target = plan.target
    if plan.threads > launch_limits.MAX_THREADS:
        return (
            f"num_warps={plan.warps} is {plan.threads} threads in a block; {target} allows {launch_limits.MAX_THREADS}"
        )
    if plan.cluster > launch_limits.MAX_CLUSTER_BLOCKS:
        return f"num_ctas={plan.cluster} blocks in a cluster; {target} allows {launch_limits.MAX_CLUSTER_BLOCKS}"
    for axis, size, most in zip("xyz", plan.blocks, MAX_GRID, strict=True):
        if size > most:
            return f"the grid is {size} in {axis}; {target} allows {most}"
    shared_bytes = plan.shared_bytes + used.static_shared_bytes
    return launch_limits.why_too_large(target, plan.threads, used.registers, shared_bytes)
