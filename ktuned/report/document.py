"""The report as a value: the data that the page shows, in sections by kernel, problem and device. No IO.

The page's JavaScript computes everything that follows from the trials (histograms, medians, best so far), because
filters change it. The document has only what needs the whole store, a model or the daemon's verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ktuned.model import FrozenStruct, Peaks, Scalar, Share
from ktuned.report.columns import PackedColumns
from ktuned.store import ContextSums, Winner


class Standing(FrozenStruct):
    """The daemon's verdict on a winner: ``fresh``, or ``stale`` with the reasons; else ``failed`` or ``untuned``."""

    status: str
    reasons: Sequence[str] = ()


class Bar(FrozenStruct):
    """A bar of a comparison: the latency of the winner, the default or the reference, with its interquartile range."""

    name: str
    latency_us: float
    spread_us: float | None = None


class Failure(FrozenStruct):
    """Configs that failed alike: their number, the first line of their message, and one of them as an example."""

    outcome: str
    message: str
    count: int
    trial: int
    config: Mapping[str, Scalar]


class SourceState(FrozenStruct):
    """One state of sources and tools in which trials were made, and its changes since the state before."""

    trials: ContextSums
    changes: Sequence[str]
    is_shown: bool


class JobFigures(FrozenStruct):
    """A job of a section: its start (Unix s) and its costs in s."""

    id: int
    reason: str
    started: float | None
    cost: Mapping[str, float]
    message: str


class OtherWinner(FrozenStruct):
    """The winner by an objective other than latency: its figure with the unit, and the same figure of the fastest.

    ``gain`` is how many times better than the fastest it is by this objective.
    """

    winner: Winner
    figure: float
    unit: str
    fastest: float | None
    gain: float | None


class Build(FrozenStruct):
    """How a trial was compiled: the compiler's command lines or options, and the paths of the files that are kept."""

    command: Sequence[str]
    files: Sequence[str]


class Section(FrozenStruct):
    """One kernel, problem and device model: its winner, the trials of one context, and the history of contexts.

    ``share`` is the largest share of a device's limit that the winner reaches. ``ends`` has each knob's least and
    greatest number in the space, or nothing for a knob whose values are not numbers. ``tried`` is the number of configs
    that were tried, ``space_size`` the number in the space before constraints, if it can be counted. ``left_out`` is
    the number of trials that the page has no room for. ``builds`` is base64 of zlib of JSON: a :class:`Build` by the id
    of each trial that a reader is likely to ask about. ``file`` is the kernel file, with its line. ``others`` are the
    winners by other objectives. ``numerics`` lists the classes of configs with equal output bits, and the cost of the
    anchor's class.
    """

    kernel: str
    problem: Mapping[str, Scalar]
    device: str
    standing: Standing
    winner: Winner | None
    share: Share | None
    default: Mapping[str, Scalar] | None
    bars: Sequence[Bar]
    knobs: Sequence[str]
    ends: Sequence[Sequence[float]]
    facts: Sequence[str]
    metrics: Sequence[str]
    tried: int
    space_size: int | None
    is_constrained: bool
    trials: PackedColumns
    left_out: int
    file: str
    builds: str
    failures: Sequence[Failure]
    history: Sequence[SourceState]
    jobs: Sequence[JobFigures]
    roof: Peaks | None = None
    others: Sequence[OtherWinner] = ()
    numerics: Sequence[str] = ()


class Document(FrozenStruct):
    """Everything on the page; ``made`` is Unix time in s."""

    made: float
    version: str
    sections: Sequence[Section]
