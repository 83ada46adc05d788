"""The observer below every worker: what it and its children open, test, list, execute, map and read of variables."""

from ktuned.observer.library import OFF, Unavailable, library, prepare, settings
from ktuned.observer.log import VARIABLE, Kind, Log, Note

__all__ = ["OFF", "VARIABLE", "Kind", "Log", "Note", "Unavailable", "library", "prepare", "settings"]
