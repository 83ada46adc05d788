"""Tuning from Python: ``ktuned.tune`` for scripts, tests and notebooks."""

from ktuned.python.request import TuningFailed, tune
from ktuned.python.result import Result, Trial, Trials

__all__ = ["Result", "Trial", "Trials", "TuningFailed", "tune"]
