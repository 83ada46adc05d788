"""Strategies that learn, over points: the bookkeeping that all of them share.

A subclass says which point to try next (:meth:`PointStrategy.choose`); asked for, under way, measured and failed ones
are kept here. Nothing blocks on an outcome: whatever is asked for while others are under way is chosen without them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left, insort
from random import Random

from ktuned.model import RETRIED_BY_NEXT_JOB, Config, Outcome, Scalar
from ktuned.search.chain import Code
from ktuned.search.domain import domain_of
from ktuned.search.strategy import Count, Strategy
from ktuned.spec import BoundSpace

DRAWS = 8
"""Attempts to draw a point that is new before its neighbourhood is searched: most of a space is new."""

SPREAD_AMONG = 8
"""Each of the first points is the newest of so many drawn ones."""

LISTED = 20_000
"""A space of at most this many points is listed once drawing finds only known ones: some 100 ms."""


class PointStrategy(Strategy):
    """Chooses points of a domain, each once; only ``random.random()`` is used, which every Python repeats alike."""

    def __init__(self, space: BoundSpace, seed: int) -> None:
        super().__init__(space, seed)
        self.random = Random(seed)
        self.domain = domain_of(space)
        self.logs: dict[Code, float] = {}
        self.doubts: dict[Code, float] = {}
        self.failed: dict[Code, None] = {}
        self.slow: dict[Code, None] = {}
        self.under_way: dict[Code, None] = {}
        self.taken: set[Code] = set()
        self._left: list[Code] | None = None
        self._fastest_first: list[tuple[float, Code]] = []
        self._values_tried: list[dict[int, int]] = [{} for _ in self.domain.axes]

    @abstractmethod
    def choose(self) -> Code | None:
        """Return a valid point that is not in :attr:`taken`; ``None`` to be asked again later."""

    @property
    def valid(self) -> Count | None:
        """The domain's count, unless the space was only walked in part."""
        is_cut = self.space.size is None and not self.domain.is_exact
        return None if is_cut else Count(self.domain.count, self.domain.is_exact)

    @property
    def finished(self) -> bool:
        """True if every config was proposed or reported; a space that cannot be counted is never finished."""
        return self.domain.is_exact and len(self.taken) >= self.domain.count

    def ask(self, n: int) -> list[dict[str, Scalar]]:
        """Return up to ``n`` configs, each chosen as if those before it were under way."""
        chosen: list[Code] = []
        while len(chosen) < n and not self.finished:
            code = self.choose()
            if code is None:
                break
            self._take(code)
            self.under_way[code] = None
            chosen.append(code)
        return [self.domain.config(code) for code in chosen]

    def tell(self, config: Config, outcome: Outcome, latency_us: float | None) -> None:
        """Take note of an outcome, also of configs that others chose."""
        code = self.domain.code(config)
        if code is None or (code not in self.taken and not self.domain.holds(code)):
            return
        self.under_way.pop(code, None)
        self._take(code)
        if outcome in RETRIED_BY_NEXT_JOB:
            return
        if latency_us is not None and outcome in (Outcome.MEASURED, Outcome.SLOWER):
            self._rank(code, math.log(max(latency_us, 1e-300)))
        elif outcome is Outcome.SLOWER:
            self.slow[code] = None
        else:
            self.failed[code] = None
        self.heard(code)

    def doubt(self, config: Config, share: float) -> None:
        """Take note of a latency's uncertainty, which is that of its logarithm."""
        code = self.domain.code(config)
        if code is not None:
            self.doubts[code] = share

    def heard(self, code: Code) -> None:
        """Take note that the outcome of a point has come; :attr:`logs` holds its log latency if it was measured."""

    def elite(self, number: int) -> list[Code]:
        """Return the fastest points so far, the fastest first."""
        return [code for _, code in self._fastest_first[:number]]

    def spread(self) -> Code | None:
        """Return the one of a few random points whose values were tried the least, each knob by itself.

        So the first few points show each value of each knob about equally often, as a Latin hypercube does. Points
        far from each other would mostly be corners of the space, which is where kernels are slow and fail.
        """
        drawn = [code for _ in range(SPREAD_AMONG) if (code := self.unknown()) is not None]
        return max(drawn, key=self._newness, default=None)

    def unknown(self) -> Code | None:
        """Return a random point that was not taken yet."""
        for _ in range(DRAWS):
            code = self.domain.sample(self.random)
            if code is None:
                break
            if code not in self.taken:
                return code
        if self.domain.is_exact and self.domain.count <= LISTED:
            return self._one_left()
        for known in self.elite(DRAWS):
            if (code := self.step(known)) is not None:
                return code
        return None

    def step(self, code: Code) -> Code | None:
        """Return a random neighbour of a point that was not taken yet."""
        fresh = [other for other in self.domain.steps(code) if other not in self.taken]
        return self.pick(fresh) if fresh else None

    def child(self, one: Code, other: Code, mutations: float) -> Code | None:
        """Return a new valid cross of two points; each knob is changed at random with that many mutations expected."""
        for _ in range(DRAWS):
            mixed = [pair[self.random.random() < 0.5] for pair in zip(one, other, strict=True)]
            for place, axis in enumerate(self.domain.axes):
                if self.random.random() * len(mixed) < mutations:
                    mixed[place] = int(self.random.random() * len(axis))
            code = tuple(mixed)
            if code not in self.taken and self.domain.holds(code):
                return code
        return None

    def pick(self, codes: list[Code]) -> Code:
        """Return one of some points at random."""
        return codes[int(self.random.random() * len(codes))]

    def _newness(self, code: Code) -> float:
        return sum(1 / (1 + tried.get(value, 0)) for tried, value in zip(self._values_tried, code, strict=True))

    def _take(self, code: Code) -> None:
        if code in self.taken:
            return
        self.taken.add(code)
        for tried, value in zip(self._values_tried, code, strict=True):
            tried[value] = tried.get(value, 0) + 1

    def _rank(self, code: Code, log: float) -> None:
        before = self.logs.get(code)
        if before is not None:
            del self._fastest_first[bisect_left(self._fastest_first, (before, code))]
        self.logs[code] = log
        insort(self._fastest_first, (log, code))

    def _one_left(self) -> Code | None:
        if self._left is None or not self._left:
            self._left = [code for code in self.domain.points() if code is not None and code not in self.taken]
        while self._left:
            place = int(self.random.random() * len(self._left))
            self._left[place], self._left[-1] = self._left[-1], self._left[place]
            code = self._left.pop()
            if code not in self.taken:
                return code
        return None
