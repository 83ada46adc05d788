"""Tensors on the CPU between guard pages.

The layout of one span::

    guard pages | slack | span | slack | guard pages
    no access     pattern        pattern  no access

- Guard pages cannot be accessed: a read or write there stops the process at once.
- The span ends as close to the guard behind it as its alignment allows. The slack between them, and the one before the
  span, hold a pattern that is compared after a launch.
- Kept copies are read-only once they are sealed.

So any damage found here is contained: only slack can be overwritten without stopping the process.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from ktuned.checking.numpy_tensors import ALIGNMENT
from ktuned.checking.placement import PATTERN, Damage, Region, Span, make_single_span
from ktuned.checking.tensor_library import find_library

GUARD_BYTES = 16 << 20
"""Width of each guard, wider than a row or a tile. It costs addresses but no memory."""

_NO_ACCESS = 0
_READ, _WRITE = mmap.PROT_READ, mmap.PROT_WRITE
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class GuardPages:
    """Places a problem's tensors on the CPU between guard pages."""

    def __init__(self) -> None:
        self._placed: dict[str, _Pages] = {}
        self._kept: dict[str, _Pages] = {}
        self._is_sealed = False

    def place_span(self, span: Span, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of a span's tensors, with one guard before and one after all of them."""
        self._placed[span.name] = pages = _Pages(span)
        return {
            name: find_library(values[name]).copy_into_memory(pages.memory, offset, values[name])
            for name, offset in span.offsets.items()
        }

    def keep_copy(self, name: str, value: Any) -> Any:
        """Return a copy that is read-only once it is sealed."""
        self._kept[name] = pages = _Pages(make_single_span(name, value))
        self._is_sealed = False
        return find_library(value).copy_into_memory(pages.memory, 0, value)

    def seal_copies(self) -> None:
        """Make the kept copies read-only."""
        if not self._is_sealed:
            self._set_access(_READ)
        self._is_sealed = True

    def unseal_copies(self) -> None:
        """Make the kept copies writable."""
        if self._is_sealed:
            self._set_access(_READ | _WRITE)
        self._is_sealed = False

    def _set_access(self, access: int) -> None:
        for pages in self._kept.values():
            pages.set_access(access)

    def make_intact_flag(self) -> None:
        """Return nothing: there is no device to wait for."""

    def find_damage(self) -> Damage | None:
        """Return the place nearest to a tensor at which slack was overwritten, and fill the slack again."""
        places = [
            pages.region.describe_place(address)
            for pages in self._placed.values()
            if (address := pages.refill_slacks())
        ]
        return Damage.from_place(places[0], is_contained=True) if places else None

    def list_guarded_regions(self) -> Iterable[Region]:
        """Return all allocations, placed and kept."""
        return [pages.region for pages in (*self._placed.values(), *self._kept.values())]


class _Pages:
    """The pages of one span, which live as long as a tensor refers to them."""

    def __init__(self, span: Span) -> None:
        name, size = span.name, span.size
        body = _round_up(span.remainder + size, ALIGNMENT)
        self._inner_size = _round_up(body, mmap.PAGESIZE)
        total = self._inner_size + 2 * GUARD_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        first = _libc.mmap(None, total, _NO_ACCESS, flags, -1, 0)
        if first == _FAILED:
            raise RuntimeError(f"cannot allocate {total} bytes for {name}")
        self._inner = first + GUARD_BYTES
        start = self._inner + self._inner_size - body + span.remainder
        self.memory = (ctypes.c_ubyte * size).from_address(start)
        # Tensors keep the array alive, and the array its pages. Not at exit: tensors may still be in use then.
        weakref.finalize(self.memory, _libc.munmap, first, total).atexit = False
        self.region = Region(name, start, size, first, first + total)
        self.set_access(_READ | _WRITE)
        self._slacks = ((self._inner, start - self._inner), (start + size, body - span.remainder - size))
        self.refill_slacks()

    def set_access(self, access: int) -> None:
        """Set the access to the pages between the guards.

        Raises:
            RuntimeError: there is no memory for them.
        """
        if _libc.mprotect(self._inner, self._inner_size, access):
            raise RuntimeError(f"cannot allocate {self._inner_size} bytes for {self.region.name}")

    def refill_slacks(self) -> int:
        """Fill both slacks with the pattern; return the address where damage nearest to the span began, or 0."""
        damaged, pattern = 0, bytes([PATTERN])
        for start, size in self._slacks:
            found = ctypes.string_at(start, size)
            if found != pattern * size:
                is_before = start == self._inner
                nearest_run = (
                    found.rstrip(pattern).rfind(pattern) + 1 if is_before else size - len(found.lstrip(pattern))
                )
                damaged = damaged or start + nearest_run
                ctypes.memset(start, PATTERN, size)
        return damaged


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
