"""Launch limits of CUDA's architectures, for checks when a kernel is compiled, without a device.

The figures are from the CUDA C++ Programming Guide, *Technical Specifications per Compute Capability*.
"""

from __future__ import annotations

from typing import Final

MAX_THREADS: Final = 1024
MAX_REGISTERS: Final = 65536
MAX_CLUSTER_BLOCKS: Final = 16
"""More than eight are not portable and must be allowed for each kernel."""

_WARP: Final = 32
_REGISTER_UNIT: Final = 8
"""A thread's registers are allocated in units of eight."""

_SHARED_KIB: Final = {
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


def capability(target: str) -> int:
    """Return a target's compute capability: 90 for ``sm_90a``."""
    return int(target.removeprefix("sm_").rstrip("af"))


def why_too_large(target: str, threads: int, registers: int, shared_bytes: int) -> str:
    """Return why a block is too large for a target; empty if it is not. ``shared_bytes`` are static and dynamic."""
    if threads > MAX_THREADS:
        return f"a block has {threads} threads; {target} allows {MAX_THREADS}"
    most = _SHARED_KIB.get(capability(target), 0) * 1024
    if most and shared_bytes > most:
        return f"a block needs {shared_bytes} bytes of shared memory; {target} has {most}"
    block_registers = -(-registers // _REGISTER_UNIT) * _REGISTER_UNIT * -(-threads // _WARP) * _WARP
    if block_registers > MAX_REGISTERS:
        return (
            f"a block of {threads} threads with {registers} registers each needs {block_registers} registers; "
            f"{target} has {MAX_REGISTERS}"
        )
    return ""
