"""Constraints as text: they mean what Python means, and nothing but arithmetic can be written."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned import space
from ktuned.model import Expression, KernelFileError, UsageError
from ktuned.model.expressions import MAX_CHARS
from ktuned.search import build_domain

NUMBERS = st.sampled_from(["A", "B", "M", "2", "3.5"])
TERMS = st.recursive(
    NUMBERS,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner)
        | st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%", "/"]), inner)
        | st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner)
        | st.builds("({} if {} else {})".format, inner, inner, inner)
    ),
    max_leaves=6,
)
COMPARISONS = st.builds("{} {} {} {} {}".format, TERMS, st.sampled_from(["<", "<=", "=="]), TERMS, st.just(">="), TERMS)
CONSTRAINTS = st.recursive(
    COMPARISONS | st.builds("{} in (1, 2, {})".format, TERMS, TERMS),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner)
        | st.builds("(not {})".format, inner)
    ),
    max_leaves=5,
)


def evaluate_in_python(text: str, values: dict[str, Any]) -> object:
    """Return the truth value of a text in Python, or the class of its error."""
    try:
        return bool(eval(text, {"min": min, "max": max}, values))
    except ArithmeticError as error:
        return type(error)


@given(CONSTRAINTS)
def test_an_expression_has_the_value_that_python_gives(text: str) -> None:
    """Or it raises as Python does."""
    expression = Expression(text)
    for a, b in itertools.product([0, 1, 3], [1, 2]):
        try:
            value: object = expression({"M": 4}, {"A": a, "B": b})
        except ArithmeticError as error:
            value = type(error)
        assert value == evaluate_in_python(text, {"A": a, "B": b, "M": 4})


def test_a_space_takes_texts_and_functions_as_constraints() -> None:
    bound = space(A=[1, 2, 4, 8], B=[1, 2], where=["A * B <= M", lambda p, c: c.A > 1]).bind({"M": 4})
    assert list(bound) == [dict(A=2, B=1), dict(A=2, B=2), dict(A=4, B=1)]
    conditional = space(ASYNC=[False, True], STAGES=[1, 2], when={"STAGES": "ASYNC"}).bind({})
    assert list(conditional) == [dict(ASYNC=False, STAGES=1), dict(ASYNC=True, STAGES=1), dict(ASYNC=True, STAGES=2)]


def test_a_text_is_split_by_the_knobs_that_it_reads() -> None:
    """A text rules out most of 10^9 configs before they are built, so counting needs no walk."""
    axes: dict[str, Any] = {f"K{number}": list(range(32)) for number in range(6)}
    text = " and ".join(f"K{number} == {number}" for number in range(5))
    domain = build_domain(space(where=text, **axes).bind({}))
    assert (domain.count, domain.is_exact) == (32, True)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("__import__('os').system('true')", "__import__('os').system('true')"),
        ("A.__class__", "A.__class__"),
        ("open('/etc/passwd')", "calls open"),
        ("[x for x in (1, 2)]", "[x for x in (1, 2)]"),
        ("(lambda: 1)()", "(lambda: 1)()"),
        ("A['x']", "A['x']"),
        ("f'{A}'", "f'{A}'"),
        ("A if", "is not an expression"),
        ("A = 3", "is not an expression"),
        ("", "is not an expression"),
        ("(" * 500 + "A" + ")" * 500, "is not an expression"),
        ("+".join(["A"] * 1500), "has more than"),
        ("A" * (MAX_CHARS + 1), "characters"),
        ("max(A, key=B)", "max(A, key=B)"),
        ("b'x' == A", "b'x'"),
    ],
)
def test_other_syntax_is_refused_at_the_declaration(text: str, part: str) -> None:
    """The error of the kernel file names the part."""
    with pytest.raises(UsageError) as caught:
        Expression(text)
    assert part in str(caught.value)
    with pytest.raises(KernelFileError):
        space(A=[1], where=text).bind({})


@pytest.mark.parametrize("text", ["9 ** 9 ** 9 > A", "1 << 10 ** 9 > A", "'a' * 10 ** 9 == A", "A / 0", "typo > A"])
def test_a_failing_expression_is_one_line(text: str) -> None:
    """Neither a huge number nor a typo costs more than an error that names the constraint."""
    with pytest.raises(KernelFileError) as caught:
        list(space(A=[1], where=text).bind({}))
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(KernelFileError, match=r"'block_x' is neither a knob nor a problem key .*block_size_x"):
        list(space(block_size_x=[1], where="block_x > 0").bind({}))
