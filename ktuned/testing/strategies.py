"""The conformance suite for strategies: the promises of :class:`ktuned.search.Strategy`, checked on small spaces.

A plugin's tests call :func:`check_strategy`; if that fails, the functions that it calls check one promise each. Each
raises :class:`AssertionError` with one line that names the broken promise; none needs pytest.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from ktuned.declaration import BoundSpace, space
from ktuned.model import Outcome, Scalar, canonical
from ktuned.search import Strategy
from ktuned.testing.rules import require_rule

ASKS = 400
"""Asks within which a strategy that knows every outcome must finish a space of some 40 configs."""

SLOWEST_ASK_S = 2.0
"""A silent worker is killed after its deadline; this leaves a margin for slow machines."""


def check_strategy(kind: type[Strategy]) -> None:
    """Check everything that a strategy promises.

    Raises:
        AssertionError: a promise is broken; the message names it.
    """
    for name, bound in _declare_spaces().items():
        check_proposals(kind, bound, name)
        check_failures(kind, bound, name)
    bound = _declare_spaces()["axes"]
    check_seeds(kind, bound)
    check_silence(kind, bound)
    check_foreign_outcomes(kind, bound)


def check_proposals(kind: type[Strategy], bound: BoundSpace, name: str) -> None:
    """Check that each valid config of a small space is proposed once, and that the strategy then is finished."""
    valid = {canonical(config) for config in bound}
    strategy = kind(bound, 1)
    proposed: set[str] = set()
    for _ in range(ASKS):
        if strategy.finished:
            break
        for config in _ask_strategy(strategy, 3):
            text = canonical(config)
            require_rule(text in valid, f"proposed a config that the space of {name} does not hold: {text}")
            require_rule(text not in proposed, f"proposed a config twice: {text}")
            proposed.add(text)
            strategy.tell(config, Outcome.MEASURED, _compute_latency(config))
    require_rule(strategy.finished, f"is not finished after {ASKS} asks in a space of {len(valid)} configs ({name})")
    require_rule(proposed == valid, f"finished before {len(valid - proposed)} configs of {name} were proposed")
    require_rule(strategy.ask(1) == [], "proposes a config after it was finished")


def check_failures(kind: type[Strategy], bound: BoundSpace, name: str) -> None:
    """Check that a strategy continues if most or all configs fail, with any failure."""
    strategy = kind(bound, 2)
    failures = [outcome for outcome in Outcome if outcome is not Outcome.MEASURED]
    for number in range(ASKS):
        if strategy.finished:
            return
        for config in _ask_strategy(strategy, 2):
            strategy.tell(config, failures[number % len(failures)], None)
    require_rule(strategy.finished, f"does not come to the end of {name} where every config fails")


def check_seeds(kind: type[Strategy], bound: BoundSpace) -> None:
    """Check that equal seeds and equal outcomes give equal proposals."""
    orders = []
    for _ in range(2):
        strategy = kind(bound, 7)
        order = []
        for _ in range(10):
            for config in _ask_strategy(strategy, 2):
                order.append(canonical(config))
                strategy.tell(config, Outcome.MEASURED, _compute_latency(config))
        orders.append(order)
    require_rule(orders[0] == orders[1], "proposes different configs for equal seeds and outcomes")


def check_silence(kind: type[Strategy], bound: BoundSpace) -> None:
    """Check that a strategy that waits for outcomes returns an empty answer, and continues after them."""
    strategy = kind(bound, 3)
    waiting: list[dict[str, Scalar]] = []
    for _ in range(ASKS):
        asked = _ask_strategy(strategy, 4)
        if not asked:
            break
        waiting += asked
    require_rule(len(waiting) > 0, "proposes nothing before the first outcome: nothing would ever be tried")
    for config in reversed(waiting):
        strategy.tell(config, Outcome.MEASURED, _compute_latency(config))
    require_rule(
        strategy.finished or bool(_ask_strategy(strategy, 1)), "proposes nothing more once all its outcomes are known"
    )


def check_foreign_outcomes(kind: type[Strategy], bound: BoundSpace) -> None:
    """Check that a strategy takes outcomes of configs that it did not propose, even of some outside the space."""
    strategy = kind(bound, 4)
    for config in list(bound)[:5]:
        strategy.tell(config, Outcome.MEASURED, _compute_latency(config))
    strategy.tell({"elsewhere": 1}, Outcome.MEASURED, 1.0)
    require_rule(bool(_ask_strategy(strategy, 1)), "proposes nothing after outcomes of configs that it did not propose")


def _declare_spaces() -> dict[str, BoundSpace]:
    declared = {
        "axes": space(
            TILE=[8, 16, 32, 64], STAGES=[1, 2, 3], FAST=[False, True], where=lambda p, c: c.TILE * c.STAGES < p.M
        ),
        "a list": space([{"TILE": tile, "LAYOUT": layout} for tile in (1, 2, 4) for layout in ("row", "column")]),
        "a callable": space(lambda p: ({"TILE": tile} for tile in range(1, 12))),
    }
    return {name: value.bind({"M": 128}) for name, value in declared.items()}


def _ask_strategy(strategy: Strategy, n: int) -> list[dict[str, Scalar]]:
    """Ask a strategy for configs; check that it returns them in time, and not too many."""
    began = monotonic()
    configs = strategy.ask(n)
    took = monotonic() - began
    require_rule(len(configs) <= n, f"proposes {len(configs)} configs when it is asked for {n}")
    require_rule(took < SLOWEST_ASK_S, f"takes {took:.1f} s for one ask")
    return configs


def _compute_latency(config: Mapping[str, Scalar]) -> float:
    """Return a latency that depends on every knob."""
    return 10.0 + sum(len(str(value)) * place for place, value in enumerate(config.values(), 1))
