"""A fault at a guard page: the frame that a dying worker sends, and its meaning in words. No IO.

The frame is prepared before any launch. The signal handler cannot call Python: it only fills in the address and the
CPU's error code, and writes the frame to the daemon. So both are raw bytes in the machine's order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ktuned.ipc import frames
from ktuned.ipc.codec import InvalidMessage, from_plain, to_plain
from ktuned.model import Record, record

MAX_FAULT_BYTES = 32 * 1024
"""Half of what a pipe holds, so that the dying worker need not wait. It is enough to name some 500 tensors."""

_FAULT = "fault"
_ADDRESS = b"\xffaddress"
_ERROR = b"\xfferror\xff\xff"
_WRITE = 2
"""Bit 1 of the error code of a page fault on x86 (Intel SDM volume 3, 4.7)."""


@record
class Region(Record):
    """A tensor's memory: ``size`` bytes at ``start``, in an allocation of its own from ``first`` to ``end``."""

    name: str
    start: int
    size: int
    first: int
    end: int


@record
class MemoryFault(Record):
    """The ``address`` that a worker could not access, the CPU's ``error`` code, and the worker's tensors."""

    address: int
    error: int
    regions: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class FaultFrame:
    """A frame that can be written once eight bytes are filled in at each of two offsets."""

    data: bytes
    address_at: int
    error_at: int


def prepare_fault(regions: Iterable[Region]) -> FaultFrame:
    """Return a frame that names these tensors, or the first of them if it has no room for all."""
    kept = [to_plain(region) for region in regions]
    while len(data := _encode_regions(kept)) > MAX_FAULT_BYTES:
        kept = kept[: len(kept) // 2]
    return FaultFrame(data, data.index(_ADDRESS), data.index(_ERROR))


def _encode_regions(regions: list[dict[str, Any]]) -> bytes:
    # The regions come last, so that the other fields have the same places in every frame.
    return frames.encode({_FAULT: {"address": _ADDRESS, "error": _ERROR, "regions": regions}})


def decode_fault(value: object) -> MemoryFault:
    """Return the fault that a frame's map holds.

    Raises:
        InvalidMessage: it holds none, because user code in a worker may write to the worker's pipe.
    """
    match value:
        case {"address": bytes(address), "error": bytes(error), "regions": regions}:
            numbers = {"address": int.from_bytes(address, sys.byteorder), "error": int.from_bytes(error, sys.byteorder)}
            return from_plain(MemoryFault, {**numbers, "regions": regions})
    raise InvalidMessage("a fault without an address")


def describe_fault(fault: MemoryFault) -> str:
    """Return ``wrote outside its tensors: 32 bytes after y``; empty if no tensor's allocation holds the address."""
    for region in fault.regions:
        if region.first <= fault.address < region.end:
            verb = "wrote" if fault.error & _WRITE else "read"
            return f"{verb} outside its tensors: {describe_place(region, fault.address)}"
    return ""


def describe_place(region: Region, address: int) -> str:
    """Return where an address is, as seen from a tensor: ``32 bytes after y``."""
    if address < region.start:
        return f"{region.start - address} bytes before {region.name}"
    if address < region.start + region.size:
        return f"at byte {address - region.start} of {region.name}"
    return f"{address - region.start - region.size} bytes after {region.name}"
