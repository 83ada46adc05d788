"""Trials of one config on a problem's data."""

from collections.abc import Callable
from typing import Any

from ktuned.checking.problem_data import ProblemData

PROBLEM = {"M": 4}


def run_config(data: ProblemData, launch: Callable[[dict[str, Any]], object]) -> Any:
    """Try one config, as the bench does, and return the verdict."""
    data.reset_tensors()
    data.prepare_checked_launch()
    launch(data.tensors)
    assert data.take_damage() is None
    return data.check_outputs()
