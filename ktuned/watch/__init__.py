"""The watcher: directory sets and file events of all roots, turned into inspections."""

from ktuned.watch.watcher import Watcher

__all__ = ["Watcher"]
