from __future__ import annotations

import pytest

from ktuned.backends.launch_limits import occupancy, occupancy_fact


@pytest.mark.parametrize(
    ("target", "threads", "registers", "shared_bytes", "share"),
    [
        # 64 warps in 8 blocks of 256 threads; 32 registers a thread are a multiprocessor's 65,536.
        ("sm_90a", 256, 32, 0, 1.0),
        ("sm_80", 256, 32, 0, 1.0),
        # Registers: 33 are allocated as 40, of which a quarter of the register file holds 12 warps.
        ("sm_90a", 256, 33, 0, 0.75),
        ("sm_90a", 256, 64, 0, 0.5),
        ("sm_90a", 128, 255, 0, 0.125),
        ("sm_90a", 1024, 64, 0, 0.5),
        # Shared memory: 228 KiB hold two blocks of 100 KiB, and of 113 KiB with the 1 KiB that each is reserved.
        ("sm_90a", 256, 32, 100 * 1024, 0.25),
        ("sm_90a", 256, 32, 113 * 1024, 0.25),
        ("sm_90a", 256, 32, 113 * 1024 + 1, 0.125),
        # Blocks: 32 of one warp each.
        ("sm_90a", 32, 16, 0, 0.5),
        ("sm_86", 32, 16, 0, 0.3333),
        # 48 warps: a block of 1,024 threads leaves a third of them free.
        ("sm_89", 1024, 32, 0, 0.6667),
        ("sm_75", 1024, 32, 64 * 1024, 1.0),
        # No block fits.
        ("sm_89", 256, 32, 120 * 1024, 0.0),
        ("sm_90a", 1024, 128, 0, 0.0),
        # Zero registers means that the number is unknown.
        ("sm_90a", 256, 0, 0, 1.0),
        ("sm_999", 256, 32, 0, None),
        ("native-9c48", 256, 32, 0, None),
        ("sm_90a", 0, 32, 0, None),
        ("sm_90a", 2048, 32, 0, None),
    ],
)
def test_the_scarcest_resource_limits_occupancy(
    target: str, threads: int, registers: int, shared_bytes: int, share: float | None
) -> None:
    """Threads, blocks, registers and shared memory are limits; an unknown occupancy is left out."""
    assert occupancy(target, threads, registers, shared_bytes) == share
    assert occupancy_fact(target, threads, registers, shared_bytes) == ({} if share is None else {"occupancy": share})
