"""Types of a Build's fields: a typing error is one line, and equivalent values are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from ktuned.backends import Build


@dataclass(frozen=True)
class ExampleBuild(Build):
    """A Build with fields of every shape."""

    backend: ClassVar[str] = "none"

    function: str
    args: tuple[str | int | float, ...] = ()
    flags: tuple[str, ...] = ()
    defines: Mapping[str, str | int] = field(default_factory=dict)
    grid: tuple[int, int] = (1, 1)
    scale: float = 1.0
    limit: int | None = None
    anything: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(flags="-O2"), "flags is the string '-O2', not a tuple: a tuple of one has a comma, ('-O2',)"),
        (dict(args="xy"), "args is the string 'xy', not a tuple: a tuple of one has a comma, ('xy',)"),
        (dict(flags=("-O2", 3)), "flags[1] is 3, not a str"),
        (dict(args=(1, None)), "args[1] is None, not str or int or float"),
        (dict(defines=["A"]), "defines is ['A'], not a dict"),
        (dict(defines={1: "A"}), "defines: the key is 1, not a str"),
        (dict(defines={"A": 1.5}), "defines['A'] is 1.5, not str or int"),
        (dict(function=7), "function is 7, not a str"),
        (dict(grid=(1, 2, 3)), "grid has 3 items, not 2"),
        (dict(limit="8"), "limit is '8', not int or NoneType"),
        (dict(scale="1"), "scale is '1', not a float"),
        (dict(function=object()), "function is a value of the type object, not a str"),
    ],
)
def test_a_wrong_type_is_named_with_its_field(fields: dict[str, Any], message: str) -> None:
    """The error comes before the plugin's own code converts the value."""
    with pytest.raises(TypeError) as caught:
        ExampleBuild(**{"function": "k", **fields})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "fields",
    [
        dict(args=["x", 1, 2.5], flags=["-O2"], defines={"A": True}, scale=2, limit=None, grid=[1, 2]),
        dict(args=(), flags=(), defines={}, limit=3, anything=object()),
    ],
)
def test_lists_for_tuples_and_ints_for_floats_are_accepted(fields: dict[str, Any]) -> None:
    """Bools for ints, too; the Build survives its travel."""
    build = ExampleBuild(function="k", **fields)
    if fields.get("anything") is None:
        assert ExampleBuild.from_plain(build.to_plain()).args == build.args
