"""Valid points found among many drawn ones: for constraints that cannot be split.

Points are drawn in batches and asked about at once, some ten million a second, so that one valid config among 10^5
takes milliseconds. Whatever passes is asked about once more by itself. Found points wait in a buffer; nothing else is
kept.

Imported only where there is NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ktuned.model import Record, record
from ktuned.search.chain import Code
from ktuned.search.vectors import NotVectorizable, VectorizedConstraints
from ktuned.spec import BoundSpace

BATCH = 32_768
"""Points of a batch: their values fit a core's cache, and a call's fixed cost is nothing beside them."""

SAMPLE_S = 0.1
"""Limit of one sample: a strategy that waits for it has little longer for a proposal."""

ENOUGH, FEW = 100, 10
"""Valid points that give the share to 10 % and to 30 %."""

ESTIMATE_S, RARE_S = 0.25, 0.5
"""Limits of estimating the share, and where not even a few were found: a job starts within a second."""

COMPARED = 256
"""Points of a first batch whose verdicts are compared with what the constraint says of each by itself."""

LARGEST_DRAW = 2**32
"""Draws of 32 bits are made and divided at twice the speed of larger ones."""

_SEEDS = 2**32


@record
class ValidShare(Record):
    """Numbers of drawn points and of the valid ones among them."""

    valid: int
    drawn: int


class Sieve:
    """Draws uniformly among the valid points of ``lengths`` positions, by rejection.

    Raises:
        NotVectorizable: the constraints cannot be evaluated for many points at once, or mean something else then.
    """

    def __init__(self, space: BoundSpace, lengths: tuple[int, ...], accepts: Callable[[Code], bool]) -> None:
        assert space.axes is not None
        self._lengths = lengths
        self._accepts = accepts
        self._found: list[Code] = []
        self._random: Random | None = None
        self._batches = VectorizedConstraints(space.axes, [_bind_constraint(space, where) for where in space.where])
        self._check_verdicts()

    def draw_point(self, random: Random) -> Code | None:
        """Draw one valid point; ``None`` if none was found in :data:`SAMPLE_S`."""
        if random is not self._random:
            # The points that wait are another sequence's.
            self._random, self._found = random, []
        deadline = monotonic() + SAMPLE_S
        while not self._found:
            self._found = self._select_valid(self._draw_codes(random, BATCH))
            if not self._found and monotonic() > deadline:
                return None
        return self._found.pop()

    def estimate_valid_share(self) -> ValidShare:
        """Estimate the share of valid points."""
        random = Random(0)
        began = monotonic()
        valid = drawn = 0
        while drawn == 0 or (valid < ENOUGH and monotonic() - began < (ESTIMATE_S if valid > FEW else RARE_S)):
            valid += len(self._select_valid(self._draw_codes(random, BATCH)))
            drawn += BATCH
        return ValidShare(valid, drawn)

    def walk_points(self) -> Iterator[Code | None]:
        """Walk all valid points in the order of the axes, with ``None`` between as pauses."""
        total = 1
        for length in self._lengths:
            total *= length
        for start in range(0, total, BATCH):
            yield from self._select_valid(self._codes_of_ranks(start, min(total, start + BATCH)))
            yield None

    def _codes_of_ranks(self, start: int, end: int) -> NDArray[np.intp]:
        """Return the points of some ranks, counted through all positions; Python's integers, for there may be many."""
        codes = np.empty((len(self._lengths), end - start), np.intp)
        ranks = np.arange(end - start)
        carried = start
        for place in reversed(range(len(self._lengths))):
            length = self._lengths[place]
            carried, offset = divmod(carried, length)
            ranks, codes[place] = np.divmod(ranks + offset, length)
        return codes

    def _draw_codes(self, random: Random, number: int) -> NDArray[np.intp]:
        # The one generator whose draws NumPy promises never to change.
        source = np.random.RandomState(int(random.random() * _SEEDS))
        codes = np.empty((len(self._lengths), number), np.intp)
        drawn: NDArray[np.integer[Any]] = np.zeros(number, np.uint32)
        room = 1
        for place, length in enumerate(self._lengths):
            if room < length:
                # One draw for as many axes as it has room for: drawing costs more than dividing.
                room = _fit_axes_in_draw(self._lengths[place:])
                drawn = source.randint(0, room, number, np.uint32 if room < LARGEST_DRAW else np.int64)
            rest = drawn // length
            codes[place] = drawn - rest * length
            drawn, room = rest, room // length
        return codes

    def _select_valid(self, codes: NDArray[np.intp]) -> list[Code]:
        try:
            passed = codes[:, self._batches.admit_configs(codes)]
        except NotVectorizable:
            # A rare case that the first points did not show: these are asked about one by one.
            passed = codes
        return [code for row in passed.T.tolist() if self._accepts(code := tuple(row))]

    def _check_verdicts(self) -> None:
        codes = self._draw_codes(Random(1), BATCH)
        verdicts = self._batches.admit_configs(codes)
        for row, verdict in zip(codes[:, :COMPARED].T.tolist(), verdicts[:COMPARED].tolist(), strict=True):
            if self._accepts(tuple(row)) != verdict:
                raise NotVectorizable("it decides otherwise than for single configs")


def _bind_constraint(space: BoundSpace, where: Callable[[Any, Any], object]) -> Callable[[Mapping[str, Any]], object]:
    """Return a constraint as a function of the knobs' values alone."""
    problem = space.problem_view
    return lambda values: where(problem, space.view(values))


def _fit_axes_in_draw(lengths: tuple[int, ...]) -> int:
    """Return the product of the first lengths, as many as one draw has room for."""
    product = lengths[0]
    for length in lengths[1:]:
        if product * length >= LARGEST_DRAW:
            break
        product *= length
    return product
