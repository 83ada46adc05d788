"""The report as a value: the data that the page shows, in sections by kernel, problem and device. No IO.

The page's JavaScript computes everything that follows from the trials (histograms, medians, best so far), because
filters change it. The document has only what needs the whole store, a model or the daemon's verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ktuned.model import Scalar
from ktuned.report.columns import PackedColumns


class Standing(Struct, frozen=True):
    """The daemon's verdict on a winner: ``fresh``, or ``stale`` with the reasons."""

    status: str
    reasons: Sequence[str] = ()


class Bar(Struct, frozen=True):
    """A bar of a comparison: the latency of the winner, the default or the reference, with its interquartile range."""

    name: str
    latency_us: float
    spread_us: float | None = None


class PeakShare(Struct, frozen=True):
    """The share of a device's limit that a winner reaches; ``figure`` is the winner's metric with its unit."""

    what: str
    share: float
    figure: str


class DevicePeaks(Struct, frozen=True):
    """The measured limits of a device: bandwidth in GB/s, and TFLOP/s by the name of the metric that they limit."""

    gbps: float | None
    tflops: Mapping[str, float]


class WinnerSummary(Struct, frozen=True):
    """The winner of a section; ``row`` is its index among the section's trials, or -1 if it is not there."""

    row: int
    config: Mapping[str, Scalar]
    latency_us: float
    spread_us: float | None
    decided: float
    is_final: bool
    note: str
    metrics: Mapping[str, float]
    share: PeakShare | None = None


class Failure(Struct, frozen=True):
    """Configs that failed alike: their number, the first line of their message, and one of them as an example."""

    outcome: str
    message: str
    count: int
    trial: int
    config: Mapping[str, Scalar]


class SourceState(Struct, frozen=True):
    """One state of sources and tools in which trials were made, and its changes since the state before."""

    first: float
    trials: int
    measured: int
    latency_us: float | None
    config: Mapping[str, Scalar] | None
    changes: Sequence[str]
    is_shown: bool


class JobFigures(Struct, frozen=True):
    """A job of a section: its start (Unix s) and its costs in s."""

    id: int
    reason: str
    started: float | None
    cost: Mapping[str, float]
    message: str


class OtherWinner(Struct, frozen=True):
    """The winner by an objective other than latency: its figure with the unit, and the same figure of the fastest.

    ``gain`` is how many times better than the fastest it is by this objective.
    """

    objective: str
    figure: float
    unit: str
    fastest: float | None
    gain: float | None
    latency_us: float
    config: Mapping[str, Scalar]


class Section(Struct, frozen=True):
    """One kernel, problem and device model: its winner, the trials of one context, and the history of contexts.

    ``ends`` has each knob's least and greatest number in the space, or nothing for a knob whose values are not numbers.
    ``left_out`` is the number of trials that the page has no room for. ``others`` are the winners by other objectives.
    ``numerics`` lists the classes of configs with equal output bits, and the cost of the anchor's class.
    """

    kernel: str
    problem: Mapping[str, Scalar]
    device: str
    standing: Standing
    winner: WinnerSummary | None
    default: Mapping[str, Scalar] | None
    bars: Sequence[Bar]
    knobs: Sequence[str]
    ends: Sequence[Sequence[float]]
    facts: Sequence[str]
    metrics: Sequence[str]
    trials: PackedColumns
    left_out: int
    failures: Sequence[Failure]
    history: Sequence[SourceState]
    jobs: Sequence[JobFigures]
    roof: DevicePeaks | None = None
    others: Sequence[OtherWinner] = ()
    numerics: Sequence[str] = ()


class Document(Struct, frozen=True):
    """Everything on the page; ``made`` is Unix time in s, ``is_live`` whether it follows the store."""

    made: float
    version: str
    sections: Sequence[Section]
    is_live: bool = False
    notices: Sequence[str] = ()
