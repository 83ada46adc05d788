"""Trials: what was measured."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ktuned.model import Outcome, Scalar
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
    order: str = "fastest"
    limit: int = 200
    before: int | None = None
    count: bool = False
    details: bool = False
    directory: str | None = None


class ForgetParams(msgspec.Struct, frozen=True):
    """``forget``: a kernel's trials, all or those of one outcome."""

    kernel: str
    outcome: Outcome | None = None
    directory: str | None = None


RESULTS: Final[Method[ResultsParams, dict[str, Any]]] = Method("results", ResultsParams, dict)
FORGET: Final[Method[ForgetParams, dict[str, Any]]] = Method("forget", ForgetParams, dict)
