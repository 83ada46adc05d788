"""Searches elsewhere: one that resembles this one shortens it, one that misleads is soon forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from ktuned import space
from ktuned.model import Config, EarlierSearch, Outcome
from ktuned.search import Budget, Genetic, StrategyFault, choose_strategy, load_strategy
from ktuned.search.choice import SupervisedStrategy
from ktuned.search.gaussian_process import GaussianProcess
from ktuned.search.guided import Guided
from ktuned.search.transfer import is_order_kept

KNOBS: dict[str, Any] = {name: [2**k for k in range(9)] for name in "abcd"} | {"e": [False, True]}
SPACE = space(**KNOBS).bind({})

Cost = Callable[[Config], float]


def valley(*centre: float) -> Cost:
    """Return a cost in µs of which the least, 20, is about that centre of the four sizes."""

    def cost(config: Config) -> float:
        places = [math.log2(float(config[name])) / 8 for name in "abcd"]
        bowl = sum(6 * (place - middle) ** 2 for place, middle in zip(places, centre, strict=True))
        return 20 * math.exp(bowl + (0.1 if config["e"] else 0.0) + 0.2 * math.sin(5 * places[0] * places[1]))

    return cost


HERE = valley(0.25, 0.75, 0.5, 0.3)
ALIKE = valley(0.3, 0.8, 0.45, 0.25)
OPPOSITE: Cost = lambda config: 4000 / HERE(config)  # noqa: E731


def searched(cost: Cost, seed: int = 7, configs: int = 60) -> EarlierSearch:
    """Return what a search of some random configs and of the surroundings of the best one measured."""
    dice = Random(seed)
    drawn: list[Config] = [{name: dice.choice(values) for name, values in KNOBS.items()} for _ in range(configs // 2)]
    best = min(drawn, key=cost)
    near: list[Config] = [
        {**best, name: dice.choice(KNOBS[name])} for name in dice.choices("abcd", k=configs - len(drawn))
    ]
    return EarlierSearch((*drawn, *near), tuple(cost(config) for config in (*drawn, *near)))


def best_after(trials: int, seed: int, *earlier: EarlierSearch) -> tuple[float, Guided]:
    """Search, and return the lowest cost, with the strategy."""
    strategy = load_strategy("guided")(SPACE, seed)
    assert isinstance(strategy, Guided)
    if earlier:
        strategy.recall(earlier)
    best = math.inf
    for _ in range(trials):
        (config,) = strategy.ask(1)
        best = min(best, HERE(config))
        strategy.tell(config, Outcome.MEASURED, HERE(config))
    return best, strategy


def test_a_similar_search_shortens_this_one() -> None:
    """After twelve trials it is where a search with nothing known is not."""
    cold = [best_after(12, seed)[0] for seed in range(4)]
    warm = [best_after(12, seed, searched(ALIKE))[0] for seed in range(4)]
    assert sum(map(math.log, warm)) / 4 < sum(map(math.log, cold)) / 4 - 0.2


def test_a_search_that_misleads_is_forgotten() -> None:
    """Its slope is never negative, and after some thirty trials the search goes on as good as without it."""
    cold = [best_after(30, seed)[0] for seed in range(2)]
    warm, strategies = zip(*[best_after(30, seed, searched(OPPOSITE)) for seed in range(2)], strict=True)
    models = [strategy._model for strategy in strategies]
    assert all(not model.sources_help or float(model._slopes.max()) < 0.1 for model in models)
    assert sum(map(math.log, warm)) < sum(map(math.log, cold)) + 0.15 * 2


@pytest.mark.parametrize(
    "earlier",
    [
        EarlierSearch((), ()),
        EarlierSearch(({"elsewhere": 1},) * 30, tuple(range(1, 31))),
        EarlierSearch(tuple({"a": 3, "b": 1, "c": 1, "d": 1, "e": False} for _ in range(30)), (1.0,) * 30),
        EarlierSearch(searched(HERE).configs, (5.0,) * 60),
        EarlierSearch(searched(HERE).configs, (0.0,) * 60),
        EarlierSearch(searched(HERE).configs[:3], searched(HERE).costs[:3]),
    ],
    ids=["empty", "other knobs", "other values", "equal costs", "no costs", "too few"],
)
def test_a_search_that_says_nothing_changes_nothing(earlier: EarlierSearch) -> None:
    """Whatever it holds, this one proposes new configs of its own space."""
    _, strategy = best_after(14, 1, earlier)
    assert len(strategy.logs) == 14


def test_slopes_are_found_beside_what_they_do_not_explain() -> None:
    """Of two columns, one that explains most of the values gets its slope, one of chance next to none."""
    dice = np.random.RandomState(3)
    points = dice.uniform(size=(40, 2))
    column, chance = np.sin(6 * points[:, 0]), dice.normal(size=40)
    values = 0.8 * column + 0.1 * dice.normal(size=40)
    model = GaussianProcess(np.array([-1.0, -1.0]), 1.0, [0, 1])
    slopes = model.fit_slopes(points, values, np.column_stack([column, chance]), 0.5)
    assert slopes[0] == pytest.approx(0.8, abs=0.15)
    assert slopes[1] < 0.1
    assert list(model.fit_slopes(points, -values, np.column_stack([column]), 0.5)) == [0.0]


def test_an_order_is_kept_once_enough_of_it_was_seen() -> None:
    """A few configs prove nothing, noise is forgiven, another order is never the same one."""
    dice = np.random.RandomState(7)
    order = dice.normal(size=60)
    noisy = order + 0.3 * dice.normal(size=60)
    assert [is_order_kept(order[:count], noisy[:count]) for count in (0, 3, 8, 60)] == [False, False, False, True]
    # The slow alone keep it.
    assert not is_order_kept(order, np.where(order <= np.median(order), dice.normal(size=60) - 4, order))
    assert not is_order_kept(order, -order)
    assert not is_order_kept(order, dice.normal(size=60))
    assert not is_order_kept(np.zeros(60), order)


def test_a_search_that_misleads_is_not_heard_by_half_of_the_choices() -> None:
    """One that resembles this search soon is by all of them."""
    heard = {}
    for name, earlier in (("alike", ALIKE), ("opposite", OPPOSITE)):
        strategy = load_strategy("guided")(SPACE, 1)
        assert isinstance(strategy, Guided)
        strategy.recall([searched(earlier)])
        heard[name] = 0
        for trial in range(40):
            (config,) = strategy.ask(1)
            strategy.tell(config, Outcome.MEASURED, HERE(config))
            heard[name] += strategy._model.may_use_sources and trial >= 20
    assert heard["opposite"] == 10 < heard["alike"]


def test_left_out_values_are_judged_by_all_others() -> None:
    """The density of a value is that which a model of the other values gives it."""
    dice = np.random.RandomState(5)
    points = dice.uniform(size=(12, 1))
    values = np.cos(4 * points[:, 0])
    values[4] += 3
    model = GaussianProcess(np.array([0.0]), 1.0, [0])
    density = model.leave_one_out_densities(points, values)
    assert int(np.argmin(density)) == 4


def test_a_strategy_that_fails_to_recall_is_named() -> None:
    """Earlier searches reach it through its supervision, and what it raises becomes one line."""

    class Forgetful(Genetic):
        def recall(self, earlier: Any) -> None:
            raise LookupError("no memory")

    with pytest.raises(StrategyFault, match="the strategy 'odd' failed as it takes note of earlier searches: LookupE"):
        SupervisedStrategy("odd", Forgetful, SPACE, 0).recall([searched(HERE)])


def test_plain_strategies_ignore_other_searches() -> None:
    """One that does not learn from them proposes what it would have proposed."""
    proposed = []
    for earlier in ([], [searched(ALIKE)]):
        strategy = choose_strategy("genetic", SPACE, 3, Budget(10)).strategy
        strategy.recall(earlier)
        proposed.append(strategy.ask(5))
    assert proposed[0] == proposed[1]
