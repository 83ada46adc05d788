"""Trials: the results of measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

import msgspec
from msgspec.structs import replace

from ktuned.model import (
    NO_DETAIL,
    Config,
    DeviceModel,
    FrozenStruct,
    KernelName,
    Objective,
    Outcome,
    Problem,
    Scalar,
    TrialResult,
)
from ktuned.protocol.method import Method, Params


class Trial(TrialResult, kw_only=True):
    """One config that was tried on one problem on one device model, as the store keeps it.

    ``problem`` has only the values that enter the key. ``digest`` is the kernel's digest. ``updated`` is a Unix time in
    s.
    """

    id: int
    job: int
    kernel: KernelName
    problem: Problem
    device: DeviceModel
    config: Config
    digest: str
    updated: float

    @property
    def result(self) -> TrialResult:
        """The result alone."""
        return TrialResult(*(getattr(self, name) for name in TrialResult.__struct_fields__))

    def without_detail(self) -> Self:
        """Return the trial without its detail, as lists and events show it."""
        return replace(self, detail=NO_DETAIL)


class ListedTrial(Trial, kw_only=True):
    """A trial as ``results`` lists it; its ``detail`` is empty unless it was asked for.

    Attributes:
        winner: whether it is the winner by any objective.
        objectives: the objectives by which it is the winner.
        facts: the numbers among the backend's facts.
        bit_class: its class of equal bits: a letter, ``nondeterministic``, or nothing.
    """

    winner: bool = False
    objectives: tuple[Objective, ...] = ()
    facts: Mapping[str, float] = {}
    # The protocol's name is a keyword of Python.
    bit_class: str = msgspec.field(default="", name="class")


class ResultsParams(Params):
    """``results``: a kernel's trials, or one trial with all its details.

    With ``judged``, only the trials of judged jobs are listed; otherwise they are left out, unless the ``job`` is one.
    In the order ``newest``, ``before`` continues a list after the trial with that id. ``count`` requests the ``total``.
    """

    kernel: str | None = None
    problem: dict[str, Scalar] | None = None
    device: str | None = None
    outcome: Outcome | None = None
    trial: int | None = None
    job: int | None = None
    current: bool = False
    judged: bool = False
    order: Literal["fastest", "newest"] = "fastest"
    limit: int = 200
    before: int | None = None
    count: bool = False
    details: bool = False
    directory: str | None = None


class NumericsReport(FrozenStruct):
    """The result of comparing outputs bit by bit, for a problem on a device; an empty problem stands for all."""

    problem: Problem
    device: str
    lines: tuple[str, ...]


class ResultsAnswer(FrozenStruct):
    """Trials; with ``count``, ``total`` is the number of matching trials, whatever the limit."""

    trials: tuple[ListedTrial, ...]
    numerics: tuple[NumericsReport, ...] = ()
    total: int | msgspec.UnsetType = msgspec.UNSET


class ForgetParams(Params):
    """``forget``: a kernel's trials, either all or only those of one problem or with one outcome."""

    kernel: str
    problem: dict[str, Scalar] | None = None
    outcome: Outcome | None = None
    directory: str | None = None


class ForgetAnswer(FrozenStruct):
    """The kernel, the number of its trials that were deleted, and how many of them were winners."""

    kernel: str
    trials: int
    winners: int


RESULTS = Method("results", ResultsParams, ResultsAnswer)
FORGET = Method("forget", ForgetParams, ForgetAnswer)
