"""Reads the resources of compiled kernels from the assembler's report (``ptxas -v``)."""

from __future__ import annotations

import re

import msgspec

from ktuned.model import FrozenStruct

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


class Resources(FrozenStruct):
    """One kernel's registers for a thread, stack and spills in bytes for a thread, static shared memory in bytes."""

    registers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    static_shared_bytes: int = 0

    def to_facts(self) -> dict[str, int]:
        """Return them as facts about an artifact."""
        return msgspec.structs.asdict(self)


def parse(log: str) -> dict[str, Resources]:
    """Return the resources of each kernel in a log by symbol; device functions that were not inlined are left out."""
    values_by_kernel: dict[str, dict[str, int]] = {}
    entry = function = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
            values_by_kernel[entry] = {}
        elif match := _FUNCTION.search(line):
            function = match[1]
        elif (match := _STACK.search(line)) and function == entry and entry:
            stack, stores, loads = map(int, match.groups())
            values_by_kernel[entry] |= {"stack_bytes": stack, "spill_store_bytes": stores, "spill_load_bytes": loads}
        elif (match := _REGISTERS.search(line)) and entry:
            values_by_kernel[entry]["registers"] = int(match[1])
            if shared := _SHARED.search(line):
                values_by_kernel[entry]["static_shared_bytes"] = int(shared[1])
    return {symbol: Resources(**values) for symbol, values in values_by_kernel.items()}
