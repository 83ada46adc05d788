"""Answers: the state of each kernel, and the answers that are computed from it."""

from ktuned.answers.kernel_state import KernelState, Knowledge, Place
from ktuned.answers.kernel_states import KernelStates
from ktuned.answers.ladder import Admits, Lookup, Question, WantedTuning, explain_unobserved, find_answer
from ktuned.answers.start_doubts import StartDoubts

__all__ = [
    "Admits",
    "KernelState",
    "KernelStates",
    "Knowledge",
    "Lookup",
    "Place",
    "Question",
    "StartDoubts",
    "WantedTuning",
    "explain_unobserved",
    "find_answer",
]
