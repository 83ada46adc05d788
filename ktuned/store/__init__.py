"""Durable state: trials, winners and jobs in SQLite, and artifacts as sealed directories."""

from ktuned.store import exchange
from ktuned.store.artifacts import Artifacts
from ktuned.store.database import STORE_NAME, Store
from ktuned.store.exchange import IMPORTED
from ktuned.store.faults import DISK_ERRORS, explain_file_error
from ktuned.store.overview import ContextSums, Overview, TrialRow
from ktuned.store.rows import StoredPortfolio
from ktuned.store.tables import Verdict

__all__ = [
    "DISK_ERRORS",
    "IMPORTED",
    "STORE_NAME",
    "Artifacts",
    "ContextSums",
    "Overview",
    "Store",
    "StoredPortfolio",
    "TrialRow",
    "Verdict",
    "exchange",
    "explain_file_error",
]
