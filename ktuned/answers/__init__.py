"""Answers: the state of each kernel, and the answers that are computed from it."""

from ktuned.answers.kernel_state import KernelState, Knowledge
from ktuned.answers.kernel_states import KernelStates
from ktuned.answers.ladder import Admits, Lookup, WantedTuning, explain_unobserved
