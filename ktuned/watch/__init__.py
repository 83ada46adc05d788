"""The watcher: directory sets, events and surveys of all roots, turned into inspections."""

from ktuned.watch.watcher import Intervals, OnChanges, Watcher

__all__ = ["Intervals", "OnChanges", "Watcher"]
