"""Spaces: what they hold, that they are lazy, and their error messages."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned import space
from ktuned.declaration.spaces import MAX_PLAIN_VALUES, Space
from ktuned.declaration.user_values import Site, UnknownKey, Values
from ktuned.model import SpaceInfo
from ktuned.model.errors import KernelFileError
from ktuned.model.values import Scalar

untyped_space: Any = space
"""``space`` as a caller without a type checker sees it."""

DECLARATION_SITE = Site("/p/tune_x.py", 7, "gemm")

axes_strategy = st.dictionaries(
    st.sampled_from(["A", "B", "C"]),
    st.lists(st.integers(-5, 5), min_size=1, max_size=4, unique=True),
    min_size=1,
)


@given(axes_strategy)
def test_a_cartesian_space_is_the_product_of_its_axes(axes: dict[str, list[int]]) -> None:
    """Walking and indexing give the same configs in the same order."""
    expected = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    bound = untyped_space(**axes).bind({})
    assert list(bound) == expected
    assert [bound.at(index) for index in range(bound.size or 0)] == expected
    assert all(config in bound for config in expected)


@given(axes_strategy, st.integers(-5, 5))
def test_a_rejected_config_is_neither_walked_nor_a_member(axes: dict[str, list[int]], limit: int) -> None:
    """Its index gives ``None``."""
    bound = untyped_space(where=lambda p, c: sum(c.values()) <= p.limit, **axes).bind({"limit": limit})
    for index in range(bound.size or 0):
        config = untyped_space(**axes).bind({}).at(index)
        assert config is not None
        accepted = sum(config.values()) <= limit
        assert (config in bound) is accepted
        assert bound.at(index) == (config if accepted else None)


def test_several_constraints_must_all_hold() -> None:
    bound = space(A=range(10), where=[lambda p, c: c.A > 3, lambda p, c: c["A"] < 6]).bind({})
    assert [config["A"] for config in bound] == [4, 5]


def test_a_list_keeps_its_order() -> None:
    """Membership ignores the order of the keys."""
    configs: list[dict[str, Scalar]] = [{"A": 2, "B": "x"}, {"A": 1, "B": "y"}]
    bound = space(configs).bind({})
    assert list(bound) == configs
    assert (bound.size, bound.indexable) == (2, True)
    assert {"B": "y", "A": 1} in bound
    assert {"A": 1, "B": "x"} not in bound


def test_a_callable_gets_the_problem() -> None:
    """A callable or generator function is called anew by each walk."""

    def configs(p: Any) -> Iterator[dict[str, int]]:
        for tile in range(1, p.M + 1):
            yield {"tile": tile}

    bound = space(configs, where=lambda p, c: c.tile != 2).bind({"M": 3})
    assert list(bound) == list(bound) == [{"tile": 1}, {"tile": 3}]
    assert (bound.size, bound.indexable) == (None, False)
    assert {"tile": 3} in bound
    assert {"tile": 2} not in bound


@pytest.mark.parametrize(("value", "member"), [(1, True), (1.0, False), (True, False), ("1", False)])
def test_membership_tells_types_apart(value: object, member: bool) -> None:
    """1, 1.0 and True are different configs in every kind of space."""
    for axes in (space(A=[1]), space(A=range(2)), space([{"A": 1}]), space(lambda p: [{"A": 1}])):
        assert ({"A": value} in axes.bind({})) is member


@pytest.mark.parametrize("config", [{}, {"A": 1, "B": 1}, {"B": 1}, [1], None, {"A": [1]}])
def test_values_that_are_no_config_are_no_members(config: object) -> None:
    """Membership never raises."""
    for axes in (space(A=[1]), space([{"A": 1}]), space(lambda p: [{"A": 1}])):
        assert config not in axes.bind({})


def test_a_huge_space_is_never_enumerated() -> None:
    """A space of 10^18 configs is declared, bound and indexed at its end within a few KiB."""
    tracemalloc.start()
    bound = space(A=range(10**6), B=range(10**6), C=range(10**6)).bind({})
    assert bound.size == 10**18
    assert bound.at(10**18 - 1) == {"A": 10**6 - 1, "B": 10**6 - 1, "C": 10**6 - 1}
    assert next(iter(bound)) == {"A": 0, "B": 0, "C": 0}
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 64 * 1024


def test_an_index_outside_the_space_is_an_error() -> None:
    with pytest.raises(IndexError, match="size 2"):
        space(A=[1, 2]).bind({}).at(2)


@pytest.mark.parametrize(
    ("declare_space", "words"),
    [
        (space, "space() needs axes, a list of configs or a callable"),
        (lambda: untyped_space([]), "the space is empty: its list holds no config"),
        (lambda: untyped_space(A=[]), "knob A: it is empty"),
        (lambda: untyped_space(A=64), "knob A: its values are of type int, not a list (one value is written [value])"),
        (lambda: untyped_space(A="abc"), "knob A: its values are of type str"),
        (lambda: untyped_space(A={1, 2}), "knob A: its values are of type set"),
        (lambda: untyped_space(A=[1, 2, 1]), "knob A: the value 1 is listed twice"),
        (lambda: untyped_space(A=[None]), "knob A: None is of type NoneType, not a bool, int, float or str"),
        (lambda: untyped_space(A=[[1]]), "knob A: [1] is of type list"),
        (lambda: untyped_space(A=[float("nan")]), "knob A: nan is not a finite number"),
        (lambda: untyped_space(A=[2**64]), "does not fit into 64 bits"),
        (lambda: untyped_space(A=["\ud800"]), r"knob A: '\ud800' is not Unicode: it holds a lone surrogate"),
        (lambda: untyped_space(items=[1]), "'items' cannot be a name"),
        (lambda: untyped_space([{"A": 1}, {"A": 1}]), "config 1 of the space's list repeats config 0"),
        (
            lambda: untyped_space([{"A": 1}, {"B": 1}]),
            "config 1 of the space's list differs from the first in its knobs: A, B",
        ),
        (lambda: untyped_space([{"A": 1}, 5]), "config 1 of the space's list is of type int, not a dict"),
        (lambda: untyped_space([{"a-b": 1}]), "'a-b' is not a name"),
        (lambda: untyped_space([{}]), "config 0 of the space's list is empty"),
        (lambda: untyped_space([{"A": 1}], B=[1]), "space() takes configs or axes, not both (axes: B)"),
        (lambda: untyped_space(5), "space() takes a list of configs or a callable, not int"),
        (lambda: untyped_space(A=[1], where=3), "where takes a callable (p, c)"),
    ],
)
def test_a_fault_is_reported_with_its_place(declare_space: Callable[[], Space], words: str) -> None:
    """The message is one line that starts with file, line and kernel."""
    with pytest.raises(KernelFileError) as caught:
        declare_space().bind({}, DECLARATION_SITE)
    assert caught.value.message.startswith("/p/tune_x.py:7: gemm: ")
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert (caught.value.path, caught.value.line) == ("/p/tune_x.py", 7)


@pytest.mark.parametrize(
    ("yielded", "words"),
    [
        ([{"A": 1}, {"A": 1}], "config 1 of the space's callable repeats config 0"),
        ([{"A": 1}, {"B": 1}], "config 1 of the space's callable has the knobs B; the first had A"),
        ([3], "config 0 of the space's callable is of type int"),
        ([{"A": None}], "A=None is of type NoneType"),
        ([], "the space has no valid config for the problem M=4"),
    ],
)
def test_a_callables_configs_are_checked_as_it_yields_them(yielded: list[Any], words: str) -> None:
    with pytest.raises(KernelFileError, match=r"/p/tune_x\.py:7: gemm: ") as caught:
        list(space(lambda p: yielded).bind({"M": 4}, DECLARATION_SITE))
    assert words in caught.value.message


def test_a_space_without_a_valid_config_is_an_error() -> None:
    """The message names the problem."""
    with pytest.raises(KernelFileError, match="no valid config for the problem M=4"):
        list(space(A=[1, 2], where=lambda p, c: False).bind({"M": 4}, DECLARATION_SITE))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (lambda p, c: c.AAA > 1, "there is no knob 'AAA' (did you mean 'AA'? there are: AA)"),
        (lambda p, c: p["N"] > 1, "there is no problem key 'N' (there are: M)"),
        (lambda p, c: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_raising_constraint_is_reported_with_its_config(where: Callable[[Any, Any], object], words: str) -> None:
    """The message names kernel, file and config."""
    with pytest.raises(KernelFileError, match=r"/p/tune_x.py:7: gemm: where\(p, c\) with c = AA=1: ") as caught:
        list(space(AA=[1], where=where).bind({"M": 1}, DECLARATION_SITE))
    assert words in caught.value.message


def test_the_plain_form_of_a_large_space_is_capped() -> None:
    """The daemon gets the values of small spaces and only the size of large ones."""
    small = space(A=[1, 2], B=range(2), where=lambda p, c: all([])).describe_space()
    assert small == SpaceInfo("cartesian", {"A": (1, 2), "B": (0, 1)}, constrained=True, size=4)
    assert space(A=range(MAX_PLAIN_VALUES + 1)).describe_space().axes is None
    assert space([{"A": 1}]).describe_space().configs == ({"A": 1},)
    assert space([{"A": index} for index in range(MAX_PLAIN_VALUES + 1)]).describe_space().configs is None
    assert space(lambda p: []).describe_space() == SpaceInfo("callable")
    assert space(A=range(10**10), B=range(10**10)).describe_space().size is None


def test_values_are_read_only_views() -> None:
    """An unknown key raises both kinds of lookup error."""
    view = Values({"M": 4, "dtype": "float16"}, "problem key")
    assert (view.M, view["dtype"], dict(**view)) == (4, "float16", {"M": 4, "dtype": "float16"})
    assert not hasattr(view, "N")
    with pytest.raises(AttributeError, match="read-only"):
        view.M = 5
    with pytest.raises(UnknownKey):
        view["N"]
