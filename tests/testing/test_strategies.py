"""The conformance suite for strategies passes ktuned's strategies, and names each broken promise."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.search import Random, load_strategy
from ktuned.testing.strategies import check_strategy


@pytest.mark.parametrize("name", ["exhaustive", "guided", "random"])
def test_our_strategies_conform(name: str) -> None:
    check_strategy(load_strategy(name))


class RepeatsConfigs(Random):
    def ask(self, n: int) -> list[Any]:
        return [{"TILE": 8, "STAGES": 1, "FAST": False}]


class LeavesSpace(Random):
    def ask(self, n: int) -> list[Any]:
        return [{"TILE": 7}]


class AsksTooMany(Random):
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


class IgnoresSeed(Random):
    instances = 0

    def __init__(self, space: Any, seed: int) -> None:
        IgnoresSeed.instances += 1
        super().__init__(space, IgnoresSeed.instances)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (RepeatsConfigs, "twice"),
        (LeavesSpace, "does not hold"),
        (AsksTooMany, "asked for"),
        (NeverFinishes, "is not finished"),
        (StopsEarly, "finished before"),
        (IgnoresSeed, "equal seeds"),
    ],
)
def test_broken_promise_is_named(kind: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_strategy(kind)
