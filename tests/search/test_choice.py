"""The choice of a strategy, and its supervision: a broken strategy ends its job with a line that names it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ktuned import space
from ktuned.model import Outcome, Plan, UsageError
from ktuned.search import Random, StrategyFault, choose_strategy
from ktuned.search.choice import SupervisedStrategy

AXES = space(A=range(10), B=range(10), where=lambda p, c: c.A <= c.B)


@pytest.mark.parametrize(
    ("declared", "plan", "expected"),
    [
        (AXES, Plan(trials=55), "exhaustive"),
        (AXES, Plan(trials=54), "guided"),
        (AXES, Plan(trials=1000, time_limit_s=5.0), "guided"),
        (space([{"A": 1}, {"A": 2}]), Plan(trials=2), "exhaustive"),
        (space(lambda p: [{"A": 1}]), Plan(trials=1000), "guided"),
        (space(A=range(10**9)), Plan(trials=1000), "guided"),
    ],
)
def test_auto_is_exhaustive_where_the_budget_covers_the_space(declared: Any, plan: Plan, expected: str) -> None:
    """Valid configs are counted; a time limit never certainly covers the space."""
    strategy = choose_strategy(declared.bind({}), plan)
    assert (strategy.name, strategy.notice) == (expected, "")
    assert strategy.ask(1)


@pytest.mark.parametrize("fault", ["ImportError('no libopenblas')", "RuntimeError('built for another processor')"])
def test_auto_works_without_numpy(tmp_path: Path, fault: str) -> None:
    """Without a working NumPy, the search is random and a notice says so; huge spaces work, too."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text(f"raise {fault}")
    script = """
from ktuned import space
from ktuned.model import Plan
from ktuned.search import choose_strategy
huge = space(A=range(1000), B=range(1000), where=lambda p, c: hash(c.A) > c.B)
for declared in (space(A=range(10), B=range(10)), huge):
    chosen = choose_strategy(declared.bind({}), Plan(trials=10))
    print(chosen.name, len(chosen.ask(3)), chosen.notice)
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    notice = "guided search needs NumPy, which cannot be imported here: searching at random instead"
    assert process.stdout.splitlines() == [f"random 3 {notice}"] * 2


def test_unknown_strategy_is_a_usage_error() -> None:
    """The message lists the installed strategies."""
    with pytest.raises(UsageError, match=r"there is no strategy 'best' \(installed: auto, exhaustive, guided"):
        choose_strategy(AXES.bind({}), Plan("best"))


class FixedAnswer(Random):
    answer: Any = ()

    def ask(self, n: int) -> list[Any]:
        return self.answer  # type: ignore[no-any-return]


class RaisesOnAccess(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        return 1 / 0


class ErrorWithoutText(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class RaisesErrorWithoutText(Random):
    def ask(self, n: int) -> list[Any]:
        raise ErrorWithoutText


class Raises(Random):
    def ask(self, n: int) -> list[Any]:
        raise ValueError("no\nidea")


class RaisesOnTell(Random):
    def tell(self, config: Any, outcome: Outcome, latency_us: float | None) -> None:
        raise KeyError("A")


class RaisesAtOnce(Random):
    def __init__(self, space: Any, seed: int) -> None:
        raise RuntimeError("no device")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([{"A": 5, "B": 2}], r"the strategy \'odd\' proposed a config that is not in the space: A=5 B=2"),
        ([{"A": 1}], "not in the space"),
        ([{"A": object()}], "something that is not a config: TypeError"),
        ([1], "proposed 1, which is not a config"),
        ([{"A": 1, "B": 2}] * 2, "proposed a config twice"),
        ([{"A": 1, "B": 2}] * 4, "proposed more configs than the 2 that it was asked for"),
        (itertools.repeat({"A": 1, "B": 2}), "proposed more configs than the 2 that it was asked for"),
        ([RaisesOnAccess(A=1, B=2)], "proposed something that is not a config: ZeroDivisionError"),
    ],
)
def test_invalid_proposal_names_the_strategy(answers: list[Any], words: str) -> None:
    """A repeated, foreign or superfluous config ends the search."""
    strategy_type = type("Odd", (FixedAnswer,), {"answer": answers})
    with pytest.raises(StrategyFault, match=words):
        SupervisedStrategy("odd", strategy_type, AXES.bind({}), 0).ask(2)


def test_strategy_that_raises_is_named() -> None:
    """Any exception at any time becomes one line."""
    bound = AXES.bind({})
    with pytest.raises(StrategyFault, match=r"(?m)^the strategy 'odd' failed as it chooses: ValueError: no idea$"):
        SupervisedStrategy("odd", Raises, bound, 0).ask(1)
    with pytest.raises(StrategyFault, match=r"(?m)failed as it chooses: ErrorWithoutText:$"):
        SupervisedStrategy("odd", RaisesErrorWithoutText, bound, 0).ask(1)
    with pytest.raises(StrategyFault, match="failed as it records an outcome: KeyError: 'A'"):
        SupervisedStrategy("odd", RaisesOnTell, bound, 0).tell({"A": 1, "B": 2}, Outcome.MEASURED, 1.0)
    with pytest.raises(StrategyFault, match="failed as it starts: RuntimeError: no device"):
        SupervisedStrategy("odd", RaisesAtOnce, bound, 0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("finished", "failed as it says if it is finished: RuntimeError: no idea"),
        ("converged", "failed as it says if it has converged: RuntimeError: no idea"),
        ("learns", "failed as it says if it learns: RuntimeError: no idea"),
        ("valid", "failed as it counts the space: RuntimeError: no idea"),
    ],
)
def test_strategy_whose_property_raises_is_named(name: str, words: str) -> None:
    def raise_error(self: Any) -> Any:
        raise RuntimeError("no idea")

    strategy_type = type("Odd", (Random,), {name: property(raise_error)})
    with pytest.raises(StrategyFault, match=f"(?m)^the strategy 'odd' {words}$"):
        getattr(SupervisedStrategy("odd", strategy_type, AXES.bind({}), 0), name)


def test_strategy_that_exits_or_miscounts_is_named() -> None:
    """An exit would end the worker silently; a count must be a Count."""

    def exit_process(self: Any, n: int) -> Any:
        raise SystemExit(3)

    with pytest.raises(StrategyFault, match="failed as it chooses: SystemExit: 3"):
        SupervisedStrategy("odd", type("Odd", (Random,), {"ask": exit_process}), AXES.bind({}), 0).ask(1)
    strategy_type = type("Odd", (Random,), {"valid": 7})
    with pytest.raises(StrategyFault, match="counts the space as 7, which is neither a Count nor None"):
        _ = SupervisedStrategy("odd", strategy_type, AXES.bind({}), 0).valid
