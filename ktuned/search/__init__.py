"""Search strategies: ask for configs, feed back latencies.

Others come from distributions that name a :class:`Strategy` under the entry-point group ``ktuned.strategies``. Those
that need NumPy are imported by that name alone.
"""

from ktuned.search.annealing import Annealing
from ktuned.search.choice import AUTO, Budget, Choice, StrategyFault, choose
from ktuned.search.domain import Domain, domain_of
from ktuned.search.exhaustive import Exhaustive
from ktuned.search.genetic import Genetic
from ktuned.search.local import Local
from ktuned.search.points import PointStrategy
from ktuned.search.random import Random
from ktuned.search.recorded import RecordedSpace, read_recorded, recorded
from ktuned.search.simulation import Run, Tried, relative, simulate
from ktuned.search.strategy import ENTRY_POINT_GROUP, PROBES_PER_ASK, Count, Strategy, installed, load

__all__ = [
    "AUTO",
    "ENTRY_POINT_GROUP",
    "PROBES_PER_ASK",
    "Annealing",
    "Budget",
    "Choice",
    "Count",
    "Domain",
    "Exhaustive",
    "Genetic",
    "Local",
    "PointStrategy",
    "Random",
    "RecordedSpace",
    "Run",
    "Strategy",
    "StrategyFault",
    "Tried",
    "choose",
    "domain_of",
    "installed",
    "load",
    "read_recorded",
    "recorded",
    "relative",
    "simulate",
]
