"""What ktuned remembers: trials, winners and jobs in SQLite; artifacts as sealed directories beside it."""

from ktuned.store.artifacts import Artifacts
from ktuned.store.database import Store

__all__ = ["Artifacts", "Store"]
