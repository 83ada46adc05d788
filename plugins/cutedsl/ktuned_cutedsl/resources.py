"""Resources of a compiled function's kernels, and its launches, read from the cubin and the host code."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

_ELF_MAGIC = b"\x7fELF"
_CUDA_MACHINE = 190
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_SIZED = 4
_FRAME_SIZE = 0x11
_REQUIRED_THREADS = 0x10
_REGISTERS = 0x2F
"""Attributes in ``.nv.info``, by cuobjdump's names: EIATTR_FRAME_SIZE, EIATTR_REQNTID, EIATTR_REGCOUNT. Each is a
format byte, its number and a length, or a value in place of the length."""

_RESERVED_SHARED_BYTES = 1024
"""Reserved bytes at the start of every kernel's ``.nv.shared`` from sm_90 on; not part of a block's limit."""

LAUNCH_CONFIG = "!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>"
"""The ``cudaLaunchConfig_t`` of the lowered host code: grid, block, shared bytes, stream, attributes, their count."""

LAUNCH_ATTRIBUTE = "!llvm.struct<(i32, array<4 x i8>, array<64 x i8>)>"
_CLUSTER_ATTRIBUTE = 4
_DIMENSIONS = "!llvm.struct<(i32, i32, i32)>"


@dataclass(frozen=True)
class Kernel:
    """One kernel of a cubin: the resources of a thread, and of a block without its dynamic shared memory.

    ``threads`` is the number of threads of a block, or ``None`` if only the launch defines it. ``stack_bytes`` is local
    memory, which holds spilled registers.
    """

    name: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int | None


@dataclass
class Launch:
    """One launch in the host code; ``None`` for values that only the call defines."""

    grid: list[int | None] = field(default_factory=lambda: [None] * 3)
    block: list[int | None] = field(default_factory=lambda: [None] * 3)
    cluster: list[int | None] = field(default_factory=lambda: [1] * 3)
    shared_bytes: int | None = None


def cubins(data: bytes) -> Iterator[bytes]:
    """Yield the cubins in an object file."""
    position = data.find(_ELF_MAGIC)
    while position >= 0:
        if len(data) - position >= _HEADER.size:
            fields = _HEADER.unpack_from(data, position)
            if fields[1] == _CUDA_MACHINE:
                end = max(fields[5] + fields[10] * fields[11], fields[4] + fields[8] * fields[9])
                yield data[position : position + end]
        position = data.find(_ELF_MAGIC, position + 1)


def kernels(cubin: bytes) -> list[Kernel]:
    """Return the kernels of a cubin, in the order of their sections."""
    sections = _sections(cubin)
    registers: dict[int, int] = {}
    stacks: dict[int, int] = {}
    for number, values in _attributes(cubin, sections.get(".nv.info", (0, 0))):
        if number in (_REGISTERS, _FRAME_SIZE) and len(values) == 2:
            (registers if number == _REGISTERS else stacks)[values[0]] = values[1]
    symbols = _symbols(cubin, sections)
    reserved = _RESERVED_SHARED_BYTES if ".nv.shared.reserved.0" in sections else 0
    found = []
    for section in sections:
        # Every kernel has a constant bank for its parameters; device functions have none.
        name = section.removeprefix(".nv.constant0.")
        if name == section:
            continue
        required = dict(_attributes(cubin, sections.get(f".nv.info.{name}", (0, 0)))).get(_REQUIRED_THREADS)
        index = symbols.get(name, -1)
        found.append(
            Kernel(
                name=name,
                registers=registers.get(index, 0),
                stack_bytes=stacks.get(index, 0),
                shared_bytes=max(0, sections.get(f".nv.shared.{name}", (0, 0))[1] - reserved),
                threads=required[0] * required[1] * required[2] if required else None,
            )
        )
    return found


def launches(ir_module: Any) -> list[Launch]:
    """Return the launches of a compiled function's host code, from its module in MLIR's LLVM dialect.

    None if this CuTe DSL does not offer it: its MLIR bindings are private.
    """
    try:
        ir: Any = import_module("cutlass._mlir.ir")
        advance = ir.WalkResult.ADVANCE
    except (ImportError, AttributeError):
        return []
    found: list[Launch] = []
    bases: dict[Any, Launch] = {}
    attribute: int | None = None

    def visit(operation: Any) -> Any:
        nonlocal attribute
        for kind, base, path, value in _stored(operation):
            if kind == LAUNCH_CONFIG and path[:2] in ((0, 0), (0, 1)) and len(path) == 3:
                if base not in bases:
                    bases[base] = Launch()
                    found.append(bases[base])
                (bases[base].grid, bases[base].block)[path[1]][path[2]] = value
            elif kind == LAUNCH_CONFIG and path == (0, 2) and base in bases:
                bases[base].shared_bytes = value
            elif kind == LAUNCH_ATTRIBUTE and path == (0, 0):
                attribute = value
            elif kind == _DIMENSIONS and attribute == _CLUSTER_ATTRIBUTE and found:
                found[-1].cluster[path[1]] = value
        return advance

    with ir_module.context:
        ir_module.operation.walk(visit)
    return found


def _stored(operation: Any) -> Iterator[tuple[str, Any, tuple[int, ...], int | None]]:
    """Yield the stores into structs: type, pointer, path of the field, and the value if it is constant."""
    if operation.name != "llvm.store":
        return
    place = operation.operands[1].owner
    if getattr(place, "name", "") != "llvm.getelementptr":
        return
    maker = operation.operands[0].owner
    is_constant = getattr(maker, "name", "") == "llvm.mlir.constant"
    constant = getattr(maker.attributes["value"], "value", None) if is_constant else None
    kind = place.attributes["elem_type"]
    yield (
        str(getattr(kind, "value", kind)),
        place.operands[0],
        tuple(place.attributes["rawConstantIndices"]),
        constant if isinstance(constant, int) else None,
    )


def _sections(cubin: bytes) -> dict[str, tuple[int, int]]:
    """Return the offset and size of each section by name; ``.nv.shared`` takes no space in the file."""
    fields = _HEADER.unpack_from(cubin)
    start, size, count, names = fields[5], fields[10], fields[11], fields[12]
    headers = [_SECTION.unpack_from(cubin, start + index * size) for index in range(count)]
    text = headers[names][4]
    return {_text(cubin, text + header[0]): (header[4], header[5]) for header in headers}


def _symbols(cubin: bytes, sections: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Return the symbols' indices by name."""
    (start, size), (text, _) = sections[".symtab"], sections[".strtab"]
    entries: Sequence[tuple[int, ...]] = list(_SYMBOL.iter_unpack(cubin[start : start + size]))
    return {_text(cubin, text + entry[0]): index for index, entry in enumerate(entries)}


def _attributes(cubin: bytes, section: tuple[int, int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the attributes of a ``.nv.info`` section, each as its number and its 32-bit words."""
    position, end = section[0], sum(section)
    while position + 4 <= end:
        form, number, size = struct.unpack_from("<BBH", cubin, position)
        position += 4
        if form == _SIZED:
            yield number, struct.unpack_from(f"<{size // 4}I", cubin, position)
            position += size
        else:
            yield number, ()


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
