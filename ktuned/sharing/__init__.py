"""Sharing winners between daemons: the interface of shared stores, and the rules for winners from them."""

from ktuned.sharing.decision import (
    HOLDS_WITHIN,
    Action,
    Candidate,
    OwnWinner,
    WinnerFacts,
    choose_action,
    confirms_cost,
    rank_candidates,
    should_publish,
)
from ktuned.sharing.settings import ShareSettings, hide_secrets
from ktuned.sharing.shared_store import (
    Found,
    LearnedName,
    SharedStore,
    SharedStoreDown,
    SharedWinner,
    StoredWinner,
    make_address,
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
    "choose_action",
    "confirms_cost",
    "hide_secrets",
    "make_address",
    "open_shared_store",
    "rank_candidates",
    "should_publish",
]
