"""Sharing winners between daemons: the seam for stores, and the rules for what comes from one."""

from ktuned.sharing.decision import (
    HOLDS_WITHIN,
    Action,
    Candidate,
    Decided,
    Ours,
    action,
    candidates,
    holds,
    is_published,
)
from ktuned.sharing.settings import ShareSettings, hide_secrets
from ktuned.sharing.shared_store import (
    Found,
    LearnedName,
    SharedStore,
    SharedStoreDown,
    SharedWinner,
    StoredWinner,
    address_of,
    open_shared_store,
)

__all__ = [
    "HOLDS_WITHIN",
    "Action",
    "Candidate",
    "Decided",
    "Found",
    "LearnedName",
    "Ours",
    "ShareSettings",
    "SharedStore",
    "SharedStoreDown",
    "SharedWinner",
    "StoredWinner",
    "action",
    "address_of",
    "candidates",
    "hide_secrets",
    "holds",
    "is_published",
    "open_shared_store",
]
