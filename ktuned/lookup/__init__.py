"""Lookups: the ladder of answers, the table of winners."""

from ktuned.lookup.answer import Lookup
from ktuned.lookup.answer_caches import AnswerCaches
from ktuned.lookup.best_answers import BestAnswers
from ktuned.lookup.certainty import Certainty
from ktuned.lookup.follow_ups import FollowUps
from ktuned.lookup.ladder import explain_unobserved
from ktuned.lookup.publication import Publication
from ktuned.lookup.served_winners import ServedWinners
from ktuned.lookup.service import SETTLE_S, Lookups
from ktuned.lookup.shortcuts import Shortcuts
from ktuned.lookup.winner_table import WinnerTable

__all__ = [
    "SETTLE_S",
    "AnswerCaches",
    "BestAnswers",
    "Certainty",
    "FollowUps",
    "Lookup",
    "Lookups",
    "Publication",
    "ServedWinners",
    "Shortcuts",
    "WinnerTable",
    "explain_unobserved",
]
