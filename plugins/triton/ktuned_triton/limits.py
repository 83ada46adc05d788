"""Limits of each architecture, checked when a kernel is compiled, before there is a device.

The figures are those of the CUDA C++ Programming Guide, *Technical Specifications per Compute Capability*.
"""

from __future__ import annotations

from ktuned.backends import Resources
from ktuned_triton.launch_plan import WARP_THREADS, LaunchPlan

MAX_THREADS = 1024
MAX_REGISTERS = 65536
MAX_CLUSTER_BLOCKS = 16
"""More than eight are not portable; Triton allows them where a config asks for them."""

MAX_GRID = (2**31 - 1, 65535, 65535)

_REGISTER_UNIT = 8
"""A thread's registers are given out in eights."""

_SHARED_KIB = {
    75: 64,
    80: 163,
    86: 99,
    87: 163,
    89: 99,
    90: 227,
    100: 227,
    103: 227,
    110: 227,
    120: 99,
    121: 99,
}
"""Most shared memory of a block, by compute capability."""


def why_not(plan: LaunchPlan, used: Resources) -> str:
    """Return why the plan's target cannot launch it, or ``""``."""
    target = plan.target
    if plan.threads > MAX_THREADS:
        return f"num_warps={plan.warps} is {plan.threads} threads in a block; {target} allows {MAX_THREADS}"
    if plan.cluster > MAX_CLUSTER_BLOCKS:
        return f"num_ctas={plan.cluster} blocks in a cluster; {target} allows {MAX_CLUSTER_BLOCKS}"
    for axis, size, most in zip("xyz", plan.blocks, MAX_GRID, strict=True):
        if size > most:
            return f"the grid is {size} in {axis}; {target} allows {most}"
    most = _SHARED_KIB.get(int(target.removeprefix("sm_").rstrip("af")), 0) * 1024
    shared_bytes = plan.shared_bytes + used.static_shared_bytes
    if most and shared_bytes > most:
        return f"a block needs {shared_bytes} bytes of shared memory; {target} has {most}"
    taken = -(-used.registers // _REGISTER_UNIT) * _REGISTER_UNIT * -(-plan.threads // WARP_THREADS) * WARP_THREADS
    if taken > MAX_REGISTERS:
        return (
            f"a block of {plan.threads} threads with {used.registers} registers each needs {taken} registers; "
            f"{target} has {MAX_REGISTERS}"
        )
    return ""
