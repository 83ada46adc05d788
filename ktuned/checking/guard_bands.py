"""Tensors on a GPU between guard bands, and checksums of everything that ktuned owns there.

A GPU has no guard pages: an access beyond a tensor hits whatever lies there. So each span has an allocation of its own
with a band of a known pattern on both sides. After a launch, the sums of all bands and of the kept copies are compared
with the sums from before. This happens on the device, and one flag comes back.

Three kinds of damage are told apart:

================================  ====================================================================================
in a band, not to its outer end   contained: the band is filled again, and nothing else can have been hit
up to a band's outer end          not contained: the write may have continued beyond the band
in a kept copy                    not contained: the inputs or expected outputs are spoilt
================================  ====================================================================================

A read beyond a tensor is not noticed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ktuned.checking.placement import PATTERN, Damage, Span, make_single_span

if TYPE_CHECKING:
    import torch

BAND_BYTES = 1 << 20
"""Width of the band on either side, a multiple of a word: a write that is one row or tile too long ends within it."""

_WORD = 8
"""Bytes of a word. Sums are of words, modulo 2^64; a change that leaves the sum equal is not noticed."""


class GuardBands:
    """Places a problem's tensors on a GPU between guard bands."""

    def __init__(self) -> None:
        self._placed: dict[str, _Banded] = {}
        self._kept: dict[str, _Banded] = {}
        self._sums: torch.Tensor | None = None

    def place_span(self, span: Span, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of a span's tensors, with one band before and one after all of them."""
        self._placed[span.name] = banded = _Banded(span, values)
        self._sums = None
        return banded.tensors

    def keep_copy(self, name: str, value: Any) -> Any:
        """Return a copy whose sum is watched once it is sealed."""
        self._kept[name] = banded = _Banded(make_single_span(name, value), {name: value})
        self._sums = None
        return banded.tensors[name]

    def seal_copies(self) -> None:
        """Remember the sums of all bands and kept copies."""
        if self._sums is None and (self._placed or self._kept):
            self._sums = self._sum_bands_and_copies()

    def unseal_copies(self) -> None:
        """Forget the sums."""
        self._sums = None

    def _sum_bands_and_copies(self) -> torch.Tensor:
        """Return a vector: the sums of all bands, the bits that share a word with a span, the sums of the kept copies.

        A launch of a torch operation costs as much as summing ten bands. So all bands are stacked and summed by a
        single operation, and the other sums are written straight into the vector.
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
        """Return a flag on the device that is true if all bands and kept copies are as when they were sealed."""
        return None if self._sums is None else (self._sum_bands_and_copies() == self._sums).all()

    def find_damage(self) -> Damage | None:
        """Return the damaged byte that is nearest to a tensor, and fill the bands again."""
        # Nearly always, one flag from the device is all that is needed.
        intact = self.make_intact_flag()
        if self._sums is None or intact is None or bool(intact):
            return None
        damages = [damage for banded in self._placed.values() if (damage := banded.refill_bands())]
        same = self._sum_bands_and_copies() == self._sums
        if not bool(same.all()):
            # The bands are filled again and have their old sums. If a sum still differs, it is a kept copy's. Those
            # come last.
            index = same[-len(self._kept) :].tolist().index(False)
            return damages[0] if damages else Damage.from_place(f"into {list(self._kept)[index]}", is_contained=False)
        is_contained = all(damage.is_contained for damage in damages)
        return Damage(damages[0].message, is_contained)


class _Banded:
    """One span in an allocation of its own, between two bands.

    Sums are of whole words, but a span may end within one: ``last`` is that word, and ``beyond`` masks the bits in it
    that are not the span's. These bits are compared separately.
    """

    def __init__(self, span: Span, values: Mapping[str, Any]) -> None:
        import torch

        from ktuned.checking.torch_tensors import TorchTensors

        self.name = span.name
        # The span's distance from the last boundary is counted as a part of the span.
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
        # Each tensor's storage is its part of the allocation alone. `resize_` could let a view grow into the band.
        library, first = TorchTensors(), BAND_BYTES + span.remainder
        self.tensors: dict[str, torch.Tensor] = {
            name: library.copy_into_memory(self._bytes, first + offset, values[name])
            for name, offset in span.offsets.items()
        }

    def refill_bands(self) -> Damage | None:
        """Fill both bands again, and return the damage nearest to the span, if there was any."""
        end = BAND_BYTES + self._size
        before, after = self._bytes[:BAND_BYTES], self._bytes[end:]
        damaged_before = (before != PATTERN).nonzero().flatten()
        damaged_after = (after != PATTERN).nonzero().flatten()
        before.fill_(PATTERN)
        after.fill_(PATTERN)
        if damaged_after.numel():
            offset = int(damaged_after[0])
            is_contained = int(damaged_after[-1]) < after.numel() - 1 and not (
                damaged_before.numel() and int(damaged_before[0]) == 0
            )
            return Damage.from_place(f"{offset} bytes after {self.name}", is_contained=is_contained)
        if damaged_before.numel():
            # The run of bytes nearest to the span is taken for one write, which began at the run's first byte.
            gaps = (damaged_before.diff() != 1).nonzero().flatten()
            begin = int(damaged_before[gaps[-1] + 1] if gaps.numel() else damaged_before[0])
            return Damage.from_place(
                f"{BAND_BYTES - begin} bytes before {self.name}", is_contained=int(damaged_before[0]) > 0
            )
        return None
