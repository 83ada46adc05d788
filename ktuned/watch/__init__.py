"""The watcher: directory sets, events and surveys of all roots, turned into inspections."""

from ktuned.watch.reinspection import OnChanges
from ktuned.watch.watcher import Intervals, Watcher

__all__ = ["Intervals", "OnChanges", "Watcher"]
