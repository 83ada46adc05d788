"""A kernel's occupancy: the share of a multiprocessor's warps that its blocks can fill. No IO.

The figures are from the CUDA C++ Programming Guide, *Technical Specifications per Compute Capability*, the rules from
CUDA's own occupancy calculator (``cuda_occupancy.h``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ktuned.backends.launch_limits import MAX_REGISTERS, MAX_THREADS, capability

_WARP: Final = 32
_PARTITIONS: Final = 4
"""A multiprocessor has four parts with a quarter of the registers each; a warp's registers are all in one part."""

_REGISTER_UNIT: Final = 256
"""A warp's registers are allocated in units of 256."""

_FIRST_WITH_RESERVED: Final = 80
_RESERVED_SHARED_BYTES: Final = 1024
"""From compute capability 8.0 on the system reserves 1 KiB of shared memory for each block."""

_SHARED_UNIT: Final = 128


@dataclass(frozen=True, slots=True)
class _Multiprocessor:
    """Limits of a multiprocessor: warps and blocks that it holds at once, and its shared memory in KiB."""

    warps: int
    blocks: int
    shared_kib: int


_MULTIPROCESSORS: Final = {
    75: _Multiprocessor(32, 16, 64),
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
        of_warp = _round_up(registers * _WARP, _REGISTER_UNIT)
        blocks = min(blocks, MAX_REGISTERS // _PARTITIONS // of_warp * _PARTITIONS // warps)
    reserved = _RESERVED_SHARED_BYTES if capability(target) >= _FIRST_WITH_RESERVED else 0
    of_block = _round_up(shared_bytes, _SHARED_UNIT) + reserved
    if of_block:
        blocks = min(blocks, limits.shared_kib * 1024 // of_block)
    return round(blocks * warps / limits.warps, 4)


def occupancy_fact(target: str, threads: int, registers: int, shared_bytes: int) -> dict[str, float]:
    """Return the occupancy as a fact of a compiled config; empty if it is unknown."""
    share = occupancy(target, threads, registers, shared_bytes)
    return {} if share is None else {"occupancy": share}


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
