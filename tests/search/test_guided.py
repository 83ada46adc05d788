"""Strategies that learn: they beat chance, are fast, and cope with failures and late outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations_with_replacement, product
from random import Random
from statistics import mean
from time import process_time
from typing import Any

import numpy as np

from ktuned import space
from ktuned.model import PRESETS, Outcome, Scalar, canonical
from ktuned.search import Strategy, load_strategy
from ktuned.search.gaussian_process import GaussianProcess
from ktuned.search.guided import Guided
from ktuned.tuning.finalists import MOST_TIMES, are_rounds_contradictory, compute_figures

BOWL_KNOBS: Any = {
    "x": list(range(10)),
    "y": list(range(10)),
    "z": [2**k for k in range(10)],
    "u": [2**k for k in range(10)],
    "v": list(range(10)),
    "w": list(range(10)),
}
BOWL = space(**BOWL_KNOBS)


def compute_bowl_latency(config: dict[str, Any]) -> float:
    """Return a smooth latency in µs; its optimum of 20 is inside the space of 10^6 configs."""
    positions = [BOWL_KNOBS[knob].index(value) / 9 for knob, value in config.items()]
    centre = (0.3, 0.7, 0.5, 0.4, 0.6, 0.2)
    return 20 * math.exp(sum(2.5 * (place - middle) ** 2 for place, middle in zip(positions, centre, strict=True)))


BOWL_OPTIMUM = 20 * math.exp(sum(2.5 * (round(c * 9) / 9 - c) ** 2 for c in (0.3, 0.7, 0.5, 0.4, 0.6, 0.2)))


def find_winner_ratio(name: str, seed: int, trials: int) -> float:
    """Return the true latency of the final round's winner, relative to the optimum, after a search.
    With such noise, all finalists may be the fastest; more rounds follow as long as one contradicts the decision.
    """
    strategy = load_strategy(name)(BOWL.bind({}), seed)
    noise = Random(seed)
    measured: list[tuple[float, dict[str, Scalar]]] = []
    while len(measured) < trials:
        for config in strategy.ask(1):
            measured.append((compute_bowl_latency(config) * noise.lognormvariate(0, 0.05), config))
            strategy.tell(config, Outcome.MEASURED, measured[-1][0])
    finalists = [config for _, config in sorted(measured, key=lambda pair: pair[0])[: 5 * MOST_TIMES]]
    rounds: list[Mapping[int | None, float]] = []
    while len(rounds) < 5 or (
        len(rounds) < PRESETS["default"].most_rounds and are_rounds_contradictory(rounds, range(len(finalists)))
    ):
        rounds.append(
            {
                rival: compute_bowl_latency(config) * noise.lognormvariate(0, 0.05)
                for rival, config in enumerate(finalists)
            }
        )
    decided = compute_figures(rounds, range(len(finalists)))
    return (
        compute_bowl_latency(finalists[min(range(len(finalists)), key=lambda rival: decided[rival].latency_us)])
        / BOWL_OPTIMUM
    )


def test_guided_finds_the_bottom_of_a_bowl() -> None:
    """In 10^6 configs with 5 % noise, 100 trials and the final round find a winner within 5 %."""
    assert sum(find_winner_ratio("guided", seed, 100) > 1.05 for seed in range(3)) == 0


def test_the_first_configs_spread_over_the_values() -> None:
    """The first eight configs show most of each knob's ten values, hardly any value twice."""
    strategy = load_strategy("guided")(BOWL.bind({}), 4)
    first = strategy.ask(8)
    for knob in BOWL_KNOBS:
        assert len({config[knob] for config in first}) >= 5
    assert mean(len({config[knob] for config in first}) for knob in BOWL_KNOBS) > 6.3


def test_given_configs_do_not_replace_the_spread() -> None:
    """A search that starts with eight similar configs still samples the whole space first."""
    strategy = load_strategy("guided")(BOWL.bind({}), 4)
    for place in range(8):
        config: dict[str, Scalar] = {knob: values[0] for knob, values in BOWL_KNOBS.items()} | {"x": place}
        strategy.tell(config, Outcome.MEASURED, 1.0 + place)
    spread = []
    for _ in range(8):
        (config,) = strategy.ask(1)
        spread.append(config)
        strategy.tell(config, Outcome.MEASURED, 100.0)
    assert min(len({config[knob] for config in spread}) for knob in "yzuvw") >= 4


def test_proposals_do_not_depend_on_the_size_of_differences() -> None:
    """The same bowl with a tenth of the depth, on a logarithmic scale, gives the same proposals."""
    bound = space(**{knob: BOWL_KNOBS[knob] for knob in "xyz"}).bind({})
    asked: list[list[str]] = []
    for depth in (0.2, 0.02):
        strategy = load_strategy("guided")(bound, 5)
        asked.append([])
        for _ in range(12):
            (config,) = strategy.ask(1)
            asked[-1].append(canonical(config))
            strategy.tell(config, Outcome.MEASURED, compute_bowl_latency({**config, "u": 8, "v": 5, "w": 2}) ** depth)
    assert asked[0] == asked[1]


def test_proposals_are_quick() -> None:
    """With thousands of known trials, a proposal costs milliseconds of CPU time."""
    bound = BOWL.bind({})
    strategy = load_strategy("guided")(bound, 0)
    draw = Random(1)
    for _ in range(10_000):
        config = {knob: values[int(draw.random() * 10)] for knob, values in BOWL_KNOBS.items()}
        strategy.tell(config, Outcome.MEASURED, compute_bowl_latency(config))
    strategy.ask(1)
    start = process_time()
    for _ in range(10):
        for config in strategy.ask(1):
            strategy.tell(config, Outcome.MEASURED, compute_bowl_latency(config))
    assert (process_time() - start) / 10 < 0.08


def test_guided_avoids_what_fails() -> None:
    """Half of the space fails, but most proposals after the first ones work."""

    def fails(config: dict[str, Any]) -> bool:
        return bool(config["x"] > 4)

    strategy = load_strategy("guided")(BOWL.bind({}), 3)
    outcomes = []
    for _ in range(60):
        (config,) = strategy.ask(1)
        outcomes.append(fails(config))
        if fails(config):
            strategy.tell(config, Outcome.LAUNCH_ERROR, None)
        else:
            strategy.tell(config, Outcome.MEASURED, compute_bowl_latency(config))
    assert sum(outcomes[20:]) < 14


def test_configs_of_one_batch_differ_in_several_knobs() -> None:
    """Configs that are proposed before any outcome is known mostly differ in more than one knob."""
    strategy: Strategy = load_strategy("guided")(BOWL.bind({}), 0)
    for config in strategy.ask(20):
        strategy.tell(config, Outcome.MEASURED, compute_bowl_latency(config))
    asked = strategy.ask(8)
    assert len({canonical(config) for config in asked}) == 8
    pairs = [(one, other) for number, one in enumerate(asked) for other in asked[:number]]
    distances = [sum(one[knob] != other[knob] for knob in one) for one, other in pairs]
    assert mean(distances) > 1.5


def test_guided_converges_where_little_is_left() -> None:
    """It converges near the optimum, well before the space is exhausted."""
    strategy = load_strategy("guided")(space(**{knob: BOWL_KNOBS[knob] for knob in "xyzu"}).bind({}), 1)
    best = math.inf
    for _trial in range(200):
        (config,) = strategy.ask(1)
        latency_us = compute_bowl_latency({**config, "v": 5, "w": 2})
        strategy.tell(config, Outcome.MEASURED, latency_us)
        best = min(best, latency_us)
        if strategy.converged:
            break
    assert strategy.converged
    assert best < 1.01 * BOWL_OPTIMUM


RUGGED_KNOBS: dict[str, Any] = {
    "a": [0, 1, 2, 3, 4, 5], "b": ["p", "q", "r", "s"], "c": [1, 2, 4, 8], "d": ["u", "v", "w"], "e": [0, 1],
}  # fmt: skip


def make_rugged_landscape(seed: int) -> dict[tuple[Scalar, ...], float]:
    """Return the latencies of 576 configs: each value and each pair of values has a random effect."""
    effects: dict[tuple[Any, ...], float] = {}
    pairs = list(combinations_with_replacement(RUGGED_KNOBS, 2))
    for one, other in pairs:
        rng = Random(f"{seed} {one} {other}")
        size = 0.2 * rng.expovariate(1.0)
        for first, second in product(RUGGED_KNOBS[one], RUGGED_KNOBS[other]):
            effects[one, first, other, second] = size * rng.gauss(0, 1)
    latencies = {}
    for values in product(*RUGGED_KNOBS.values()):
        config = dict(zip(RUGGED_KNOBS, values, strict=True))
        latencies[values] = 100 * math.exp(sum(effects[one, config[one], other, config[other]] for one, other in pairs))
    return latencies


def test_guided_converges_late_where_the_landscape_is_rugged() -> None:
    """Only luck finds the best config, so the search continues until no neighbour promises anything."""
    for seed in (2, 3, 5, 7):
        landscape = make_rugged_landscape(seed)
        strategy = load_strategy("guided")(space(**RUGGED_KNOBS).bind({}), seed)
        best = math.inf
        for _trial in range(150):
            (config,) = strategy.ask(1)
            latency_us = landscape[tuple(config.values())]
            strategy.tell(config, Outcome.MEASURED, latency_us)
            best = min(best, latency_us)
            if strategy.converged:
                break
        assert strategy.converged
        assert best < 1.01 * min(landscape.values())


def test_a_doubtful_latency_counts_less() -> None:
    """A doubtful point pulls the model less than a point that is known to 1 %."""
    points = np.linspace(0, 1, 9)[:, None]
    values = np.zeros(9)
    values[4] = -1.0
    expected = []
    for doubt in (0.0, 1.0):
        model = GaussianProcess(np.array([0.0]), 1.0, [0])
        doubts = np.zeros(9)
        doubts[4] = doubt
        model.fit_weights(points, values, 3, doubts)
        model.condition_on(points, values, doubts)
        expected.append(float(model.predict(points[4:5]).mean[0]))
    assert abs(expected[1]) < abs(expected[0]) / 10


def test_guided_takes_doubts_into_account() -> None:
    """Two searches that differ only in the doubt of one latency predict different values for its config."""
    predictions = []
    for doubt in (0.01, 2.0):
        strategy = load_strategy("guided")(BOWL.bind({}), 2)
        assert isinstance(strategy, Guided)
        for number, config in enumerate(strategy.ask(12)):
            strategy.doubt(config, doubt if number == 0 else 0.01)
            strategy.tell(config, Outcome.MEASURED, compute_bowl_latency(config) / (4 if number == 0 else 1))
        strategy.ask(1)
        point = next(iter(strategy.logs))
        predictions.append(float(strategy._model.predict(strategy._features(np.array([point]))).mean[0]))
    assert predictions[0] < predictions[1] - 0.2
