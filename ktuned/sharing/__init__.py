"""Sharing winners between daemons: the interface of shared stores, and the rules for winners from them."""

from ktuned.sharing.decision import (
    HOLDS_WITHIN,
    Action,
    Candidate,
    OwnWinner,
    WinnerFacts,
    choose_action,
    cost_holds,
    is_published,
    rank_candidates,
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
    "Found",
    "LearnedName",
    "OwnWinner",
    "ShareSettings",
    "SharedStore",
    "SharedStoreDown",
    "SharedWinner",
    "StoredWinner",
    "WinnerFacts",
    "address_of",
    "choose_action",
    "cost_holds",
    "hide_secrets",
    "is_published",
    "open_shared_store",
    "rank_candidates",
]
