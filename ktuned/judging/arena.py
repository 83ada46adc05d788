"""The memory that the referee and a candidate's process have in common: many *sets* of a problem's tensors.

Each launch of a candidate works on a set of its own, which has inputs that it has not seen, and poisoned outputs::

    set 0                                        set 1
    guard | slack | tensor | guard | slack | ... guard | ...

Nothing is copied in the candidate's process: the referee writes the inputs of a set into it, and reads the outputs from
it, while the candidate is stopped. A tensor lies at the end of its pages, as under ``tune``, and the pages between
tensors hold a pattern, which the referee compares. Each process maps the memory at an address of its own, drawn at
random.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktuned.model import FrozenStruct

if TYPE_CHECKING:
    from ktuned.checking import Span, TensorLibrary

SETS_BYTES = 4 << 20
"""Memory for small sets, which stays in the last cache while the referee writes it and the candidate reads it."""

FEW_SETS, FEW_SETS_BYTES = 4, 16 << 20
"""So many sets may take more memory. A single set may take any."""

MAX_SETS = 1024
MOST_IN_GROUP, GROUP_BYTES = 16, 1 << 14


_BODY, _GPU_BODY = 64, 512
"""Alignment of the end of a span: a cache line, and what a GPU's allocators give."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class Field(FrozenStruct):
    """A tensor's place in each set; ``start`` is that of its first byte, ``first`` that of its first element.

    Strides are in elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    size: int
    first: int


class Layout(FrozenStruct):
    """Where everything lies in a set.

    Attributes:
        fields: the tensors.
        bodies: the places and sizes of memory that launches work on.
        set_bytes: distance between two sets.
        sets: how many there are.
        is_touched: whether each set is brought into a core's own cache before a launch, where it is under ``tune``.
    """

    fields: tuple[Field, ...]
    bodies: tuple[tuple[int, int], ...]
    set_bytes: int
    sets: int
    is_touched: bool

    @property
    def group(self) -> int:
        """How many sets are touched together before their launches: they fit into the cache next to the core."""
        return max(1, min(MOST_IN_GROUP, GROUP_BYTES // max(self.working_bytes, 1)))

    @property
    def working_bytes(self) -> int:
        """How much memory a launch works on."""
        return sum(size for _, size in self.bodies)

    @property
    def total_bytes(self) -> int:
        """The size of the whole memory."""
        return self.sets * self.set_bytes

    def list_gaps(self) -> Iterator[tuple[int, int]]:
        """Yield beginning and end of each part of a set that no launch may write to."""
        end = 0
        for start, size in sorted(self.bodies):
            yield end, start
            end = start + size


def plan_layout(
    values: Mapping[str, Any], spans: Iterable[Span], library: TensorLibrary, gpu_bytes: int | None = None
) -> Layout:
    """Return the layout for a problem's tensors, of which those in one span share memory.

    ``gpu_bytes`` is how much memory a GPU has for the sets.

    Raises:
        ValueError: a tensor is in no span, so that it cannot be placed; the message names it.
    """
    fields: dict[str, Field] = {}
    bodies = []
    end = 0
    is_gpu = gpu_bytes is not None
    for span in spans:
        body = _round_up(span.remainder + span.size, _GPU_BODY if is_gpu else _BODY)
        # A page of the pattern, and then the pages of the span.
        end += mmap.PAGESIZE + _round_up(body, mmap.PAGESIZE)
        bodies.append((end - body, body))
        for name, offset in span.offsets.items():
            start = end - body + span.remainder + offset
            dtype, shape, strides, first = library.describe_elements(values[name])
            size = library.find_extent(values[name])[1]
            fields[name] = Field(name, dtype, shape, strides, start, size, start + first)
    for name in sorted(values.keys() - fields.keys()):
        dtype, shape, strides, _ = library.describe_elements(values[name])
        if 0 not in shape:
            raise ValueError(name)
        # A tensor without elements may be anywhere.
        fields[name] = Field(name, dtype, shape, strides, 0, 0, 0)
    few = 1 if is_gpu else min(FEW_SETS, FEW_SETS_BYTES // max(end, 1))
    sets = max(1, few, min(MAX_SETS, (gpu_bytes or SETS_BYTES) // max(end, 1)))
    is_touched = not is_gpu and sum(size for _, size in bodies) <= read_cache_bytes(2)
    return Layout(tuple(fields[name] for name in values), tuple(bodies), max(end, mmap.PAGESIZE), sets, is_touched)


def read_cache_bytes(level: int) -> int:
    """Return the size of a core's cache of a level, or of one below it; 1 MiB if the system does not tell."""
    sizes = {}
    for directory in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with suppress(OSError, ValueError):
            kibibytes = (directory / "size").read_text().strip().removesuffix("K")
            sizes[int((directory / "level").read_text())] = int(kibibytes) << 10
    return max((size for found, size in sizes.items() if found <= level), default=1 << 20)


class Arena:
    """The memory, as one process has mapped it.

    Args:
        layout: what it holds.
        library: makes the tensors.
        descriptor: the memory's file; None makes a new one.
    """

    def __init__(self, layout: Layout, library: TensorLibrary, descriptor: int | None = None) -> None:
        self.layout = layout
        self._library = library
        size = layout.total_bytes
        if descriptor is None:
            descriptor = os.memfd_create("tensors")
            os.ftruncate(descriptor, size)
            weakref.finalize(self, os.close, descriptor)
        self.descriptor = descriptor
        # Any free address will do if the one that was drawn is not free.
        hint = 0x1000_0000_0000 + (secrets.randbelow(1 << 30) << 12)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        address = _libc.mmap(hint, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
        if address == _FAILED:
            raise MemoryError(f"cannot map {size} bytes")
        self.memory: Any = (ctypes.c_ubyte * size).from_address(address)
        # Tensors keep the array alive, and the array its pages. Not at exit: tensors may still be in use then.
        weakref.finalize(self.memory, _libc.munmap, address, size).atexit = False

    def fill_memory(self, byte: int) -> None:
        """Fill the whole memory."""
        ctypes.memset(self.memory, byte, self.layout.total_bytes)

    def view_set(self, place: int) -> dict[str, Any]:
        """Return the tensors of one set, by name."""
        base = place * self.layout.set_bytes
        return {
            field.name: self._library.view_memory(
                self.memory, base + field.start, field.size, field.dtype, field.shape, field.strides,
                field.first - field.start,
            )
            for field in self.layout.fields
        }  # fmt: skip

    def view_sets(self, name: str, count: int) -> Any:
        """Return one tensor of the first ``count`` sets, as a tensor whose first axis is the set."""
        (field,) = (one for one in self.layout.fields if one.name == name)
        step = self.layout.set_bytes // self._library.count_item_bytes(field.dtype)
        size = (count - 1) * self.layout.set_bytes + field.size
        return self._library.view_memory(
            self.memory, field.start, size, field.dtype, (count, *field.shape), (step, *field.strides),
            field.first - field.start,
        )  # fmt: skip

    def view_bytes(self, count: int, begin: int, end: int) -> Any:
        """Return some bytes of the first ``count`` sets, by their places in a set."""
        step = self.layout.set_bytes
        size = (count - 1) * step + end - begin
        return self._library.view_memory(self.memory, begin, size, "uint8", (count, end - begin), (step, 1), 0)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
