"""Names that Python code takes from outside."""

from __future__ import annotations

import ast

import pytest

from ktuned.python.cells import find_free_names


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(a, b=d):\n    c = a\n    return b + c + e.f.g", {"d", "e"}),
        ("def f(xs):\n    return [y for x in xs if (y := g(x))], y", {"g"}),
        ("def f():\n    global x\n    x = 1\n    return x", {"x"}),
        ("def f(a):\n    def g():\n        return a + h\n    return g", {"h"}),
        ("class A(B):\n    c = 1\n    d = c\n    def e(self):\n        return c", {"B", "c"}),
        ("def f(a):\n    match a:\n        case {'k': v, **rest} if p:\n            return v, rest", {"p"}),
        ("def f(n):\n    return [i * j for i in n]", {"j"}),
        ("f = lambda a: a + b", {"b"}),
    ],
    ids=["defaults", "walrus", "global", "closure", "class", "match", "comprehension", "lambda"],
)
def test_only_names_from_outside_are_found(source: str, names: set[str]) -> None:
    """Names that the statement assigns are left out."""
    (statement,) = ast.parse(source).body
    assert find_free_names(statement) == names


def test_without_scopes_every_loaded_name_is_found() -> None:
    """Python 3.11 cannot unparse some statements."""
    (statement,) = ast.parse("def f(d):\n    return g(f\"{d['\x07']}\")").body
    assert "g" in find_free_names(statement)
