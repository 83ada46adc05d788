"""Placement: where a problem's tensors lie in memory, relative to each other and to cache lines.

A kernel sees more of a tensor than its values: its strides, the alignment of its start, and whether it shares memory
with another tensor, as column blocks of a packed matrix do. Launches work on copies in memory of ktuned's own, and the
copies must be alike in all of this. Therefore:

- Tensors that share an allocation are copied into one *span*, at the same distances.
- A span that contains the start of its allocation is aligned there. The allocator has chosen that start, and not the
  kernel file: NumPy's allocations start at any multiple of 16.
- A span of views alone keeps its distance from the last boundary, because the file may have chosen that distance.

The bytes around a span hold a pattern. What a launch has written there is its damage.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

from ktuned.checking.numpy_tensors import ALIGNMENT
from ktuned.checking.tensor_library import find_library
from ktuned.model import FrozenStruct

ADDRESS_PERIOD = 256
"""A GPU's kernels run as fast at an address as at another one with the same remainder, in bytes."""

MOST_UNUSED = 1 << 30
"""Most bytes between two tensors of one span. Views of a mapped file may lie farther apart, and are separate spans."""


PATTERN = 0xA5
"""The byte around tensors: in no dtype does it make a small integer or a common float."""


class Span(FrozenStruct):
    """Tensors that share an allocation.

    Attributes:
        offsets: each tensor's distance from the start of the span in bytes, by name.
        size: the size of the span in bytes.
        remainder: the distance of its start from the last multiple of :data:`ADDRESS_PERIOD`, in bytes.
    """

    offsets: Mapping[str, int]
    size: int
    remainder: int

    @property
    def name(self) -> str:
        """The tensors' names, as messages list them."""
        return " and ".join(self.offsets)

    def is_plain(self, values: Mapping[str, Any]) -> bool:
        """Return whether this is a single tensor without gaps that starts at a boundary.

        An ordinary clone of such a tensor is as good as a placed copy. For a sanitizer it is better, because sanitizers
        know the bounds of allocations but not of their parts.
        """
        sizes = [find_library(values[name]).count_element_bytes(values[name]) for name in self.offsets]
        return len(sizes) == 1 and not self.remainder and sizes[0] == self.size


class Region(NamedTuple):
    """A span's memory: ``size`` bytes at ``start``, in an allocation of its own from ``first`` to ``end``."""

    name: str
    start: int
    size: int
    first: int
    end: int

    def describe_place(self, address: int) -> str:
        """Return where an address beside the span is, as seen from it: ``32 bytes after y``."""
        if address < self.start:
            return f"{self.start - address} bytes before {self.name}"
        return f"{address - self.start - self.size} bytes after {self.name}"


class Damage(FrozenStruct):
    """A write outside the tensors, in words.

    ``is_contained`` is true if the write was undone and cannot have hit anything else. Otherwise the process can no
    longer be trusted.
    """

    message: str
    is_contained: bool

    @classmethod
    def from_place(cls, place: str, *, is_contained: bool) -> Damage:
        """Describe damage by the place of its first byte, such as ``32 bytes after y``."""
        return cls(f"wrote outside its tensors: {place}", is_contained)


def find_spans(tensors: Mapping[str, Any]) -> list[Span]:
    """Return the spans of the tensors that have memory. Tensors that share an allocation are in one span."""
    extents = {name: find_library(tensor).find_extent(tensor) for name, tensor in tensors.items()}
    owners = {name: find_library(tensor).find_allocation(tensor) for name, tensor in tensors.items()}
    spans = []
    for names in _group_by_owner(owners, extents):
        start = min(extents[name][0] for name in names)
        end = max(sum(extents[name]) for name in names)
        whole = [owners[name][0] for name in names if owners[name] == extents[name]]
        remainder = (start - whole[0] if whole else start) % ADDRESS_PERIOD
        spans.append(Span({name: extents[name][0] - start for name in names}, end - start, remainder))
    return spans


def make_single_span(name: str, tensor: Any) -> Span:
    """Return the span of a tensor alone, as if it had its own allocation."""
    return Span({name: 0}, find_library(tensor).find_extent(tensor)[1], 0)


def place_without_guards(span: Span, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of a span's tensors in an allocation on the CPU without guards."""
    memory = (ctypes.c_ubyte * (span.size + 2 * ADDRESS_PERIOD))()
    first = -ctypes.addressof(memory) % ALIGNMENT + span.remainder
    return {
        name: find_library(values[name]).copy_into_memory(memory, first + offset, values[name])
        for name, offset in span.offsets.items()
    }


def _group_by_owner(owners: Mapping[str, tuple[int, int]], extents: Mapping[str, tuple[int, int]]) -> list[list[str]]:
    """Return the names grouped by allocation; groups, and the names in each, are in the order of ``owners``."""
    groups: list[list[str]] = []
    end, owner_end = 0, 0
    for name in sorted(owners, key=lambda name: (owners[name][0], extents[name][0])):
        start, size = extents[name]
        is_near = start <= end + MOST_UNUSED
        if groups and owners[name][0] < owner_end and is_near:
            groups[-1].append(name)
            end = max(end, start + size)
        else:
            groups.append([name])
            end = start + size
        owner_end = max(owner_end, sum(owners[name]))
    # Messages list tensors as the kernel file does.
    order = {name: place for place, name in enumerate(owners)}
    return sorted(([*sorted(names, key=order.__getitem__)] for names in groups), key=lambda names: order[names[0]])
