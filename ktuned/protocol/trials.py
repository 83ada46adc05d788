"""Trials: what was measured."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ktuned.model import ListedTrial, Outcome, Problem, Scalar
from ktuned.protocol.method import Method


class ResultsParams(msgspec.Struct, frozen=True):
    """``results``: a kernel's trials, or one trial with all its details.

    ``before`` is the id of a trial, and continues a list in the order ``newest``; ``count`` asks for the ``total``.
    """

    kernel: str | None = None
    problem: dict[str, Scalar] | None = None
    device: str | None = None
    outcome: Outcome | None = None
    trial: int | None = None
    job: int | None = None
    current: bool = False
    order: Literal["fastest", "newest"] = "fastest"
    limit: int = 200
    before: int | None = None
    count: bool = False
    details: bool = False
    directory: str | None = None


class NumericsReport(msgspec.Struct, frozen=True):
    """What a comparison of outputs bit by bit has shown for a problem on a device; for all problems if it is empty."""

    problem: Problem
    device: str
    lines: tuple[str, ...]


class ResultsAnswer(msgspec.Struct, frozen=True):
    """Trials; ``total`` is how many there are beyond the limit, where that was asked for."""

    trials: tuple[ListedTrial, ...]
    numerics: tuple[NumericsReport, ...] = ()
    total: int | msgspec.UnsetType = msgspec.UNSET


class ForgetParams(msgspec.Struct, frozen=True):
    """``forget``: a kernel's trials, all or those of one outcome."""

    kernel: str
    outcome: Outcome | None = None
    directory: str | None = None


class ForgetAnswer(msgspec.Struct, frozen=True):
    """The kernel, and how many of its trials were deleted."""

    kernel: str
    trials: int


RESULTS: Final = Method("results", ResultsParams, ResultsAnswer)
FORGET: Final = Method("forget", ForgetParams, ForgetAnswer)
