"""Strategies: each config once, in an order that only the seed decides, however large the space is."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tracemalloc
from importlib.metadata import EntryPoint
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned import space
from ktuned.declaration import make_plain_size
from ktuned.model.errors import KernelFileError, UsageError
from ktuned.model.values import Outcome, Scalar, canonical
from ktuned.search.domain import ESTIMATE_S, SAMPLE_S
from ktuned.search.exhaustive import FEW, MIXED, Exhaustive, mix_configs
from ktuned.search.guided import Guided
from ktuned.search.random import WINDOW, Random, permute_indices
from ktuned.search.strategy import ASK_S, Strategy, load_strategy

SPACES = {
    "axes": space(A=range(7), B=["x", "y"], where=lambda p, c: c.A != p.M),
    "list": space([{"A": value} for value in range(9)]),
    "callable": space(lambda p: ({"A": value} for value in range(9)), where=lambda p, c: c.A % 2 == 0),
}


def ask_until_finished(strategy: Strategy, n: int = 3) -> list[dict[str, Scalar]]:
    """Ask until the strategy is finished, and report each config as measured."""
    configs: list[dict[str, Scalar]] = []
    while not strategy.finished:
        asked = strategy.ask(n)
        assert len(asked) <= n
        for config in asked:
            strategy.tell(config, Outcome.MEASURED, 1.0)
        configs += asked
    assert strategy.ask(n) == []
    return configs


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("strategy", [Exhaustive, Random])
@pytest.mark.parametrize("n", [1, 3, 100])
def test_each_valid_config_is_asked_once(strategy: type[Strategy], kind: str, n: int) -> None:
    """The result depends neither on the kind of space nor on the batch size."""
    bound = SPACES[kind].bind({"M": 3})
    asked = ask_until_finished(strategy(bound, 5), n)
    assert sorted(map(canonical, asked)) == sorted(map(canonical, bound))


def test_exhaustive_keeps_the_order_of_a_few() -> None:
    """Few configs are cheap, and their author may have sorted them."""
    bound = space(A=list(range(FEW))).bind({"M": 3})
    assert ask_until_finished(Exhaustive(bound, 1)) == ask_until_finished(Exhaustive(bound, 2)) == list(bound)


def test_exhaustive_mixes_many() -> None:
    """The best configs are neighbours: wherever they are, some of them come early, in a fixed order."""
    bound = space(A=list(range(2 * MIXED + 10))).bind({"M": 3})
    order = [int(config["A"]) for config in ask_until_finished(Exhaustive(bound, 1))]
    assert order == [int(config["A"]) for config in ask_until_finished(Exhaustive(bound, 2), 7)]
    assert sorted(order) == list(range(2 * MIXED + 10))
    for start in (0, MIXED):
        first = order[start : start + 40]
        assert all(
            any(start + tenth <= index < start + tenth + MIXED // 5 for index in first) for tenth in range(0, 200, 50)
        )


def test_a_slow_constraint_is_not_waited_for() -> None:
    """Configs that were found within a window's time are proposed."""
    seconds = itertools.count()
    configs = mix_configs(iter([{"A": 1}, None, {"A": 2}]), clock=lambda: float(next(seconds)))
    assert [config["A"] for config in configs if config is not None] == [1, 2]
    seconds = itertools.count()
    configs = mix_configs(iter([{"A": 1}, *[None] * 9]), clock=lambda: float(next(seconds)))
    assert next(config for config in itertools.islice(configs, 3) if config is not None) == {"A": 1}


@pytest.mark.parametrize("kind", SPACES)
def test_random_depends_on_the_seed_alone(kind: str) -> None:
    """Batches do not matter, and other seeds give other orders."""
    bound = SPACES[kind].bind({"M": 3})
    assert ask_until_finished(Random(bound, 1), 1) == ask_until_finished(Random(bound, 1), 4)
    assert (
        len({canonical({"order": list(map(canonical, ask_until_finished(Random(bound, seed))))}) for seed in range(8)})
        > 4
    )


@given(st.integers(1, 3000), st.integers(-(2**70), 2**70))
def test_permutation_has_every_index_once(size: int, seed: int) -> None:
    """Every index comes exactly once, for any size and seed."""
    assert sorted(permute_indices(size, seed)) == list(range(size))


@given(st.integers(2, 10**18), st.integers(0, 100))
def test_permutation_starts_anywhere(size: int, seed: int) -> None:
    """The first indices are distinct and inside the space, for any size."""
    first = list(itertools.islice(permute_indices(size, seed), 20))
    assert len(set(first)) == min(20, size)
    assert all(0 <= index < size for index in first)


def test_permutation_is_fair() -> None:
    """Over many seeds, each index comes first about equally often (chi-square, p < 1e-6)."""
    counts = [0] * 10
    for seed in range(5000):
        counts[next(permute_indices(10, seed))] += 1
    assert sum((count - 500) ** 2 / 500 for count in counts) < 45


def test_permutation_spreads_over_a_huge_space() -> None:
    """The first hundred of 10^18 indices fall into all ten tenths of the space."""
    assert {index // 10**17 for index in itertools.islice(permute_indices(10**18, 0), 100)} == set(range(10))


def test_order_is_fixed_for_good() -> None:
    """A seed promises the order, so it must never change between versions."""
    assert list(permute_indices(10, 0)) == PERMUTATION_OF_10


PERMUTATION_OF_10 = [9, 5, 2, 0, 7, 8, 6, 1, 3, 4]


def test_order_is_the_same_in_another_process() -> None:
    """The order depends neither on the hash seed nor on the kind of space."""
    script = """
from ktuned import space
from ktuned.search import Random
for declared in (space(A=range(10**6), B=["x", "y"]), space(lambda p: ({"A": a} for a in range(50)))):
    print(Random(declared.bind({}), 9).ask(20))
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""


@pytest.mark.parametrize("strategy", [Exhaustive, Random])
def test_huge_space_costs_nothing(strategy: type[Strategy]) -> None:
    """Fifty configs of 10^18 are asked at once and within a megabyte."""
    bound = space(A=range(10**6), B=range(10**6), C=range(10**6)).bind({})
    tracemalloc.start()
    asked = strategy(bound, 0).ask(50)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len({canonical(config) for config in asked}) == 50
    assert peak_bytes < 2**20


@pytest.mark.parametrize("strategy", [Exhaustive, Random, Guided])
@pytest.mark.parametrize("where", [(), lambda p, c: c.K0 != c.K1])
def test_more_configs_than_any_integer_type_holds(strategy: type[Strategy], where: Any) -> None:
    """A compiler's flags as knobs make 3^258 configs: the strategy starts, proposes and takes outcomes."""
    bound = space(**{f"K{number}": ["on", "off", "default"] for number in range(258)}, where=where).bind({})
    instance = strategy(bound, 0)
    for _ in range(6):
        for config in instance.ask(4):
            assert len(config) == 258
            instance.tell(config, Outcome.MEASURED, 1.0 + sum(value != "on" for value in config.values()))
    assert make_plain_size(bound.size) is None
    assert instance.valid is None or instance.valid.number > 2**64
    # The size exceeds a BLAKE2b digest and a float.
    assert len(set(itertools.islice(permute_indices(3**700, 0), 20))) == 20


@pytest.mark.parametrize("strategy", [Exhaustive, Random])
@pytest.mark.parametrize("kind", ["axes", "callable"])
def test_endless_where_gives_way(strategy: type[Strategy], kind: str) -> None:
    """A constraint that rejects all of 10^9 configs never holds one ask beyond its time limit."""

    def reject(p: Any, c: Any) -> bool:
        return False

    declared = (
        space(A=range(10**9), where=reject)
        if kind == "axes"
        else space(lambda p: ({"A": a} for a in range(10**9)), where=reject)
    )
    instance = strategy(declared.bind({}), 0)
    start = process_time()
    assert instance.ask(1) == []
    # The estimate of the valid share and the last draw may come on top.
    assert process_time() - start < ASK_S + ESTIMATE_S + SAMPLE_S + 0.3
    assert not instance.finished


@pytest.mark.parametrize("strategy", [Exhaustive, Random])
@pytest.mark.parametrize(
    "declared", [space(A=[1, 2], where=lambda p, c: False), space(lambda p: [])], ids=["axes", "callable"]
)
def test_space_without_a_valid_config_is_an_error(strategy: type[Strategy], declared: Any) -> None:
    """The error is reported once; then the strategy is finished."""
    instance = strategy(declared.bind({"M": 3}), 0)
    with pytest.raises(KernelFileError, match="no valid config for the problem M=3"):
        instance.ask(1)
    assert instance.finished
    assert instance.ask(1) == []


def test_callable_is_shuffled_within_its_window() -> None:
    """A long callable space is drawn from its first window, without being walked to its end."""
    walked = 0

    def configs(p: Any) -> Any:
        nonlocal walked
        for value in itertools.count():
            walked += 1
            yield {"A": value}

    asked = [int(config["A"]) for config in Random(space(configs).bind({}), 0).ask(10)]
    assert walked == WINDOW + 9
    assert asked != sorted(asked)


def test_strategies_are_found_by_name() -> None:
    """The strategies of ktuned itself are entry points like any other."""
    points = [EntryPoint("random", "ktuned.search:Random", "ktuned.strategies")]
    assert load_strategy("random", points) is Random
    assert (load_strategy("exhaustive"), load_strategy("random")) == (Exhaustive, Random)
    assert load_strategy("random", [*points, EntryPoint("random", "json:dumps", "ktuned.strategies")]) is Random


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("best", r"there is no strategy 'best' \(installed: auto, broken, leaves, wrong\)"),
        ("broken", "the strategy 'broken' cannot be imported: ModuleNotFoundError"),
        ("leaves", "the strategy 'leaves' cannot be imported: SystemExit: 3"),
        ("wrong", "'wrong' is not a subclass of ktuned.search.Strategy"),
    ],
)
def test_strategy_that_cannot_be_loaded_is_an_error_of_one_line(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module_that_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("leaves", "a_module_that_exits:X", "ktuned.strategies"),
        EntryPoint("broken", "no_such_module:X", "ktuned.strategies"),
        EntryPoint("wrong", "json:dumps", "ktuned.strategies"),
    ]
    with pytest.raises(UsageError, match=words):
        load_strategy(name, points)
