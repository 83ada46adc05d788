"""The report as a value: what the page shows of the store, one section for each kernel, problem and device. No IO.

Everything that JavaScript can compute from the trials (histograms, medians, best so far) it computes, because filters
change it. What needs the whole store, a model or the daemon's word stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ktuned.model import Scalar
from ktuned.report.columns import PackedColumns


class Standing(Struct, frozen=True):
    """The daemon's word on a winner: ``fresh`` or ``stale``, and why."""

    status: str
    reasons: Sequence[str] = ()


class Bar(Struct, frozen=True):
    """A latency beside others: the winner's, the default's, the reference's; ``spread_us`` is its interquartile."""

    name: str
    latency_us: float
    spread_us: float | None = None


class PeakShare(Struct, frozen=True):
    """The share of a device's limit that a winner reaches; ``figure`` is the metric's value with its unit."""

    what: str
    share: float
    figure: str


class DevicePeaks(Struct, frozen=True):
    """The measured limits of a device: GB/s, and TFLOP/s by the metric that they limit."""

    gbps: float | None
    tflops: Mapping[str, float]


class WinnerSummary(Struct, frozen=True):
    """The winner of a section; ``row`` is its place among the section's trials, or -1."""

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
    """Configs that ended alike: how many, their message's first line, and one of them."""

    outcome: str
    message: str
    count: int
    trial: int
    config: Mapping[str, Scalar]


class SourceState(Struct, frozen=True):
    """One state of the sources and the tools that trials were made in, and what changed since the one before."""

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
    """The winner by another objective than the latency: its figure in a unit, and that of the winner by latency.

    ``gain`` is how many times better it is than that one by this objective.
    """

    objective: str
    figure: float
    unit: str
    fastest: float | None
    gain: float | None
    latency_us: float
    config: Mapping[str, Scalar]


class Section(Struct, frozen=True):
    """One kernel, problem and device model: its winner, the trials of one context, and the contexts before.

    ``ends`` are the least and the greatest number that the space has of each knob, nothing where it lists no numbers;
    ``left_out`` is how many trials the page has no room for; ``others`` are the winners by other objectives;
    ``numerics`` says which classes of equal bits there are, and what the anchor's costs.
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


class PortfolioRow(Struct, frozen=True):
    """A problem's losses with each config of a portfolio (``None`` where one fails or was not measured), as parts.

    ``chosen`` is the config that the tree gives it, ``expected`` what that was expected to lose. ``is_new`` if the
    problem was measured after the fit.
    """

    problem: Mapping[str, Scalar]
    losses: Sequence[float | None]
    chosen: int
    expected: float
    is_new: bool = False


class ShownPortfolio(Struct, frozen=True):
    """A portfolio: its configs, its losses, the lines of its tree with their depth, and the matrix."""

    kernel: str
    device: str
    objective: str
    configs: Sequence[Mapping[str, Scalar]]
    expected_loss: float
    single_loss: float
    tree: Sequence[tuple[int, str]]
    rows: Sequence[PortfolioRow]


class Document(Struct, frozen=True):
    """Everything on the page; ``made`` is Unix time in s, ``is_live`` whether it follows the store."""

    made: float
    version: str
    sections: Sequence[Section]
    is_live: bool = False
    notices: Sequence[str] = ()
    portfolios: Sequence[ShownPortfolio] = ()
