"""Optuna's samplers as strategies: they pass the conformance suite and learn."""

from __future__ import annotations

import math
from statistics import mean
from typing import Any

import pytest

from ktuned import space
from ktuned.model import Outcome, Plan, canonical
from ktuned.search import StrategyFault, choose_strategy
from ktuned.testing.strategies import check_strategy

optuna = pytest.importorskip("optuna")
ktuned_optuna = pytest.importorskip("ktuned_optuna")

BOWL = space(x=range(20), y=[2**k for k in range(10)], z=["a", "b", "c"], where=lambda p, c: c.x * c.y < 4000)


def compute_bowl_latency(config: Any) -> float:
    """Return a latency in µs whose optimum is 10 at (6, 32, "b")."""
    distance = (config["x"] - 6) ** 2 / 100 + (math.log2(config["y"]) - 5) ** 2 / 20
    return 10 * math.exp(distance) * (1.0 if config["z"] == "b" else 1.3)


@pytest.mark.parametrize("name", ["Tpe", "NsgaII"])
def test_each_sampler_proposes_every_config_once(name: str) -> None:
    """Equal seeds give equal orders, whatever fails or comes late."""
    check_strategy(getattr(ktuned_optuna, name))


def test_tpe_beats_chance_under_constraints() -> None:
    """An invalid proposal becomes a valid config near it, from which the sampler learns."""

    def find_best(name: str, seed: int) -> float:
        strategy = choose_strategy(BOWL.bind({}), Plan(name, seed, trials=40))
        best = math.inf
        for _ in range(40):
            for config in strategy.ask(1):
                strategy.tell(config, Outcome.MEASURED, compute_bowl_latency(config))
                best = min(best, compute_bowl_latency(config))
        return best

    assert mean(find_best("optuna_tpe", seed) for seed in range(3)) < mean(
        find_best("random", seed) for seed in range(3)
    )


def test_batches_and_foreign_outcomes_are_taken() -> None:
    """Several configs may be in flight, and outcomes of other configs count."""
    strategy = choose_strategy(BOWL.bind({}), Plan("optuna_tpe", trials=100))
    strategy.tell({"x": 6, "y": 32, "z": "b"}, Outcome.MEASURED, 10.0)
    asked = strategy.ask(6)
    assert len({canonical(config) for config in asked}) == 6
    for config in reversed(asked):
        strategy.tell(config, Outcome.LAUNCH_ERROR, None)
    assert {"x": 6, "y": 32, "z": "b"} not in strategy.ask(6)


def test_own_sampler_is_three_lines() -> None:
    """A subclass names any sampler; a sampler that cannot be made ends the job with one line."""

    class OwnStrategy(ktuned_optuna.OptunaStrategy):  # type: ignore[misc, name-defined]
        def sampler(self, seed: int) -> Any:
            return optuna.samplers.RandomSampler(seed=seed)

    assert OwnStrategy(BOWL.bind({}), 1).ask(3)

    class BrokenStrategy(OwnStrategy):
        def sampler(self, seed: int) -> Any:
            raise ModuleNotFoundError("No module named 'cmaes'")

    from ktuned.search.choice import SupervisedStrategy

    with pytest.raises(StrategyFault, match="'broken' failed as it starts: ModuleNotFoundError: No module named"):
        SupervisedStrategy("broken", BrokenStrategy, BOWL.bind({}), 0)
