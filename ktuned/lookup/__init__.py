"""Lookups: the ladder of answers, pins, generations."""

from ktuned.lookup.answer_caches import AnswerCaches
from ktuned.lookup.generations import Generations
from ktuned.lookup.ladder import admits_plainly
from ktuned.lookup.service import Lookups
from ktuned.lookup.shortcuts import Shortcuts
from ktuned.lookup.time_slices import ask_for_short_slices

__all__ = ["AnswerCaches", "Generations", "Lookups", "Shortcuts", "admits_plainly", "ask_for_short_slices"]
