"""Portfolios, fitted to matrices of whole spaces: what they lose on shapes to which they were not fitted."""

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


def split_problems(matrix: Matrix, seed: int = 3, share: float = 0.6) -> tuple[Matrix, Matrix]:
    """Return the matrix of the fitted problems and the matrix of the others."""
    order = list(range(len(matrix)))
    random.Random(seed).shuffle(order)
    count = round(share * len(order))
    return matrix.select_rows(order[:count]), matrix.select_rows(order[count:])


def list_tree_configs(tree: Tree) -> list[str]:
    """Return the configs of a tree's leaves, each once."""
    return list(dict.fromkeys(leaf.config for leaf in list_leaves(tree)))


def compute_tree_loss(tree: Tree, matrix: Matrix) -> float:
    """Return the mean loss of a matrix's problems with the configs that a tree gives them."""
    return compute_mean_loss(matrix, [find_leaf(tree, problem).config for problem in matrix.problems])


def compute_nearest_loss(fitted: Matrix, matrix: Matrix) -> float:
    """Return the mean loss if each problem gets the best config of the nearest fitted problem."""
    chosen = []
    for problem in matrix.problems:
        nearest_row = min(range(len(fitted)), key=lambda row: count_octaves(problem, fitted.problems[row]))
        chosen.append(min(fitted.costs[nearest_row], key=lambda config: fitted.costs[nearest_row][config]))
    return compute_mean_loss(matrix, chosen)


def compute_single_loss(fitted: Matrix, matrix: Matrix) -> float:
    """Return the mean loss with one config for all problems."""
    return compute_mean_loss(matrix, choose_configs(fitted, 1) * len(matrix))


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_measured_cpu_kernel_is_within_the_wanted_loss(tmp_path: Path) -> None:
    """At most 5 configs lose at most 2 % on held-out shapes, far less than one config; no config fails."""
    measured = cpu_kernel.measure_sorting(tmp_path, 200, seed=3)
    losses, single_losses = [], []
    for seed in range(4):
        fitted, held_out = split_problems(measured, seed, share=0.8)
        tree = fit_portfolio(fitted, 5, MAX_LOSS / 4)
        assert len(list_tree_configs(tree)) <= 5
        losses.append(compute_tree_loss(tree, held_out))
        single_losses.append(compute_single_loss(fitted, held_out))
        assert all(
            held_out.works(row, find_leaf(tree, problem).config) for row, problem in enumerate(held_out.problems)
        )
    assert sum(losses) / len(losses) <= MAX_LOSS
    assert sum(losses) < sum(single_losses) / 10


def test_a_recorded_gemm_is_within_the_wanted_loss() -> None:
    """At most 5 configs lose at most 2 % on held-out shapes, no more than the nearest problem's config."""
    recorded = json.loads(RECORDED.read_text())
    recorded["costs"] = [
        {config: FAILED if cost is None else cost for config, cost in row.items()} for row in recorded["costs"]
    ]
    matrix = msgspec.convert(recorded, Matrix)
    assert len(matrix) >= 100
    losses, nearest_losses = [], []
    for seed in range(5):
        fitted, held_out = split_problems(matrix, seed, share=0.8)
        tree = fit_portfolio(fitted, 5, MAX_LOSS)
        assert len(list_tree_configs(tree)) <= 5
        losses.append(compute_tree_loss(tree, held_out))
        nearest_losses.append(compute_nearest_loss(fitted, held_out))
        assert all(
            held_out.works(row, find_leaf(tree, problem).config) for row, problem in enumerate(held_out.problems)
        )
    assert sum(losses) / len(losses) <= MAX_LOSS
    assert sum(losses) <= sum(nearest_losses)


@pytest.mark.parametrize("seed", range(3))
def test_a_modelled_gemm_is_within_the_wanted_loss(seed: int) -> None:
    """Five configs lose less than the nearest problem's config and a fifth of a single config; no config fails."""
    problems = list(gemm_model.generate_shapes(200, seed))
    fitted, held_out = gemm_model.make_matrix(problems[:100]), gemm_model.make_matrix(problems[100:])
    tree = fit_portfolio(fitted, 5, MAX_LOSS)
    loss = compute_tree_loss(tree, held_out)
    assert loss < compute_nearest_loss(fitted, held_out)
    assert loss < compute_single_loss(fitted, held_out) / 5
    expected = [find_leaf(tree, problem).expected_loss for problem in held_out.problems]
    assert loss < 2 * sum(expected) / len(expected), "the estimate from held-out problems says what to expect"
    assert all(held_out.works(row, find_leaf(tree, problem).config) for row, problem in enumerate(held_out.problems))


def test_no_leaf_has_a_config_that_fails_on_its_problems() -> None:
    """The leaf is split or gets another config, however fast the failing config is elsewhere."""
    problems = [{"N": size} for size in range(1, 33)]
    costs = [{"fast": FAILED if problem["N"] % 8 == 3 else 1.0, "slow": 1.5} for problem in problems]
    tree = fit_portfolio(Matrix(tuple(problems), (1.0,) * 32, tuple(costs)), 1, MAX_LOSS)
    assert list_tree_configs(tree) == ["slow"]
    tree_of_two = fit_portfolio(Matrix(tuple(problems), (1.0,) * 32, tuple(costs)), 2, MAX_LOSS)
    assert all(costs[row][find_leaf(tree_of_two, problem).config] < FAILED for row, problem in enumerate(problems))


def test_without_a_config_that_works_there_is_no_portfolio() -> None:
    """A config that fails would be worse than no answer."""
    problems = ({"N": 1}, {"N": 2})
    with pytest.raises(ValueError, match=r'known to work for {"N":2}'):
        fit_portfolio(Matrix(problems, (1.0, 1.0), ({"a": 1.0, "b": FAILED}, {"a": FAILED, "b": FAILED})), 2)
    with pytest.raises(ValueError, match="work on all 2 problems"):
        fit_portfolio(Matrix(problems, (1.0, 1.0), ({"a": 1.0, "b": FAILED}, {"a": FAILED, "b": 1.0})), 1)


def test_no_more_configs_are_taken_than_are_needed() -> None:
    """If one config is best everywhere, the tree has one leaf and no loss."""
    matrix = Matrix(({"N": 1}, {"N": 2}, {"N": 3}), (1.0,) * 3, ({"a": 1.0, "b": 2.0},) * 3)
    tree = fit_portfolio(matrix, 4)
    assert list_tree_configs(tree) == ["a"]
    assert len(list(list_leaves(tree))) == 1
    assert [leaf.expected_loss for leaf in list_leaves(tree)] == [0.0]


def test_a_tree_splits_by_fields_of_all_kinds() -> None:
    """The kinds are a size, a product of two sizes, divisibility, a text and a bool."""
    rules: dict[str, Callable[[dict[str, Any]], bool]] = {
        "size": lambda problem: problem["M"] > 100,
        "product": lambda problem: problem["M"] * problem["N"] > 10_000,
        "divisible": lambda problem: problem["N"] % 8 == 0,
        "dtype": lambda problem: problem["dtype"] == "float16",
        "flag": lambda problem: problem["causal"] is True,
    }
    rng = random.Random(3)
    problems: list[dict[str, Any]] = [
        {
            "M": rng.randrange(1, 300),
            "N": rng.randrange(1, 300),
            "dtype": rng.choice(["float16", "float32", "int8"]),
            "causal": rng.random() < 0.5,
        }
        for _ in range(150)
    ]
    for name, rule in rules.items():
        costs = tuple({"yes": 1.0 + (not rule(problem)), "no": 1.0 + rule(problem)} for problem in problems)
        tree = fit_portfolio(Matrix(tuple(problems), (1.0,) * 150, costs), 4)
        assert compute_tree_loss(tree, Matrix(tuple(problems), (1.0,) * 150, costs)) == 0.0, name
        assert all(leaf.expected_loss < 0.1 for leaf in list_leaves(tree)), name
        assert len(list(list_leaves(tree))) == 2, name


def test_a_portfolio_serves_the_problems_with_weight() -> None:
    """With one config allowed, the problem that takes most time gets its config."""
    problems = ({"N": 1}, {"N": 2}, {"N": 3})
    costs = ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0})
    assert list_tree_configs(fit_portfolio(Matrix(problems, (1.0, 1.0, 1.0), costs), 1)) == ["a"]
    assert list_tree_configs(fit_portfolio(Matrix(problems, (1.0, 1.0, 9.0), costs), 1)) == ["b"]


def test_holes_are_measured_only_where_it_matters() -> None:
    """The shortlist has only useful configs, and a config with a hole is in no portfolio."""
    problems = list(gemm_model.generate_shapes(30, 3))
    full_matrix = gemm_model.make_matrix(problems)
    # Ten problems were tuned; for the others, only the default was measured.
    default = canonical(gemm_model.CONFIGS[0])
    holes = Matrix(
        full_matrix.problems,
        full_matrix.weights,
        tuple(costs if row < 10 else {default: costs[default]} for row, costs in enumerate(full_matrix.costs)),
    )
    shortlist = shortlist_configs(holes, 12)
    assert 5 <= len(shortlist) <= 12
    assert list_tree_configs(fit_portfolio(holes, 4)) == [default]
    filled = Matrix(
        full_matrix.problems,
        full_matrix.weights,
        tuple(
            costs if row < 10 else {config: costs[config] for config in [default, *shortlist]}
            for row, costs in enumerate(full_matrix.costs)
        ),
    )
    tree = fit_portfolio(filled, 5)
    assert compute_mean_loss(full_matrix, [find_leaf(tree, problem).config for problem in problems]) < 0.1


def test_clients_choose_as_the_daemon() -> None:
    """A tree as plain data gives every problem the same leaf, whatever its fields are, and lists each config once."""
    problems: list[Problem] = list(gemm_model.generate_shapes(60, 4))
    matrix = gemm_model.make_matrix(problems)
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(matrix))), Matrix) == matrix
    typed_problems: list[Problem] = [
        {**problem, "dtype": "f16" if index % 3 else "f32"} for index, problem in enumerate(problems)
    ]
    costs = [{"{}": 1.0 + (problem["dtype"] == "f16"), '{"BM":1}': 1.5} for problem in typed_problems]
    trees = [fit_portfolio(matrix, 4), fit_portfolio(Matrix(tuple(typed_problems), (1.0,) * 60, tuple(costs)), 2)]
    odd_problems: list[Problem] = [{}, {"M": "x", "N": True, "K": 0.5}, {"M": 0, "N": -8, "K": 1}, {"dtype": 3}]
    for tree in trees:
        wire = json.loads(json.dumps(tree_to_wire(tree)))
        portfolio_tree.check_tree(wire)
        for problem in [*problems, *typed_problems, *odd_problems]:
            leaf = find_leaf(tree, problem)
            assert portfolio_tree.find_leaf(wire, problem)["config"] == json.loads(leaf.config)
        assert sorted(map(canonical, portfolio_tree.list_configs(wire))) == sorted(list_tree_configs(tree))


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
    """A winners file may hold anything."""
    with pytest.raises(ValueError, match="not a tree of configs"):
        portfolio_tree.check_tree(tree)
