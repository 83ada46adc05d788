"""Tensors on a GPU between guard bands, and checksums of all that ktuned owns there.

A GPU has no guard pages: an access beyond a tensor hits whatever lies there. So each tensor has an allocation of its
own, with a band of a known pattern on both sides, and after a launch the sums of all bands, and of the copies that no
launch may change, are compared with what they were. All of it is done on the device; one short vector comes back.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ktuned.ipc import Region
from ktuned.worker.damage import PATTERN, Damage
from ktuned.worker.placement import Span, make_own_span

if TYPE_CHECKING:
    import torch

BAND_BYTES = 1 << 20
"""Width of the band on either side, in whole words: a row or a tile too many lands in it."""

_WORD = 8
"""Sums are of words of 8 bytes, modulo 2^64: a change goes unseen only if it leaves the sum as it was."""


class DeviceMemory:
    """The tensors of one problem that are on a GPU."""

    def __init__(self) -> None:
        self._placed: dict[str, _Banded] = {}
        self._kept: dict[str, _Banded] = {}
        self._sums: torch.Tensor | None = None

    def place_span(self, span: Span, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of the tensors of a span, between the bands that they share."""
        self._placed[span.name] = banded = _Banded(span, values)
        self._sums = None
        return banded.tensors

    def keep_copy(self, name: str, value: Any) -> Any:
        """Return a copy whose bytes are watched once it is sealed."""
        self._kept[name] = banded = _Banded(make_own_span(name, value), {name: value})
        self._sums = None
        return banded.tensors[name]

    def seal_copies(self) -> None:
        """Remember the sums of all bands and of the copies that are kept."""
        if self._sums is None and (self._placed or self._kept):
            self._sums = self._sum_bands_and_copies()

    def unseal_copies(self) -> None:
        """Forget the sums."""
        self._sums = None

    def _sum_bands_and_copies(self) -> torch.Tensor:
        """Return the sums of all bands, and after them those of the kept copies.

        Each launch of torch's costs as much as summing ten bands: those of one length are summed by one, and each sum
        is written to its place.
        """
        import torch

        placed, kept = self._placed.values(), self._kept.values()
        bands = [band for banded in placed for band in banded.bands]
        sharing = [banded for banded in placed if banded.beyond]
        first = len(bands) + len(sharing)
        sums = torch.empty(first + len(kept), dtype=torch.int64, device=next(iter((*placed, *kept))).words.device)
        places = sums.unbind()
        if bands:
            torch.sum(torch.stack(bands), dim=1, out=sums[: len(bands)])
        for banded, place in zip(sharing, places[len(bands) : first], strict=True):
            torch.bitwise_and(banded.last, banded.beyond, out=place)
        for banded, place in zip(kept, places[first:], strict=True):
            torch.sum(banded.words, dim=0, out=place)
        return sums

    def make_intact_flag(self) -> torch.Tensor | None:
        """Return a flag on the device that all bands and kept copies are as they were sealed."""
        return None if self._sums is None else (self._sum_bands_and_copies() == self._sums).all()

    def find_damage(self) -> Damage | None:
        """Return which byte nearest to a tensor was overwritten, and write the bands again.

        What is not a band of a placed tensor is left as it is, as is anything beyond a band that was overwritten to
        its outer end: such damage is not contained.
        """
        # One flag comes back from the device.
        intact = self.make_intact_flag()
        if self._sums is None or intact is None or bool(intact):
            return None
        found = [damage for banded in self._placed.values() if (damage := banded.refill_bands())]
        same = self._sum_bands_and_copies() == self._sums
        if not bool(same.all()):
            # The sums of the kept copies are the last ones.
            index = same[-len(self._kept) :].tolist().index(False)
            return found[0] if found else Damage.at(f"into {list(self._kept)[index]}", is_contained=False)
        is_contained = all(damage.is_contained for damage in found)
        return Damage(found[0].message, is_contained)

    def list_regions(self) -> Iterable[Region]:
        """Return none: nothing here stops a process."""
        return ()


class _Banded:
    """One span in an allocation of its own, between two bands.

    ``last`` is the word in which it ends, ``beyond`` has the bits of it that are not the span's.
    """

    def __init__(self, span: Span, values: Mapping[str, Any]) -> None:
        import torch

        from ktuned.worker.torch_tensors import copy_elements, count_bytes

        self.name = span.name
        # The bytes that keep the span from a boundary are counted to it.
        self._size = span.remainder + span.size
        device = values[next(iter(span.offsets))].device
        total = -(-(self._size + 2 * BAND_BYTES) // _WORD) * _WORD
        self._bytes = torch.full((total,), PATTERN, dtype=torch.uint8, device=device)
        self.words = self._bytes.view(torch.int64)
        band, end = BAND_BYTES // _WORD, -(-(BAND_BYTES + self._size) // _WORD)
        self.bands = self.words[:band], self.words[end : end + band]
        self.last = self.words[end - 1]
        rest = 8 * (self._size % _WORD)
        little = sys.byteorder == "little"
        self.beyond = 0 if not rest else -1 << rest if little else (1 << (8 * _WORD - rest)) - 1
        self.tensors: dict[str, torch.Tensor] = {}
        for name, offset in span.offsets.items():
            value = values[name]
            part = _make_part(self._bytes, BAND_BYTES + span.remainder + offset, count_bytes(value))
            placed = torch.empty(0, dtype=value.dtype, device=device)
            placed.set_(part.untyped_storage(), 0, value.shape, value.stride())
            copy_elements(value, placed)
            self.tensors[name] = placed

    def refill_bands(self) -> Damage | None:
        """Fill both bands again; return the damage nearest to the tensor."""
        end = BAND_BYTES + self._size
        before, after = self._bytes[:BAND_BYTES], self._bytes[end:]
        left = (before != PATTERN).nonzero().flatten()
        right = (after != PATTERN).nonzero().flatten()
        before.fill_(PATTERN)
        after.fill_(PATTERN)
        if right.numel():
            offset = int(right[0])
            is_contained = int(right[-1]) < after.numel() - 1 and not (left.numel() and int(left[0]) == 0)
            return Damage.at(f"{offset} bytes after {self.name}", is_contained=is_contained)
        if left.numel():
            # The nearest bytes without a gap are one write, which began at the first of them.
            gaps = (left.diff() != 1).nonzero().flatten()
            begin = int(left[gaps[-1] + 1] if gaps.numel() else left[0])
            return Damage.at(f"{BAND_BYTES - begin} bytes before {self.name}", is_contained=int(left[0]) > 0)
        return None


def _make_part(memory: torch.Tensor, offset: int, size: int) -> torch.Tensor:
    """Return part of an allocation as a tensor whose storage is that part alone.

    A view would have the whole allocation as its storage, and ``resize_`` would let it grow into the band.
    """
    import torch

    start = memory.data_ptr() + offset
    if memory.device.type == "cpu":
        part = (ctypes.c_ubyte * size).from_address(start)
        part.memory = memory  # type: ignore[attr-defined]
        return torch.frombuffer(part, dtype=torch.uint8)
    return torch.as_tensor(_Span(memory, start, size), device=memory.device)


class _Span:
    """Part of an allocation by the CUDA array interface, which torch takes without copying and keeps alive."""

    def __init__(self, memory: torch.Tensor, start: int, size: int) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (start, False), "version": 2}
