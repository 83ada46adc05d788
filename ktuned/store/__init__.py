"""Durable state: trials, winners and jobs in SQLite, and artifacts as sealed directories."""

from ktuned.store import exchange
from ktuned.store.artifacts import Artifacts
from ktuned.store.database import STORE_NAME, Store
from ktuned.store.faults import DISK_ERRORS, file_fault
from ktuned.store.overview import ContextSums, Overview, TrialRow
from ktuned.store.rows import StoredPortfolio
from ktuned.store.tables import Capture, Verdict, pinned_question

__all__ = [
    "DISK_ERRORS",
    "STORE_NAME",
    "Artifacts",
    "Capture",
    "ContextSums",
    "Overview",
    "Store",
    "StoredPortfolio",
    "TrialRow",
    "Verdict",
    "exchange",
    "file_fault",
    "pinned_question",
]
