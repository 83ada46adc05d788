"""Search strategies: ask for configs, feed back latencies.

Others come from distributions that name a :class:`Strategy` under the entry-point group ``ktuned.strategies``.
"""

from ktuned.search.exhaustive import Exhaustive
from ktuned.search.random import Random
from ktuned.search.strategy import ENTRY_POINT_GROUP, PROBES_PER_ASK, Strategy, load

__all__ = ["ENTRY_POINT_GROUP", "PROBES_PER_ASK", "Exhaustive", "Random", "Strategy", "load"]
