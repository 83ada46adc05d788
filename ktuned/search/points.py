"""The common base of strategies that learn: bookkeeping of points.

A subclass chooses the next point (:meth:`PointStrategy.choose`). The points that are taken, under way, measured or
failed are recorded here. No choice waits for an outcome: while others are under way, it is made without their outcomes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left, insort
from random import Random
from time import monotonic

from ktuned.declaration import BoundSpace
from ktuned.model import RETRIED_BY_NEXT_JOB, Config, Outcome, Scalar
from ktuned.search.chain import Point
from ktuned.search.domain import SAMPLE_S, build_domain
from ktuned.search.strategy import Count, Strategy

DRAWS = 8
"""Attempts to draw a new point at random before other ways are tried. Usually most of a space is new."""

SPREAD_AMONG = 8
"""Each of the first points is the one of this many drawn points whose values were tried the least."""

LISTED = 20_000
"""A space of at most this many points is listed once drawing finds only known points: some 100 ms."""


class PointStrategy(Strategy):
    """Chooses points of a domain, each once. Only ``random.random()`` is used: it is the same on every Python.

    Attributes:
        random: The source of all random choices.
        domain: The valid configs of the space.
        logs: The log latency (or log cost) of each measured point.
        doubts: How well latencies are known, as shares; see :meth:`Strategy.doubt`.
        failed: The points that failed.
        slow: The points that were stopped as too slow, without a latency.
        under_way: The points without an outcome so far.
        taken: All points that were proposed or reported.
    """

    def __init__(self, space: BoundSpace, seed: int) -> None:
        super().__init__(space, seed)
        self.random = Random(seed)
        self.domain = build_domain(space)
        self.logs: dict[Point, float] = {}
        self.doubts: dict[Point, float] = {}
        self.failed: dict[Point, None] = {}
        self.slow: dict[Point, None] = {}
        self.under_way: dict[Point, None] = {}
        self.taken: set[Point] = set()
        self._untried: list[Point] | None = None
        self._fastest_first: list[tuple[float, Point]] = []
        self._values_tried: list[dict[int, int]] = [{} for _ in self.domain.axes]

    @abstractmethod
    def choose(self) -> Point | None:
        """Return a valid point that is not in :attr:`taken`; ``None`` to be asked again later."""

    @property
    def valid(self) -> Count | None:
        """The domain's count, unless only a part of the space was walked."""
        is_cut = self.space.size is None and not self.domain.is_exact
        return None if is_cut else Count(self.domain.count, self.domain.is_exact)

    @property
    def finished(self) -> bool:
        """True if every config was proposed or reported; a space that cannot be counted is never finished."""
        return self.domain.is_exact and len(self.taken) >= self.domain.count

    def ask(self, n: int) -> list[dict[str, Scalar]]:
        """Return up to ``n`` configs, each chosen as if those before it were under way."""
        chosen: list[Point] = []
        while len(chosen) < n and not self.finished:
            point = self.choose()
            if point is None:
                break
            self._mark_taken(point)
            self.under_way[point] = None
            chosen.append(point)
        return [self.domain.config_at(point) for point in chosen]

    def tell(self, config: Config, outcome: Outcome, latency_us: float | None) -> None:
        """Record an outcome, even of a config that this strategy did not propose."""
        point = self.domain.point_of_config(config)
        if point is None or (point not in self.taken and not self.domain.is_valid(point)):
            return
        self.under_way.pop(point, None)
        self._mark_taken(point)
        if outcome in RETRIED_BY_NEXT_JOB:
            return
        if latency_us is not None and outcome in (Outcome.MEASURED, Outcome.SLOWER):
            self._rank_point(point, math.log(max(latency_us, 1e-300)))
        elif outcome is Outcome.SLOWER:
            self.slow[point] = None
        else:
            self.failed[point] = None
        self.on_outcome(point)

    def doubt(self, config: Config, share: float) -> None:
        """Record a latency's uncertainty. Because it is a share, it is also the uncertainty of the log latency."""
        point = self.domain.point_of_config(config)
        if point is not None:
            self.doubts[point] = share

    def on_outcome(self, point: Point) -> None:
        """React to a point's outcome; :attr:`logs` holds its log latency if it was measured."""

    def fastest_points(self, number: int) -> list[Point]:
        """Return the fastest points so far, the fastest first."""
        return [point for _, point in self._fastest_first[:number]]

    def draw_least_tried(self) -> Point | None:
        """Return the one of a few random points whose values were tried the least, knob by knob.

        So the first few points contain each value of each knob about equally often, as in a Latin hypercube. Points
        chosen to be far from each other would mostly be corners of the space, where kernels are slow and fail.
        """
        drawn: list[Point] = []
        deadline = monotonic() + SAMPLE_S
        while len(drawn) < SPREAD_AMONG and (point := self.draw_untried()) is not None:
            drawn.append(point)
            # If valid points are rare, use the few that were found in time.
            if not self.domain.is_exact and monotonic() > deadline:
                break
        return max(drawn, key=self._score_newness, default=None)

    def draw_untried(self) -> Point | None:
        """Return a random point that was not taken yet."""
        for _ in range(DRAWS):
            point = self.domain.draw_point(self.random)
            if point is None:
                break
            if point not in self.taken:
                return point
        if self.domain.is_exact and self.domain.count <= LISTED:
            return self._pop_untried()
        for known in self.fastest_points(DRAWS):
            if (point := self.draw_untried_neighbour(known)) is not None:
                return point
        return None

    def draw_untried_neighbour(self, point: Point) -> Point | None:
        """Return a random neighbour of a point that was not taken yet."""
        fresh = [other for other in self.domain.valid_neighbours(point) if other not in self.taken]
        return fresh[int(self.random.random() * len(fresh))] if fresh else None

    def _score_newness(self, point: Point) -> float:
        return sum(1 / (1 + tried.get(value, 0)) for tried, value in zip(self._values_tried, point, strict=True))

    def _mark_taken(self, point: Point) -> None:
        if point in self.taken:
            return
        self.taken.add(point)
        for tried, value in zip(self._values_tried, point, strict=True):
            tried[value] = tried.get(value, 0) + 1

    def _rank_point(self, point: Point, log: float) -> None:
        before = self.logs.get(point)
        if before is not None:
            del self._fastest_first[bisect_left(self._fastest_first, (before, point))]
        self.logs[point] = log
        insort(self._fastest_first, (log, point))

    def _pop_untried(self) -> Point | None:
        if self._untried is None or not self._untried:
            self._untried = [
                point for point in self.domain.walk_points() if point is not None and point not in self.taken
            ]
        while self._untried:
            place = int(self.random.random() * len(self._untried))
            self._untried[place], self._untried[-1] = self._untried[-1], self._untried[place]
            point = self._untried.pop()
            if point not in self.taken:
                return point
        return None
