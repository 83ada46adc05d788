"""How a worker describes exceptions."""

from __future__ import annotations

import pytest

from ktuned.model import describe_error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no such luck"), "ValueError: no such luck"),
        (ValueError(), "ValueError"),
        (KeyError("args names the tensor 'z'; inputs makes x"), "KeyError: args names the tensor 'z'; inputs makes x"),
        (KeyError("z"), "KeyError: 'z'"),
        (KeyError("a", "b c"), "KeyError: ('a', 'b c')"),
    ],
)
def test_an_exception_is_described_by_its_type_and_text(error: Exception, expected: str) -> None:
    """A sentence is shown without the quotes that KeyError puts around its key."""
    assert describe_error(error) == expected
