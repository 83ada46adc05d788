"""The watcher: directory sets, events and surveys of all roots, turned into inspections."""

from ktuned.watch.notifications import DirectoryGone, Notifications, WatchError
from ktuned.watch.watcher import Watcher
