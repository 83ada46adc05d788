"""Launch limits of an architecture, checked without a device.

The figures are those of the CUDA C++ Programming Guide, *Technical Specifications per Compute Capability*.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ktuned_cutedsl.resources import Kernel, Launch

MAX_THREADS = 1024
MAX_REGISTERS = 65536
MAX_CLUSTER_BLOCKS = 16
"""More than eight are not portable; CuTe DSL allows them for every kernel."""

FIRST_WITH_CLUSTERS = 90
_WARP = 32
_REGISTER_UNIT = 8
"""A thread's registers are allocated in units of eight."""

_SHARED_KIB = {
    75: 64,
    80: 163,
    86: 99,
    87: 163,
    89: 99,
    90: 227,
    100: 227,
    101: 227,
    103: 227,
    110: 227,
    120: 99,
    121: 99,
}
"""Limit of one block's shared memory, by compute capability."""


def why_not(target: str, kernels: Iterable[Kernel], launches: Iterable[Launch]) -> str:
    """Return the reason why ``target`` (``sm_90a``) cannot launch this, or ``""``; unknown figures are not judged."""
    capability = int(target.removeprefix("sm_").rstrip("af"))
    launches = list(launches)
    kernels = list(kernels)
    for launch in launches:
        threads = prod(size or 1 for size in launch.block)
        if threads > MAX_THREADS:
            return f"a block has {threads} threads; {target} allows {MAX_THREADS}"
        blocks = prod(size or 1 for size in launch.cluster)
        if blocks > 1 and capability < FIRST_WITH_CLUSTERS:
            return f"{target} has no clusters"
        if blocks > MAX_CLUSTER_BLOCKS:
            return f"a cluster has {blocks} blocks; {target} allows {MAX_CLUSTER_BLOCKS}"
        pairs = zip(launch.grid, launch.cluster, strict=True)
        if any(grid is not None and size and grid % size for grid, size in pairs):
            return f"a grid of {launch.grid} blocks cannot be cut into clusters of {launch.cluster}"
    # The kernel of a launch is not known; the smallest requirement holds for any of them.
    static_bytes = min((kernel.shared_bytes for kernel in kernels), default=0)
    dynamic_bytes = max((launch.shared_bytes or 0 for launch in launches), default=0)
    most = _SHARED_KIB.get(capability, 0) * 1024
    if most and static_bytes + dynamic_bytes > most:
        return f"a block needs {static_bytes + dynamic_bytes} bytes of shared memory; {target} has {most}"
    for kernel in kernels:
        taken = _registers(kernel.registers, kernel.threads or 0)
        if taken > MAX_REGISTERS:
            return (
                f"a block of {kernel.threads} threads with {kernel.registers} registers each needs {taken} registers; "
                f"{target} has {MAX_REGISTERS}"
            )
    return ""


def _registers(each: int, threads: int) -> int:
    """Return the registers that a block takes: those of whole warps, in units of allocation."""
    return -(-each // _REGISTER_UNIT) * _REGISTER_UNIT * -(-threads // _WARP) * _WARP
