"""Reads the kernels in CUDA's machine code, and their resources, from the cubin (an ELF file) itself."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Kernel:
    """One kernel of a cubin: the resources of a thread, and of a block without its dynamic shared memory.

    ``threads`` is the number of threads of a block, ``None`` if only the launch decides it. ``stack_bytes`` is local
    memory, which has spilled registers.
    """

    name: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int | None


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
    sections = _read_sections(cubin)
    registers: dict[int, int] = {}
    stacks: dict[int, int] = {}
    for number, values in _read_attributes(cubin, sections.get(".nv.info", (0, 0))):
        if number in (_REGISTERS, _FRAME_SIZE) and len(values) == 2:
            (registers if number == _REGISTERS else stacks)[values[0]] = values[1]
    symbols = _read_symbols(cubin, sections)
    reserved = _RESERVED_SHARED_BYTES if ".nv.shared.reserved.0" in sections else 0
    kernels_found = []
    for section in sections:
        # Every kernel has a constant bank for its parameters; device functions have none.
        name = section.removeprefix(".nv.constant0.")
        if name == section:
            continue
        required = dict(_read_attributes(cubin, sections.get(f".nv.info.{name}", (0, 0)))).get(_REQUIRED_THREADS)
        index = symbols.get(name, -1)
        kernels_found.append(
            Kernel(
                name=name,
                registers=registers.get(index, 0),
                stack_bytes=stacks.get(index, 0),
                shared_bytes=max(0, sections.get(f".nv.shared.{name}", (0, 0))[1] - reserved),
                threads=required[0] * required[1] * required[2] if required else None,
            )
        )
    return kernels_found


def _read_sections(cubin: bytes) -> dict[str, tuple[int, int]]:
    """Return the offset and size of each section by name; ``.nv.shared`` takes no space in the file."""
    fields = _HEADER.unpack_from(cubin)
    start, size, count, names = fields[5], fields[10], fields[11], fields[12]
    headers = [_SECTION.unpack_from(cubin, start + index * size) for index in range(count)]
    text = headers[names][4]
    return {_read_text(cubin, text + header[0]): (header[4], header[5]) for header in headers}


def _read_symbols(cubin: bytes, sections: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Return the symbols' indices by name."""
    (start, size), (text, _) = sections[".symtab"], sections[".strtab"]
    entries: Sequence[tuple[int, ...]] = list(_SYMBOL.iter_unpack(cubin[start : start + size]))
    return {_read_text(cubin, text + entry[0]): index for index, entry in enumerate(entries)}


def _read_attributes(cubin: bytes, section: tuple[int, int]) -> Iterator[tuple[int, tuple[int, ...]]]:
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


def _read_text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
