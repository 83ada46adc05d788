"""The points among which a model chooses: a changing random sample of the space, and the neighbours of the best points.

Imported only by strategies that need NumPy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from ktuned.search.chain import Code
from ktuned.search.domain import Domain
from ktuned.search.features import Features, Floats

ENUMERATED = 6_000
"""A space of at most this many points is held completely: some 50 ms to list, and a megabyte."""

POOL = 4_096
"""Most points of a larger space that are held; new points replace the oldest."""

REFRESHED = 64
"""New points of a larger space for each choice: about a millisecond if drawing is cheap."""

DRAWING_S = 0.02
"""Time limit for drawing points for one choice: a space that is hard to draw from is explored gradually."""

FIRST_DRAWING_S = 0.08
"""Time limit for the first drawing."""

KNOWN_STEPS = 64
"""Most points whose neighbours are remembered. They are asked for the best points, which change slowly."""


class Candidates:
    """A pool of valid points with their features."""

    def __init__(self, domain: Domain, features: Features, random: Random) -> None:
        self._domain = domain
        self._features = features
        self._random = random
        self._steps: dict[Code, list[Code]] = {}
        self._codes: list[Code] = []
        self.is_whole = domain.is_exact and domain.count <= ENUMERATED
        if self.is_whole:
            self._codes = [code for code in domain.walk_points() if code is not None]
        else:
            self._draw_fresh_points(POOL // 4, FIRST_DRAWING_S)

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def codes(self) -> Sequence[Code]:
        """All points of the pool; for a small space, all its points."""
        return self._codes

    def pick_candidates(
        self, number: int, taken: Collection[Code], around: Sequence[Code]
    ) -> tuple[list[Code], Floats]:
        """Return candidates and their features, without ``taken`` points.

        They are ``number`` random points of the pool, and the neighbours of the points ``around``.
        """
        if number and not self.is_whole:
            self._draw_fresh_points(REFRESHED, DRAWING_S)
        chosen: dict[Code, None] = {}
        for code in around:
            chosen |= dict.fromkeys(self._list_neighbours(code))
        places = self._sample_places(number)
        chosen |= dict.fromkeys(self._codes[place] for place in places)
        codes = [code for code in chosen if code not in taken]
        return codes, self._features(self._codes_as_array(codes))

    def list_others(self, but: Collection[Code]) -> tuple[list[Code], Floats]:
        """Return all points of the pool except those in ``but``, and their features."""
        codes = [code for code in dict.fromkeys(self._codes) if code not in but]
        return codes, self._features(self._codes_as_array(codes))

    def _sample_places(self, number: int) -> list[int]:
        size = len(self._codes)
        if number >= size:
            return list(range(size))
        return [int(self._random.random() * size) for _ in range(number)]

    def _draw_fresh_points(self, number: int, seconds: float) -> None:
        deadline = monotonic() + seconds
        fresh: list[Code] = []
        while len(fresh) < number and monotonic() < deadline:
            code = self._domain.draw_point(self._random)
            if code is None:
                break
            fresh.append(code)
        self._codes = (self._codes + fresh)[-POOL:]

    def _list_neighbours(self, code: Code) -> list[Code]:
        found = self._steps.get(code)
        if found is None:
            if len(self._steps) >= KNOWN_STEPS:
                self._steps.clear()
            found = self._steps[code] = [
                *self._domain.valid_neighbours(code),
                *self._domain.valid_joint_neighbours(code),
            ]
        return found

    def _codes_as_array(self, codes: Sequence[Code]) -> NDArray[np.intp]:
        return np.array(codes, dtype=np.intp).reshape(len(codes), len(self._domain.axes))
