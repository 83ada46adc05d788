"""The valid configs of a bound space as points, which strategies that learn sample, enumerate and step between.

A point is a :data:`Point`: the position of each knob's value on its axis. Three kinds of space give one interface:

========================  ==========================================================================================
axes with ``where``       the constraints are split and chained; points are counted and drawn by rank. Constraints that
                          cannot be split are checked for each drawn point, and the valid share is estimated
a list                    its valid configs
a callable                the first :data:`MAX_WALKED` that it yields
========================  ==========================================================================================

Memory does not grow with the space: lists exist in the kernel file anyway, and callables are cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from operator import getitem
from random import Random
from time import monotonic

from ktuned.declaration import BoundSpace
from ktuned.model import Config, Scalar
from ktuned.search.chain import MAX_CELLS, Chain, CountTooLarge, Point, satisfies_all, walk_valid_points
from ktuned.search.conjuncts import Conjunct, split_constraint

MAX_WALKED = 20_000
"""Most configs of a callable's space that strategies know: some 100 ms, and 10 MiB."""

WALKED_WHOLE = 200_000
"""A space of at most this many candidates is walked without splitting constraints: a second in total."""

SAMPLE_S = 0.05
"""Time limit for drawing one point: a strategy has little more time for its whole choice."""

ESTIMATE_S = 0.2
"""Time limit for estimating the share of valid points; it ends earlier after :data:`ESTIMATE_HITS`."""

ESTIMATE_HITS = 100
"""Valid points after which an estimate is good to some 10 %."""

COUNTING_S = 0.6
"""Time limit for counting, so that a job starts within a second. Conjuncts left over are checked while sampling."""

CHECKED_POINTS = 64
"""Points on which the split constraints are compared with the declared ones."""

MAX_STEPS = 24
"""If an axis has at most this many other values, all of them are neighbours of a point; on a longer axis, only values
at distances of 1, 2, 4 and so on are."""


class Domain(ABC):
    """The valid configs of one space.

    Attributes:
        knobs: The names of the knobs.
        axes: The values of each knob.
        count: The number of valid configs.
        is_exact: Whether ``count`` is exact; otherwise it is an estimate.
    """

    knobs: tuple[str, ...]
    axes: tuple[Sequence[Scalar], ...]
    count: int
    is_exact: bool

    @abstractmethod
    def is_valid(self, point: Point) -> bool:
        """Return whether a point is valid."""

    @abstractmethod
    def draw_point(self, random: Random) -> Point | None:
        """Draw one valid point uniformly; ``None`` if none was found within :data:`SAMPLE_S`."""

    @abstractmethod
    def point_at_rank(self, rank: int) -> Point:
        """Return the valid point at a rank below ``count``. Only allowed if the count is exact."""

    @abstractmethod
    def walk_points(self) -> Iterator[Point | None]:
        """Walk all valid points in the space's order, with ``None`` between as pauses."""

    def config_at(self, point: Point) -> dict[str, Scalar]:
        """Return the config at a point."""
        return dict(zip(self.knobs, map(getitem, self.axes, point), strict=True))

    def point_of_config(self, config: Config) -> Point | None:
        """Return the point of a config, valid or not; ``None`` if some value is on no axis."""
        if config.keys() != set(self.knobs):
            return None
        found = [_find_position(axis, config[knob]) for knob, axis in zip(self.knobs, self.axes, strict=True)]
        placed = tuple(position for position in found if position is not None)
        return placed if len(placed) == len(found) else None

    def valid_neighbours(self, point: Point) -> Iterator[Point]:
        """Yield the valid points that differ from a point in a single knob; that point itself need not be valid."""
        for number, axis in enumerate(self.axes):
            for position in _other_positions(point[number], len(axis)):
                neighbour = (*point[:number], position, *point[number + 1 :])
                if self.is_valid(neighbour):
                    yield neighbour

    def valid_joint_neighbours(self, point: Point) -> Iterator[Point]:
        """Yield valid points that differ in two knobs, where a step of the first knob alone would be invalid.

        The second knob moves to the next value on either side, or to its first value, which it has while it is without
        effect.
        """
        seen: set[Point] = set()
        for number, axis in enumerate(self.axes):
            for position in _other_positions(point[number], len(axis)):
                stepped = (*point[:number], position, *point[number + 1 :])
                if self.is_valid(stepped):
                    continue
                for second, other in enumerate(self.axes):
                    if second == number:
                        continue
                    for follows in sorted({max(0, point[second] - 1), min(len(other) - 1, point[second] + 1), 0}):
                        moved = (*stepped[:second], follows, *stepped[second + 1 :])
                        if moved not in seen and follows != point[second] and self.is_valid(moved):
                            seen.add(moved)
                            yield moved


def build_domain(space: BoundSpace) -> Domain:
    """Return the valid configs of a space as points.

    Raises:
        KernelFileError: The space's own code is at fault, or no config is valid.
    """
    if space.axes is None:
        return ListedDomain(space)
    conjuncts, is_split = split_constraints(space, tuple(space.axes))
    if not is_split and (space.size or 0) <= MAX_WALKED:
        return ListedDomain(space)
    return ProductDomain(space, space.axes, conjuncts, is_split=is_split)


def is_sparse(space: BoundSpace) -> bool:
    """Return whether a space has constraints and is too large to check each candidate."""
    return space.axes is not None and bool(space.where) and (space.size or 0) > WALKED_WHOLE


def walk_configs_in_order(space: BoundSpace) -> Iterator[dict[str, Scalar] | None]:
    """Walk a space in its own order, with ``None`` as pauses. In a large space, invalid parts are skipped early."""
    if not is_sparse(space):
        return space.walk()
    domain = build_domain(space)
    return (None if point is None else domain.config_at(point) for point in domain.walk_points())


class ProductDomain(Domain):
    """The points of axes under constraints.

    Conjuncts that could be counted are in the chain. The others (``_late``), and constraints that could not be split,
    are checked for each point that the chain yields.
    """

    def __init__(
        self,
        space: BoundSpace,
        axes: Mapping[str, Sequence[Scalar]],
        conjuncts: Sequence[Conjunct],
        *,
        is_split: bool,
    ) -> None:
        self._space = space
        self.knobs = tuple(axes)
        self.axes = tuple(axes.values())
        self._lengths = tuple(map(len, self.axes))
        self._chain_conjuncts(conjuncts, is_split=is_split)
        is_agreed = self._check_split()
        if self._chain.count == 0 and is_agreed:
            raise space.make_empty_error()
        if not is_agreed:
            # The code does not mean what its syntax says, so every point is checked with the declared constraints.
            self._chain_conjuncts([], is_split=False)
        self.count = self._chain.count if self.is_exact else self._estimate_count()

    def is_valid(self, point: Point) -> bool:
        """Check the split constraints, which are fast, and then the declared ones, which decide."""
        return satisfies_all(self._conjuncts, self.axes, point) and self._space.accepts(self.config_at(point))

    def draw_point(self, random: Random) -> Point | None:
        """Draw points of the chain until one satisfies the constraints that are not in the chain."""
        deadline = monotonic() + SAMPLE_S
        while True:
            point = self._draw_candidate(random)
            if self.is_exact or self._passes_rest(point):
                return point
            if monotonic() > deadline:
                return None

    def point_at_rank(self, rank: int) -> Point:
        """Return the point at a rank below ``count``. Only allowed if the count is exact."""
        return self._chain.point_at_rank(rank)

    def walk_points(self) -> Iterator[Point | None]:
        """Walk depth first, and skip branches that a conjunct rules out."""
        for point in walk_valid_points(self.axes, self._conjuncts):
            yield point if point is not None and self._space.accepts(self.config_at(point)) else None

    def _chain_conjuncts(self, conjuncts: Sequence[Conjunct], *, is_split: bool) -> None:
        self._conjuncts = conjuncts
        self._chain, chained = _longest_chain(self.axes, conjuncts)
        self._late = [found for found in conjuncts if found not in chained]
        self._is_unchained = not chained
        self.is_exact = is_split and not self._late

    def _draw_candidate(self, random: Random) -> Point:
        """Draw one of the chain's points; :meth:`_passes_rest` decides whether it is valid."""
        if self._is_unchained:
            return self._draw_anywhere(random)
        return self._chain.point_at_rank(_draw_below(self._chain.count, random))

    def _draw_anywhere(self, random: Random) -> Point:
        return tuple([int(random.random() * length) for length in self._lengths])

    def _passes_rest(self, point: Point) -> bool:
        """Return whether the constraints that are not in the chain admit one of its points."""
        return satisfies_all(self._late, self.axes, point) and self._space.accepts(self.config_at(point))

    def _check_split(self) -> bool:
        """Check by samples that the split constraints rule out no point that the declared constraints admit.

        If they admit a point that the declared constraints rule out, the count is no longer exact: from then on every
        point is checked with the declared constraints.
        """
        random = Random(0)
        if self.is_exact and self._chain.count:
            drawn = [self._draw_candidate(random) for _ in range(CHECKED_POINTS)]
            self.is_exact = all(self._space.accepts(self.config_at(point)) for point in drawn)
        for _ in range(CHECKED_POINTS):
            point = self._draw_anywhere(random)
            if not satisfies_all(self._conjuncts, self.axes, point) and self._space.accepts(self.config_at(point)):
                return False
        return True

    def _estimate_count(self) -> int:
        """Estimate the count by the share of the chain's points that the declared constraints admit."""
        random = Random(0)
        deadline = monotonic() + ESTIMATE_S
        hits = drawn = 0
        while hits < ESTIMATE_HITS and monotonic() < deadline:
            drawn += 1
            hits += self._passes_rest(self._draw_candidate(random))
        return max(1, self._chain.count * max(hits, 1) // max(drawn, 1))


def _draw_below(count: int, random: Random) -> int:
    """Draw a number of ``range(count)``, also if a float cannot hold them all."""
    # Only Random.random() is promised to be the same on every Python; it has 53 bits.
    if count <= 2**53:
        return int(random.random() * count)
    drawn = count.bit_length() // 53 + 2
    bits = sum(int(random.random() * 2**53) << 53 * number for number in range(drawn))
    return bits * count >> 53 * drawn


class ListedDomain(Domain):
    """The points of a list, or the first points that a callable yields. Its axes hold the values that occur."""

    def __init__(self, space: BoundSpace) -> None:
        walked = islice(space.walk(), None if space.indexable else MAX_WALKED)
        configs = [config for config in walked if config is not None]
        if not configs:
            raise space.make_empty_error()
        self.knobs = tuple(configs[0])
        seen: list[dict[tuple[type, Scalar], Scalar]] = [
            {(type(config[knob]), config[knob]): config[knob] for config in configs} for knob in self.knobs
        ]
        self.axes = tuple(_sort_numbers(list(values.values())) for values in seen)
        places = [{(type(value), value): place for place, value in enumerate(axis)} for axis in self.axes]
        self.listed = [
            tuple(place[type(config[knob]), config[knob]] for knob, place in zip(self.knobs, places, strict=True))
            for config in configs
        ]
        self._held = frozenset(self.listed)
        self.count = len(self.listed)
        self.is_exact = space.indexable or self.count < MAX_WALKED

    def is_valid(self, point: Point) -> bool:
        """Return whether a point is listed."""
        return point in self._held

    def draw_point(self, random: Random) -> Point | None:
        """Draw a point of the list."""
        return self.listed[int(random.random() * self.count)]

    def point_at_rank(self, rank: int) -> Point:
        """Return the point at a place of the list."""
        return self.listed[rank]

    def walk_points(self) -> Iterator[Point | None]:
        """Walk the list."""
        return iter(self.listed)


def split_constraints(space: BoundSpace, knobs: Sequence[str]) -> tuple[list[Conjunct], bool]:
    """Return the conjuncts of a space's constraints, and whether every constraint could be split."""
    found: list[Conjunct] = []
    is_split = True
    for where in space.where:
        parts = split_constraint(where, knobs, space.problem_view)
        is_split = is_split and parts is not None
        found += parts or []
    return found, is_split


def _longest_chain(axes: Sequence[Sequence[Scalar]], conjuncts: Sequence[Conjunct]) -> tuple[Chain, Sequence[Conjunct]]:
    """Chain as many conjuncts as can be counted in time, starting with those that have few combinations."""

    def count_combinations(conjunct: Conjunct) -> int:
        return prod(len(axes[place]) for place in conjunct.places)

    def is_countable(conjunct: Conjunct) -> bool:
        # If no other conjunct shares a knob with this one, all its combinations must be tested.
        is_alone = all(other is conjunct or set(other.places).isdisjoint(conjunct.places) for other in conjuncts)
        return count_combinations(conjunct) <= MAX_CELLS or not is_alone

    chained = sorted(filter(is_countable, conjuncts), key=count_combinations)
    deadline = monotonic() + COUNTING_S
    while chained:
        try:
            return Chain(axes, chained), chained
        except CountTooLarge:
            keep = len(chained) - 1 if monotonic() < deadline else 0
            chained = chained[:keep]
    return Chain(axes, []), []


def _find_position(axis: Sequence[Scalar], value: Scalar) -> int | None:
    if isinstance(axis, range):
        return axis.index(value) if type(value) is int and value in axis else None
    for place, other in enumerate(axis):
        # 1, 1.0 and True are three values.
        if type(other) is type(value) and other == value:
            return place
    return None


def _sort_numbers(values: list[Scalar]) -> list[Scalar]:
    """Return numbers sorted by size, so that neighbours on the axis are close in value; other values stay in order."""
    if all(isinstance(value, int | float) for value in values):
        return sorted(values, key=lambda value: (float(value), str(type(value))))
    return values


def _other_positions(position: int, length: int) -> Iterator[int]:
    """Yield the other positions on an axis that count as neighbours (:data:`MAX_STEPS`)."""
    if length - 1 <= MAX_STEPS:
        yield from (other for other in range(length) if other != position)
        return
    distance = 1
    while distance < length:
        if position - distance >= 0:
            yield position - distance
        if position + distance < length:
            yield position + distance
        distance *= 2
