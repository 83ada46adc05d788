"""Launch limits of CUDA's architectures, and the occupancy of kernels, without a device. No IO.

The figures are from the CUDA C++ Programming Guide, *Technical Specifications per Compute Capability*, the rules of
occupancy from CUDA's own calculator (``cuda_occupancy.h``).
"""

from __future__ import annotations

from ktuned.model import FrozenStruct

MAX_THREADS = 1024
MAX_REGISTERS = 65536
MAX_CLUSTER_BLOCKS = 16
"""Most blocks of a cluster. More than eight are not portable, and must be allowed for each kernel."""

_WARP = 32
_PARTITIONS = 4
"""Parts of a multiprocessor. Each has a quarter of the registers; a warp's registers are all in one part."""

_REGISTER_UNIT = 8
_WARP_REGISTER_UNIT = 256
"""Registers of a warp are allocated in units of this number: 8 for each of its threads."""

_SHARED_UNIT = 128


class _Multiprocessor(FrozenStruct):
    """Limits of a multiprocessor: warps and blocks that it holds at once, and its shared memory in KiB.

    The system reserves ``reserved_bytes`` of that memory for each block, so that one block can use the rest.
    """

    warps: int
    blocks: int
    shared_kib: int
    reserved_bytes: int = 1024


_MULTIPROCESSORS = {
    75: _Multiprocessor(32, 16, 64, reserved_bytes=0),
    80: _Multiprocessor(64, 32, 164),
    86: _Multiprocessor(48, 16, 100),
    87: _Multiprocessor(48, 16, 164),
    89: _Multiprocessor(48, 24, 100),
    90: _Multiprocessor(64, 32, 228),
    100: _Multiprocessor(64, 32, 228),
    101: _Multiprocessor(48, 24, 228),
    103: _Multiprocessor(64, 32, 228),
    110: _Multiprocessor(48, 24, 228),
    120: _Multiprocessor(48, 24, 100),
    121: _Multiprocessor(48, 24, 100),
}
"""Limits by compute capability."""


def capability(target: str) -> int:
    """Return a target's compute capability: 90 for ``sm_90a``."""
    return int(target.removeprefix("sm_").rstrip("af"))


def why_too_large(target: str, threads: int, registers: int, shared_bytes: int) -> str:
    """Return why a block is too large for a target; empty if it is not. ``shared_bytes`` are static and dynamic."""
    if threads > MAX_THREADS:
        return f"a block has {threads} threads; {target} allows {MAX_THREADS}"
    limits = _MULTIPROCESSORS.get(capability(target))
    most = 0 if limits is None else limits.shared_kib * 1024 - limits.reserved_bytes
    if most and shared_bytes > most:
        return f"a block needs {shared_bytes} bytes of shared memory; {target} has {most}"
    block_registers = _round_up(registers, _REGISTER_UNIT) * _round_up(threads, _WARP)
    if block_registers > MAX_REGISTERS:
        return (
            f"a block of {threads} threads with {registers} registers each needs {block_registers} registers; "
            f"{target} has {MAX_REGISTERS}"
        )
    return ""


def occupancy(target: str, threads: int, registers: int, shared_bytes: int) -> float | None:
    """Return the share of a multiprocessor's warps that blocks fill; ``None`` for an unknown target.

    A block that does not fit a multiprocessor has an occupancy of 0.

    Args:
        target: the architecture, such as ``sm_90a``.
        threads: threads of a block.
        registers: registers of a thread.
        shared_bytes: shared memory of a block, static and dynamic.
    """
    limits = _MULTIPROCESSORS.get(capability(target)) if target.startswith("sm_") else None
    if limits is None or not 0 < threads <= MAX_THREADS:
        return None
    warps = -(-threads // _WARP)
    blocks = min(limits.blocks, limits.warps // warps)
    if registers:
        warp_registers = _round_up(registers * _WARP, _WARP_REGISTER_UNIT)
        blocks = min(blocks, MAX_REGISTERS // _PARTITIONS // warp_registers * _PARTITIONS // warps)
    block_bytes = _round_up(shared_bytes, _SHARED_UNIT) + limits.reserved_bytes
    if block_bytes:
        blocks = min(blocks, limits.shared_kib * 1024 // block_bytes)
    return round(blocks * warps / limits.warps, 4)


def occupancy_fact(target: str, threads: int, registers: int, shared_bytes: int) -> dict[str, float]:
    """Return the occupancy as a fact of a compiled config; empty if it is unknown."""
    share = occupancy(target, threads, registers, shared_bytes)
    return {} if share is None else {"occupancy": share}


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
