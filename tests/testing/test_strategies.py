"""The conformance suite for strategies passes ours, and finds each promise broken where it is."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.search import Random, load_strategy
from ktuned.testing.strategies import check_strategy


@pytest.mark.parametrize("name", ["exhaustive", "guided", "random"])
def test_our_strategies_conform(name: str) -> None:
    """Every strategy that ships keeps every promise."""
    check_strategy(load_strategy(name))


class Repeats(Random):
    def ask(self, n: int) -> list[Any]:
        return [{"TILE": 8, "STAGES": 1, "FAST": False}]


class Strays(Random):
    def ask(self, n: int) -> list[Any]:
        return [{"TILE": 7}]


class TooMany(Random):
    def ask(self, n: int) -> list[Any]:
        return super().ask(n + 1)


class NeverFinishes(Random):
    @property
    def finished(self) -> bool:
        return False


class StopsEarly(Random):
    @property
    def finished(self) -> bool:
        return self._found_any


class Unsteady(Random):
    instances = 0

    def __init__(self, space: Any, seed: int) -> None:
        Unsteady.instances += 1
        super().__init__(space, Unsteady.instances)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Repeats, "twice"),
        (Strays, "does not hold"),
        (TooMany, "asked for"),
        (NeverFinishes, "is not finished"),
        (StopsEarly, "finished before"),
        (Unsteady, "equal seeds"),
    ],
)
def test_broken_promise_is_named(kind: Any, words: str) -> None:
    """Each broken promise fails with a line that says which one it is."""
    with pytest.raises(AssertionError, match=words):
        check_strategy(kind)
