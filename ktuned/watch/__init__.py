"""The watcher: directory sets, events and surveys of all roots, turned into inspections."""

from ktuned.watch.notifications import DirectoryGone, Notifications, WatchError
from ktuned.watch.reinspection import OnChanges
from ktuned.watch.watcher import Intervals, Watcher

__all__ = ["DirectoryGone", "Intervals", "Notifications", "OnChanges", "WatchError", "Watcher"]
