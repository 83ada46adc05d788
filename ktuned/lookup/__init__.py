"""Lookups: the ladder of answers, pins, generations."""

from ktuned.lookup.answer import Answer
from ktuned.lookup.answer_caches import AnswerCaches
from ktuned.lookup.certainty import Certainty
from ktuned.lookup.generations import Generations
from ktuned.lookup.ladder import not_observed
from ktuned.lookup.served_winners import ServedWinners
from ktuned.lookup.service import Lookups
from ktuned.lookup.shortcuts import Shortcuts

__all__ = [
    "Answer",
    "AnswerCaches",
    "Certainty",
    "Generations",
    "Lookups",
    "ServedWinners",
    "Shortcuts",
    "not_observed",
]
