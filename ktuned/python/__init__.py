"""Tuning from Python: ``ktuned.tune`` for scripts, tests and notebooks."""

from ktuned.protocol import ListedTrial as Trial
from ktuned.python.request import TuningFailed, tune
from ktuned.python.result import Result, Trials
