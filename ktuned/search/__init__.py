"""Search strategies: ask for configs, feed back latencies.

Other distributions can add strategies: they name a :class:`Strategy` under the entry-point group
``ktuned.strategies``. Strategies that need NumPy are not exported here, and are only imported by their entry point.
"""

from ktuned.search.chain import Point
from ktuned.search.choice import AUTO, StrategyFault, choose_strategy
from ktuned.search.domain import Domain, build_domain
from ktuned.search.exhaustive import Exhaustive
from ktuned.search.points import PointStrategy
from ktuned.search.random import Random
from ktuned.search.strategy import (
    ENTRY_POINT_GROUP,
    Count,
    Strategy,
    installed_strategies,
    load_strategy,
)

__all__ = [
    "AUTO",
    "ENTRY_POINT_GROUP",
    "Count",
    "Domain",
    "Exhaustive",
    "Point",
    "PointStrategy",
    "Random",
    "Strategy",
    "StrategyFault",
    "build_domain",
    "choose_strategy",
    "installed_strategies",
    "load_strategy",
]
