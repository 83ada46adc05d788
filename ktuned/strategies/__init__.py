"""Which config to try next: the ask/tell interface, and the strategies that ship with ktuned.

Others come from distributions that name a :class:`Strategy` under the entry-point group ``ktuned.strategies``.
"""

from __future__ import annotations

from ktuned.strategies.exhaustive import Exhaustive
from ktuned.strategies.interface import ENTRY_POINT_GROUP, PROBES_PER_ASK, Strategy, load
from ktuned.strategies.random import Random

__all__ = ["ENTRY_POINT_GROUP", "PROBES_PER_ASK", "Exhaustive", "Random", "Strategy", "load"]
