"""Keys: equal keys mean the same work, and a key gives its problem's values back."""

import json

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from ktuned.model.keys import (
    DeviceModel,
    KernelName,
    Phase,
    Role,
    WinnerKey,
    get_project_name,
    make_full_name,
    make_key_problem,
    parse_key_problem,
)
from ktuned.model.objective import LATENCY

SCALARS = st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PROBLEMS = st.dictionaries(st.text(min_size=1, max_size=6), SCALARS | st.text(), max_size=6)


@given(PROBLEMS)
def test_a_key_problem_gives_its_values_back(values: dict[str, bool | int | float | str]) -> None:
    """The types of the values matter, their order does not."""
    key = make_key_problem(values)
    assert key == make_key_problem(dict(reversed(values.items())))
    assert [(name, type(value)) for name, value in sorted(parse_key_problem(key).items())] == [
        (name, type(value)) for name, value in sorted(values.items())
    ]
    assert parse_key_problem(key) == values


def test_equal_numbers_of_different_types_are_different_keys() -> None:
    """1, 1.0 and True are equal in Python, but three problems to a kernel."""
    assert len({make_key_problem({"n": value}) for value in (1, 1.0, True)}) == 3


def test_winner_keys_of_the_same_work_are_equal() -> None:
    """The objective is part of the key; the default is latency."""
    key = WinnerKey(KernelName("p:k"), make_key_problem({"n": 1}), DeviceModel("x"))
    assert key == WinnerKey(KernelName("p:k"), make_key_problem({"n": 1}), DeviceModel("x"), LATENCY)
    assert len({key, key._replace(problem=make_key_problem({"n": 2})), key._replace(device=DeviceModel("y"))}) == 3


def test_a_full_name_keeps_its_project() -> None:
    """A project's directory may have a colon in its name."""
    assert get_project_name(make_full_name("proj", "gemm")) == "proj"
    assert get_project_name(make_full_name("a:b", "gemm")) == "a:b"


def test_phases_and_roles_travel_as_plain_text() -> None:
    """Workers without these enums read the same words."""
    for word in (*Phase, *Role):
        assert msgpack.unpackb(msgpack.packb(word)) == json.loads(json.dumps(word)) == word.value
