"""The points among which a model chooses: a changing random sample of the space, and the neighbours of the best points.

Imported only by strategies that need NumPy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from ktuned.search.chain import Point
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

REMEMBERED_NEIGHBOURHOODS = 64
"""Most points whose neighbours are remembered. They are asked for the best points, which change slowly."""


class Candidates:
    """A pool of valid points with their features."""

    def __init__(self, domain: Domain, features: Features, random: Random) -> None:
        self._domain = domain
        self._features = features
        self._random = random
        self._neighbours_of: dict[Point, list[Point]] = {}
        self._points: list[Point] = []
        self._is_whole = domain.is_exact and domain.count <= ENUMERATED
        if self._is_whole:
            self._points = [point for point in domain.walk_points() if point is not None]
        else:
            self._draw_fresh_points(POOL // 4, FIRST_DRAWING_S)

    def pick_candidates(
        self, number: int, taken: Collection[Point], around: Sequence[Point]
    ) -> tuple[list[Point], Floats]:
        """Return candidates and their features, without ``taken`` points.

        They are ``number`` random points of the pool, and the neighbours of the points ``around``.
        """
        if number and not self._is_whole:
            self._draw_fresh_points(REFRESHED, DRAWING_S)
        chosen: dict[Point, None] = {}
        for point in around:
            chosen |= dict.fromkeys(self._list_neighbours(point))
        places = self._sample_pool_places(number)
        chosen |= dict.fromkeys(self._points[place] for place in places)
        points = [point for point in chosen if point not in taken]
        return points, self._features(self._points_as_array(points))

    def list_pool_except(self, excluded: Collection[Point]) -> tuple[list[Point], Floats]:
        """Return all points of the pool except the ``excluded`` ones, and their features."""
        points = [point for point in dict.fromkeys(self._points) if point not in excluded]
        return points, self._features(self._points_as_array(points))

    def _sample_pool_places(self, number: int) -> list[int]:
        size = len(self._points)
        if number >= size:
            return list(range(size))
        return [int(self._random.random() * size) for _ in range(number)]

    def _draw_fresh_points(self, number: int, seconds: float) -> None:
        deadline = monotonic() + seconds
        fresh: list[Point] = []
        while len(fresh) < number and monotonic() < deadline:
            point = self._domain.draw_point(self._random)
            if point is None:
                break
            fresh.append(point)
        self._points = (self._points + fresh)[-POOL:]

    def _list_neighbours(self, point: Point) -> list[Point]:
        found = self._neighbours_of.get(point)
        if found is None:
            if len(self._neighbours_of) >= REMEMBERED_NEIGHBOURHOODS:
                self._neighbours_of.clear()
            found = self._neighbours_of[point] = [
                *self._domain.valid_neighbours(point),
                *self._domain.valid_joint_neighbours(point),
            ]
        return found

    def _points_as_array(self, points: Sequence[Point]) -> NDArray[np.intp]:
        return np.array(points, dtype=np.intp).reshape(len(points), len(self._domain.axes))
