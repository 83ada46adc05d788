"""Portfolios by replay on matrices of whole spaces: what they lose on shapes that they were not fitted to."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ktuned.model import Problem, canonical
from ktuned.portfolio import (
    FAILED,
    Matrix,
    Tree,
    compute_mean_loss,
    count_octaves,
    find_leaf,
    fit_portfolio,
    list_leaves,
    shortlist_configs,
    tree_to_wire,
)
from ktuned.portfolio.matrix import choose_configs
from ktuned_client import portfolio_tree
from tests.portfolio import cpu_kernel, gemm_model

RECORDED = Path(__file__).parent.parent / "fixtures" / "gemm_matrix.json"
"""The latencies of ``examples/gpu_gemm`` on an H100: 40 configs, 100 shapes."""

MAX_LOSS = 0.02


def split(matrix: Matrix, seed: int = 3, share: float = 0.6) -> tuple[Matrix, Matrix]:
    """Return the matrix of the problems that are fitted to, and that of the others."""
    order = list(range(len(matrix)))
    random.Random(seed).shuffle(order)
    count = round(share * len(order))
    return matrix.select_rows(order[:count]), matrix.select_rows(order[count:])


def configs_of(tree: Tree) -> list[str]:
    """Return the configs of a tree's leaves, each once."""
    return list(dict.fromkeys(leaf.config for leaf in list_leaves(tree)))


def loss_of(tree: Tree, matrix: Matrix) -> float:
    """Return the mean loss of a matrix's problems with the configs that a tree gives them."""
    return compute_mean_loss(matrix, [find_leaf(tree, problem).config for problem in matrix.problems])


def nearest_loss(fitted: Matrix, matrix: Matrix) -> float:
    """Return the mean loss where each problem gets the best config of the nearest one that was fitted to."""
    chosen = []
    for problem in matrix.problems:
        nearest = min(range(len(fitted)), key=lambda row: count_octaves(problem, fitted.problems[row]))
        chosen.append(min(fitted.costs[nearest], key=lambda config: fitted.costs[nearest][config]))
    return compute_mean_loss(matrix, chosen)


def single_loss(fitted: Matrix, matrix: Matrix) -> float:
    """Return the mean loss with one config for all."""
    return compute_mean_loss(matrix, choose_configs(fitted, 1) * len(matrix))


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_measured_cpu_kernel_is_within_the_wanted_loss(tmp_path: Path) -> None:
    """At most 5 configs lose at most 2 % on shapes that were held out, less than one config does; all of them work."""
    measured = cpu_kernel.measure(tmp_path, 200, seed=3)
    losses, single = [], []
    for seed in range(4):
        fitted, held_out = split(measured, seed, share=0.8)
        tree = fit_portfolio(fitted, 5, MAX_LOSS / 4)
        assert len(configs_of(tree)) <= 5
        losses.append(loss_of(tree, held_out))
        single.append(single_loss(fitted, held_out))
        assert all(
            held_out.works(row, find_leaf(tree, problem).config) for row, problem in enumerate(held_out.problems)
        )
    assert sum(losses) / len(losses) <= MAX_LOSS
    assert sum(losses) < sum(single) / 10


def test_a_recorded_gemm_is_within_the_wanted_loss() -> None:
    """At most 5 configs lose at most 2 % on shapes that were held out, and less than the nearest problem's do."""
    recorded = json.loads(RECORDED.read_text())
    recorded["costs"] = [
        {config: FAILED if cost is None else cost for config, cost in row.items()} for row in recorded["costs"]
    ]
    matrix = msgspec.convert(recorded, Matrix)
    assert len(matrix) >= 100
    losses, nearest = [], []
    for seed in range(5):
        fitted, held_out = split(matrix, seed, share=0.8)
        tree = fit_portfolio(fitted, 5, MAX_LOSS)
        assert len(configs_of(tree)) <= 5
        losses.append(loss_of(tree, held_out))
        nearest.append(nearest_loss(fitted, held_out))
        assert all(
            held_out.works(row, find_leaf(tree, problem).config) for row, problem in enumerate(held_out.problems)
        )
    assert sum(losses) / len(losses) <= MAX_LOSS
    assert sum(losses) <= sum(nearest)


@pytest.mark.parametrize("seed", range(3))
def test_a_modelled_gemm_is_within_the_wanted_loss(seed: int) -> None:
    """Five configs for shapes of all kinds lose less than the nearest problem's, a fifth of one for all; all work."""
    problems = list(gemm_model.shapes(200, seed))
    fitted, held_out = gemm_model.matrix(problems[:100]), gemm_model.matrix(problems[100:])
    tree = fit_portfolio(fitted, 5, MAX_LOSS)
    loss = loss_of(tree, held_out)
    assert loss < nearest_loss(fitted, held_out)
    assert loss < single_loss(fitted, held_out) / 5
    expected = [find_leaf(tree, problem).expected_loss for problem in held_out.problems]
    assert loss < 2 * sum(expected) / len(expected), "the estimate from held-out problems says what to expect"
    assert all(held_out.works(row, find_leaf(tree, problem).config) for row, problem in enumerate(held_out.problems))


def test_no_leaf_has_a_config_that_fails_on_its_problems() -> None:
    """However fast it is elsewhere: the leaf is split, or another config is taken."""
    problems = [{"N": size} for size in range(1, 33)]
    costs = [{"fast": FAILED if problem["N"] % 8 == 3 else 1.0, "slow": 1.5} for problem in problems]
    tree = fit_portfolio(Matrix(tuple(problems), (1.0,) * 32, tuple(costs)), 1, MAX_LOSS)
    assert configs_of(tree) == ["slow"]
    both = fit_portfolio(Matrix(tuple(problems), (1.0,) * 32, tuple(costs)), 2, MAX_LOSS)
    assert all(costs[row][find_leaf(both, problem).config] < FAILED for row, problem in enumerate(problems))


def test_without_a_config_that_works_there_is_no_portfolio() -> None:
    """The error says so; an answer that fails would be worse than none."""
    problems = ({"N": 1}, {"N": 2})
    with pytest.raises(ValueError, match=r'known to work for {"N":2}'):
        fit_portfolio(Matrix(problems, (1.0, 1.0), ({"a": 1.0, "b": FAILED}, {"a": FAILED, "b": FAILED})), 2)
    with pytest.raises(ValueError, match="work on all 2 problems"):
        fit_portfolio(Matrix(problems, (1.0, 1.0), ({"a": 1.0, "b": FAILED}, {"a": FAILED, "b": 1.0})), 1)


def test_no_more_configs_are_taken_than_are_needed() -> None:
    """One config that is best everywhere makes a tree of one leaf, that loses nothing."""
    matrix = Matrix(({"N": 1}, {"N": 2}, {"N": 3}), (1.0,) * 3, ({"a": 1.0, "b": 2.0},) * 3)
    tree = fit_portfolio(matrix, 4)
    assert configs_of(tree) == ["a"]
    assert len(list(list_leaves(tree))) == 1
    assert [leaf.expected_loss for leaf in list_leaves(tree)] == [0.0]


def test_a_tree_splits_by_fields_of_all_kinds() -> None:
    """A size, a product of two, divisibility, a text and a bool: each alone is found where it decides."""
    rules: dict[str, Callable[[dict[str, Any]], bool]] = {
        "size": lambda problem: problem["M"] > 100,
        "product": lambda problem: problem["M"] * problem["N"] > 10_000,
        "divisible": lambda problem: problem["N"] % 8 == 0,
        "dtype": lambda problem: problem["dtype"] == "float16",
        "flag": lambda problem: problem["causal"] is True,
    }
    chance = random.Random(3)
    problems: list[dict[str, Any]] = [
        {
            "M": chance.randrange(1, 300),
            "N": chance.randrange(1, 300),
            "dtype": chance.choice(["float16", "float32", "int8"]),
            "causal": chance.random() < 0.5,
        }
        for _ in range(150)
    ]
    for name, rule in rules.items():
        costs = tuple({"yes": 1.0 + (not rule(problem)), "no": 1.0 + rule(problem)} for problem in problems)
        tree = fit_portfolio(Matrix(tuple(problems), (1.0,) * 150, costs), 4)
        assert loss_of(tree, Matrix(tuple(problems), (1.0,) * 150, costs)) == 0.0, name
        assert all(leaf.expected_loss < 0.1 for leaf in list_leaves(tree)), name
        assert len(list(list_leaves(tree))) == 2, name


def test_a_portfolio_serves_the_problems_with_weight() -> None:
    """A problem that takes most of the time gets its config where only one is allowed."""
    problems = ({"N": 1}, {"N": 2}, {"N": 3})
    costs = ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0})
    assert configs_of(fit_portfolio(Matrix(problems, (1.0, 1.0, 1.0), costs), 1)) == ["a"]
    assert configs_of(fit_portfolio(Matrix(problems, (1.0, 1.0, 9.0), costs), 1)) == ["b"]


def test_holes_are_measured_only_where_it_matters() -> None:
    """The shortlist has the useful configs alone, and a config with a hole is in no portfolio."""
    problems = list(gemm_model.shapes(30, 3))
    whole = gemm_model.matrix(problems)
    # Ten problems were tuned; of the others only the default is known.
    default = canonical(gemm_model.CONFIGS[0])
    holes = Matrix(
        whole.problems,
        whole.weights,
        tuple(costs if row < 10 else {default: costs[default]} for row, costs in enumerate(whole.costs)),
    )
    wanted = shortlist_configs(holes, 12)
    assert 5 <= len(wanted) <= 12
    assert configs_of(fit_portfolio(holes, 4)) == [default]
    filled = Matrix(
        whole.problems,
        whole.weights,
        tuple(
            costs if row < 10 else {config: costs[config] for config in [default, *wanted]}
            for row, costs in enumerate(whole.costs)
        ),
    )
    tree = fit_portfolio(filled, 5)
    assert compute_mean_loss(whole, [find_leaf(tree, problem).config for problem in problems]) < 0.1


def test_clients_choose_as_the_daemon() -> None:
    """As plain data a tree gives every problem the same leaf, whatever its fields are, and has each config once."""
    problems: list[Problem] = list(gemm_model.shapes(60, 4))
    matrix = gemm_model.matrix(problems)
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(matrix))), Matrix) == matrix
    kinds: list[Problem] = [
        {**problem, "dtype": "f16" if place % 3 else "f32"} for place, problem in enumerate(problems)
    ]
    costs = [{"{}": 1.0 + (problem["dtype"] == "f16"), '{"BM":1}': 1.5} for problem in kinds]
    trees = [fit_portfolio(matrix, 4), fit_portfolio(Matrix(tuple(kinds), (1.0,) * 60, tuple(costs)), 2)]
    strange: list[Problem] = [{}, {"M": "x", "N": True, "K": 0.5}, {"M": 0, "N": -8, "K": 1}, {"dtype": 3}]
    for tree in trees:
        wire = json.loads(json.dumps(tree_to_wire(tree)))
        portfolio_tree.check_tree(wire)
        for problem in [*problems, *kinds, *strange]:
            leaf = find_leaf(tree, problem)
            assert portfolio_tree.find_leaf(wire, problem)["config"] == json.loads(leaf.config)
        assert sorted(map(canonical, portfolio_tree.list_configs(wire))) == sorted(configs_of(tree))


@pytest.mark.parametrize(
    "tree",
    [
        3,
        {},
        {"config": {"BM": []}, "expected_loss": 0.0, "problems": 1},
        {"config": {"BM": 1}, "expected_loss": "0", "problems": 1},
        {"figure": [], "limit": 1, "passing": {}, "failing": {}},
        {"figure": ["M"], "limit": "x", "passing": {}, "failing": {}},
        {"figure": ["M"], "limit": 1, "passing": {"config": {}, "expected_loss": 0.0, "problems": 1}},
    ],
)
def test_what_is_no_tree_is_refused(tree: object) -> None:
    """A file of winners may hold anything."""
    with pytest.raises(ValueError, match="not a tree of configs"):
        portfolio_tree.check_tree(tree)
