"""Trials: the results of measurements."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ktuned.model import ListedTrial, Outcome, Problem, Scalar
from ktuned.protocol.method import Method, Params


class ResultsParams(Params, frozen=True):
    """``results``: a kernel's trials, or one trial with all its details.

    In the order ``newest``, ``before`` continues a list after the trial with that id. ``count`` requests the ``total``.
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
    """The result of comparing outputs bit by bit, for a problem on a device; an empty problem stands for all."""

    problem: Problem
    device: str
    lines: tuple[str, ...]


class ResultsAnswer(msgspec.Struct, frozen=True):
    """Trials; with ``count``, ``total`` is the number of matching trials, whatever the limit."""

    trials: tuple[ListedTrial, ...]
    numerics: tuple[NumericsReport, ...] = ()
    total: int | msgspec.UnsetType = msgspec.UNSET


class ForgetParams(Params, frozen=True):
    """``forget``: a kernel's trials, either all or only those with one outcome."""

    kernel: str
    outcome: Outcome | None = None
    directory: str | None = None


class ForgetAnswer(msgspec.Struct, frozen=True):
    """The kernel, and the number of its trials that were deleted."""

    kernel: str
    trials: int


RESULTS: Final = Method("results", ResultsParams, ResultsAnswer)
FORGET: Final = Method("forget", ForgetParams, ForgetAnswer)
