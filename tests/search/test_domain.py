"""Domains: the valid configs of a space, counted, drawn and walked without listing invalid ones."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from random import Random
from time import process_time
from typing import Any

import pytest

from ktuned import space
from ktuned.declaration.user_values import Values
from ktuned.model import KernelFileError, canonical
from ktuned.search import Exhaustive, build_domain
from ktuned.search import Random as RandomStrategy
from ktuned.search import domain as domain_module
from ktuned.search.conjuncts import split_constraint

ONE_TO_TEN = list(range(1, 11))
NINE_KNOBS: Any = dict.fromkeys("abcdefghi", ONE_TO_TEN)


def fits_device(p: Any, c: Any) -> bool:
    """Return whether a config fits the device, by several guards."""
    threads = c.a * c["b"]
    if threads % 8 or threads > p.M:
        return False
    if not (c.c <= c.d):
        return False
    return bool((threads + c.e) * c.f == 64 and c.g == c.h)


LIMIT = 6
SPACES = {
    "one expression": space(
        a=ONE_TO_TEN, b=ONE_TO_TEN, c=ONE_TO_TEN, where=lambda p, c: c.a * c.b <= p.M and c.c % c.a == 0
    ),
    "several": space(
        a=ONE_TO_TEN,
        b=ONE_TO_TEN,
        c=ONE_TO_TEN,
        where=[lambda p, c: c.a < c.b, lambda p, c: not (c.b > c.c or c.c == LIMIT)],
    ),
    "guarded": space(a=[0, *ONE_TO_TEN], b=ONE_TO_TEN, where=lambda p, c: c.a != 0 and c.b % c.a == 0),
    "a function": space(**{knob: [1, 2, 4, 8] for knob in "abcdefgh"}, where=fits_device),
    "opaque": space(a=ONE_TO_TEN, b=ONE_TO_TEN, where=lambda p, c: sum(c.values()) == 11),
    "half opaque": space(
        a=ONE_TO_TEN, b=ONE_TO_TEN, c=ONE_TO_TEN, where=[lambda p, c: max(c.values()) == c.a, lambda p, c: c.a < c.b]
    ),
    "a list": space([{"a": a, "b": 3 - a} for a in range(3)], where=lambda p, c: c.a > 0),
    "a callable": space(lambda p: ({"a": a} for a in range(20)), where=lambda p, c: c.a % 3 == 0),
}


@pytest.mark.parametrize("kind", [kind for kind in SPACES if kind != "half opaque"])
def test_a_domain_has_the_same_configs_as_its_space(kind: str) -> None:
    """Counting, ranking and walking agree with the space itself."""
    bound = SPACES[kind].bind({"M": 40})
    domain = build_domain(bound)
    expected = sorted(map(canonical, bound))
    assert domain.is_exact
    assert domain.count == len(expected)
    assert sorted(canonical(domain.config_at(domain.point_at_rank(rank))) for rank in range(domain.count)) == expected
    walked = [domain.config_at(point) for point in domain.walk_points() if point is not None]
    assert [canonical(config) for config in walked] == [canonical(config) for config in bound]


@pytest.mark.parametrize(
    ("where", "knobs"),
    [
        (lambda p, c: c.a <= p.M and c.b * c.a < 9, [("a",), ("b", "a")]),
        (lambda p, c: not (c.a or c["b"] == 2), [("a",), ("b",)]),
        (fits_device, [("a", "b"), ("a", "b"), ("c", "d"), ("a", "b", "e", "f"), ("g", "h")]),
        (lambda p, c: len(c) > 2, None),
        (lambda p, c: all(c[knob] for knob in "ab"), None),
        (max, None),
    ],
    ids=["and", "not or", "function", "len", "comprehension", "builtin"],
)
def test_constraint_is_split_by_what_it_reads(where: Any, knobs: Any) -> None:
    """Each conjunct names its knobs; a constraint that uses the config as a whole stays whole."""
    names = "abcdefgh"
    conjuncts = split_constraint(where, names, Values({"M": 40}, "problem key"))
    knobs_read = (
        None if conjuncts is None else [tuple(names[index] for index in conjunct.places) for conjunct in conjuncts]
    )
    assert knobs_read == knobs


@pytest.mark.parametrize(
    "where",
    [
        [
            lambda p, c: c.a * c.b == 24,
            lambda p, c: c.c * c.d == c.e * 2,
            lambda p, c: c.f + c.g == c.h + 1 and c.i % c.a == 0,
        ],
        fits_device,
    ],
    ids=["lambdas", "function"],
)
def test_billion_configs_start_at_once(where: Any) -> None:
    """About 1 in 10^5 of 10^9 configs is valid: they are counted exactly, and drawn and walked at once, in a few
    MiB.
    """
    bound = space(**NINE_KNOBS, where=where).bind({"M": 64})
    tracemalloc.start()
    start = process_time()
    domain = build_domain(bound)
    rng = Random(0)
    drawn = [domain.draw_point(rng) for _ in range(100)]
    first = next(point for point in domain.walk_points() if point is not None)
    elapsed_s = process_time() - start
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert domain.is_exact
    assert 1e-6 < domain.count / 1e9 < 1e-4
    assert all(point is not None and domain.config_at(point) in bound for point in [*drawn, first])
    # Tracing memory slows everything down several times; without it the limit is 1 s.
    assert elapsed_s < 3
    assert peak_bytes < 50 * 2**20


def accept_by_expression(p: Any, c: Any) -> Any:
    """Accept 1 in 100 configs by one condition on nine knobs."""
    return (c.a * 79 + c.b * c.c * 17 + c.d * c.e * 29 + c.f * 58 + c.g * c.h * 24) % 97 == c.i


def accept_by_loop(p: Any, c: Any) -> Any:
    """Accept configs by a loop over the knobs."""
    state = p.M
    for knob in sorted(c):
        state = (state * 31 + c[knob] * c[knob]) % 97
    if c.a > 5 and c.b % 2:
        return state == 7
    return state == max(c.a, c.b)


OPAQUE_CONSTRAINTS = {
    "an expression": accept_by_expression,
    "a function": accept_by_loop,
    "a text": "(a * 79 + b * c * 17 + d * e * 29 + f * 58 + g * h * 24) % 97 == i",
    "hashes": lambda p, c: hash(tuple(c.values())) % 97 == 3,
}


@pytest.mark.parametrize("where", OPAQUE_CONSTRAINTS.values(), ids=OPAQUE_CONSTRAINTS)
def test_opaque_constraint_over_nine_knobs_is_estimated_and_drawn_from(
    where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 in 100 of 10^9 configs satisfies a constraint that cannot be split: some are found in a few MiB."""
    # The number of points within the time limits depends on the machine: here a point takes 5 µs.
    clock = itertools.count()
    monkeypatch.setattr(domain_module, "monotonic", lambda: next(clock) * 5e-6)
    bound = space(**NINE_KNOBS, where=where).bind({"M": 64})
    tracemalloc.start()
    domain = build_domain(bound)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    rng = Random(0)
    configs = [domain.config_at(point) for _ in range(8) if (point := domain.draw_point(rng)) is not None]
    assert not domain.is_exact
    assert 3e6 < domain.count < 3e7
    assert len(configs) == 8
    assert all(config in bound for config in configs)
    assert peak_bytes < 10 * 2**20


def test_draw_without_a_valid_point_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw gives up at its time limit."""
    clock = itertools.count()
    bound = space(**NINE_KNOBS, where=lambda p, c: sum(c.values()) == 1).bind({})
    domain = build_domain(bound)
    monkeypatch.setattr(domain_module, "monotonic", lambda: next(clock) * domain_module.SAMPLE_S / 100)
    assert domain.draw_point(Random(0)) is None
    assert next(clock) < 110


@pytest.mark.parametrize("strategy", [RandomStrategy, Exhaustive])
def test_strategies_search_what_cannot_be_split(strategy: Any) -> None:
    """Both strategies find valid configs of an opaque constraint without testing every candidate."""
    bound = space(**NINE_KNOBS, where=accept_by_loop).bind({"M": 64})
    chosen = strategy(bound, 0)
    asked: list[Any] = []
    while len(asked) < 20:
        asked += chosen.ask(20 - len(asked))
    assert len({canonical(config) for config in asked}) == 20
    assert all(config in bound for config in asked)


def test_draws_of_an_opaque_constraint_are_uniform() -> None:
    """Values of a knob are drawn as often as they occur in valid configs (chi-square, p < 1e-6)."""
    declared = space(**{**NINE_KNOBS, "i": [0, 1]}, where=lambda p, c: (sum(c.values()) + c.a * c.b) % 7 == 5)
    domain = build_domain(declared.bind({}))
    rng = Random(2)
    configs = list[Any]()
    while len(configs) < 4000:
        # On a busy machine the time for a draw may pass.
        if (point := domain.draw_point(rng)) is not None:
            configs.append(domain.config_at(point))
    assert len({canonical(config) for config in configs}) > 3900
    # The condition treats this knob like the others, so its values are equally frequent.
    for knob in "gh":
        counts = Counter(config[knob] for config in configs)
        assert sum((counts[value] - 400) ** 2 / 400 for value in ONE_TO_TEN) < 50


@pytest.mark.parametrize("strategy", [RandomStrategy, Exhaustive])
def test_strategies_reach_rare_configs(strategy: Any) -> None:
    """Where 1 in 10^5 is valid, the plain strategies find valid configs at once, too."""
    bound = space(**NINE_KNOBS, where=fits_device).bind({"M": 64})
    start = process_time()
    asked = strategy(bound, 0).ask(20)
    assert process_time() - start < 2
    assert len({canonical(config) for config in asked}) == 20
    assert all(config in bound for config in asked)


def test_samples_are_uniform() -> None:
    """Every valid config is drawn equally often, however few completions its prefix has (chi-square, p < 1e-6)."""
    domain = build_domain(
        space(a=ONE_TO_TEN, b=ONE_TO_TEN, c=ONE_TO_TEN, where=lambda p, c: c.a * c.b * c.c == 40).bind({})
    )
    rng = Random(1)
    drawn = Counter(domain.draw_point(rng) for _ in range(200 * domain.count))
    assert len(drawn) == domain.count > 10
    assert sum((count - 200) ** 2 / 200 for count in drawn.values()) < 2.5 * domain.count + 40


def test_steps_change_one_knob() -> None:
    """The neighbours of a point are the valid configs that differ in one knob."""
    bound = SPACES["one expression"].bind({"M": 40})
    domain = build_domain(bound)
    point = domain.point_at_rank(7)
    expected = {
        neighbour
        for neighbour in itertools.product(*(range(len(axis)) for axis in domain.axes))
        if sum(one != other for one, other in zip(neighbour, point, strict=True)) == 1
        and domain.config_at(neighbour) in bound
    }
    assert set(domain.valid_neighbours(point)) == expected


def test_joint_steps_lead_where_no_single_step_does() -> None:
    """A block and its warps must change together: the second knob follows. Single steps are not repeated."""
    bound = space(BM=[32, 64, 128], WARPS=[1, 2, 4], STAGES=[2, 3], where=lambda p, c: c.BM == 32 * c.WARPS).bind({})
    domain = build_domain(bound)
    point = domain.point_of_config({"BM": 64, "WARPS": 2, "STAGES": 3})
    assert point is not None
    assert {canonical(domain.config_at(neighbour)) for neighbour in domain.valid_joint_neighbours(point)} == {
        canonical({"BM": 32, "WARPS": 1, "STAGES": 3}),
        canonical({"BM": 128, "WARPS": 4, "STAGES": 3}),
    }
    assert set(domain.valid_joint_neighbours(point)).isdisjoint(domain.valid_neighbours(point))


def test_joint_steps_leave_a_condition() -> None:
    """The switch of a conditional knob can be turned off: the knob returns to its first value."""
    declared = space(ASYNC=[False, True], STAGES=[2, 3, 4, 5, 6], when={"STAGES": lambda p, c: c.ASYNC})
    domain = build_domain(declared.bind({}))
    point = domain.point_of_config({"ASYNC": True, "STAGES": 6})
    assert point is not None
    assert [domain.config_at(neighbour) for neighbour in domain.valid_joint_neighbours(point)] == [
        {"ASYNC": False, "STAGES": 2}
    ]


def test_constraint_that_raises_is_an_error() -> None:
    """The exception is reported with the kernel file's line, not as an empty space."""
    bound = space(a=ONE_TO_TEN, b=ONE_TO_TEN, where=lambda p, c: c.a % (c.b - 5) == 0).bind({})
    with pytest.raises(KernelFileError, match="ZeroDivisionError"):
        list(build_domain(bound).walk_points())


def test_condition_that_raises_is_named() -> None:
    """The error names the knob, because the file may have no `where`."""
    declared = space(ASYNC=[False, True], STAGES=[2, 3], when={"STAGES": lambda p, c: c.ASYNC / 0})
    with pytest.raises(KernelFileError, match=r"when\['STAGES'\]\(p, c\) with c = .*ZeroDivisionError"):
        list(build_domain(declared.bind({})).walk_points())


def test_knob_with_a_condition_keeps_its_first_value_elsewhere() -> None:
    """Without the knob no two configs differ in it alone, and the count is still exact."""
    declared = space(ASYNC=[False, True], STAGES=[2, 3, 4], BM=ONE_TO_TEN, when={"STAGES": lambda p, c: c.ASYNC})
    domain = build_domain(declared.bind({}))
    configs = [domain.config_at(point) for point in domain.walk_points() if point is not None]
    assert domain.is_exact
    assert domain.count == len(configs) == 10 * (3 + 1)
    assert {config["STAGES"] for config in configs if not config["ASYNC"]} == {2}
