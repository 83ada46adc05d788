"""Trials and winners, and the context of a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Final, Self

from ktuned.model.keys import DeviceModel, KernelName, KeyProblem, WinnerKey
from ktuned.model.objective import ENERGY, LATENCY, Objective, figure_of, is_exact
from ktuned.model.record import EVERY_FIELD, Record, record
from ktuned.model.values import Config, Outcome, Problem

MEASURING_VERSION = 4
"""Raised whenever measuring changes, so that latencies that were measured in two ways are never compared."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a measurement depends on, except the config."""

    kernel: KernelName
    problem: KeyProblem
    device: DeviceModel
    digest: str
    toolchain: str
    device_fingerprint: str
    measuring_version: int = MEASURING_VERSION

    @property
    def key(self) -> WinnerKey:
        """The key of the winner by latency, for which a measurement in this context competes."""
        return self.key_for(LATENCY)

    def key_for(self, objective: Objective) -> WinnerKey:
        """Return the key of the winner by an objective, for which a measurement in this context competes."""
        return WinnerKey(self.kernel, self.problem, self.device, objective)


@record
class TrialDetail(Record):
    """What is known of a trial besides its figures, as far as it got; the end of a name is the unit of its time.

    A new fact is one field here: the store keeps it, ``results`` sends it, ``ktuned results --trial`` shows it.

    Attributes:
        phase: in which it failed; ``import`` of a winner from a file.
        signal: that ended its process.
        after_s: the deadline that passed.
        story: its events.
        stdout, stderr: what the config printed, if it failed.
        count: number of timings.
        samples: some of them, in ascending order, in µs.
        low_us, high_us: ends of the median's 95 % interval; with fewer than six timings, of their range.
        beaten: sampling ended early, because the config could not win.
        max_error, mismatched_ratio: how far the outputs were from the expected ones.
        contention: why it is unknown whether others used the device.
        overwritten: inputs that the launch wrote without a declaration.
        cores: how many it used.
        phase_s: the lane's time by phase.
        metrics_fault: why the kernel file's own metrics failed.
        undisputed: a config whose only fault is that it differs from the default's outputs is timed, too. It has this
            outcome if the default turns out to be wrong.
        energy_low, energy_high: ends of the energy's 95 % interval, in J.
        energy_rounds: rounds as a finalist by energy; see :attr:`round_costs`.
        round_costs: the costs of its rounds by another figure than the latency.
        build: the Build, as plain data.
        facts: the backend's.
        content: digest that equal measurements share.
        read: digest of the data files and variables that were read until it ended.
        open_s: what opening the problem for it took.
        spans: ``compile`` or ``lane``; slot or device; since when (Unix s).
        carried_from: the trial that measured equal content.
        rounds: rounds as a finalist by the latency, and what they found.
        compared: number of launches, timed or made alike, whose outputs were compared, in all rounds.
        bits: digests of the outputs by input, if requested; of a config that was given up, for the first input alone.
        row_bits: digests of the rows of each smaller problem of a batch-invariant group, by problem.
        same_bits: whether the bits are the anchor's.
        nondeterministic: launches have left different outputs from the same inputs.
    """

    _omitted: ClassVar = EVERY_FIELD

    phase: str | None = None
    signal: str | None = None
    after_s: float | None = None
    story: tuple[str, ...] | None = None
    stdout: str | None = None
    stderr: str | None = None
    count: int | None = None
    samples: tuple[float, ...] | None = None
    low_us: float | None = None
    high_us: float | None = None
    beaten: bool | None = None
    max_error: float | None = None
    mismatched_ratio: float | None = None
    contention: str | None = None
    overwritten: tuple[str, ...] | None = None
    cores: int | None = None
    phase_s: Mapping[str, float] | None = None
    metrics_fault: str | None = None
    undisputed: Outcome | None = None
    energy_low: float | None = None
    energy_high: float | None = None
    energy_rounds: int | None = None
    round_costs: tuple[float, ...] | None = None
    build: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] | None = None
    content: str | None = None
    read: str | None = None
    open_s: float | None = None
    spans: tuple[tuple[str, str, float], ...] | None = None
    carried_from: int | None = None
    rounds: int | None = None
    round_medians_us: tuple[float, ...] | None = None
    first_latency_us: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None
    compared: int | None = None
    bits: tuple[str, ...] | None = None
    row_bits: Mapping[str, tuple[str, ...]] | None = None
    same_bits: bool | None = None
    nondeterministic: bool | None = None

    def count_rounds(self, *, by_energy: bool = False) -> int:
        """Return the number of its rounds as a finalist: those by energy are counted apart."""
        return (self.energy_rounds if by_energy else self.rounds) or 0


NO_DETAIL: Final = TrialDetail()


@record
class TrialResult(Record):
    """What a config came to. The worker makes it, the daemon adds what only it knows, the store keeps it.

    Attributes:
        outcome: None while there is none: the trial runs, or has to be tried again.
        latency_us, spread_us: median and interquartile range of its timings.
        compile_s, lane_s: what it has cost.
        message: why it failed, or what there is to say.
        artifact: its artifact's key.
        metrics: the kernel file's own figures, with the energy (J) and edp (J·s) where the energy was measured.
    """

    outcome: Outcome | None
    latency_us: float | None = None
    spread_us: float | None = None
    compile_s: float = 0.0
    lane_s: float = 0.0
    message: str = ""
    artifact: str | None = None
    detail: TrialDetail = NO_DETAIL
    metrics: Mapping[str, float] = field(default_factory=dict)

    def figure(self, objective: Objective) -> float | None:
        """Return the figure by which an objective judges it, if it has one."""
        if is_exact(objective) and not self.detail.same_bits:
            return None
        return figure_of(objective, self.latency_us, self.metrics)

    def interval(self, *, by_energy: bool = False) -> tuple[float, float] | None:
        """Return the ends of the 95 % interval of its latency or energy, relative to that figure, if they are known."""
        figure = self.metrics.get(ENERGY) if by_energy else self.latency_us
        detail = self.detail
        low, high = (detail.energy_low, detail.energy_high) if by_energy else (detail.low_us, detail.high_us)
        return None if not figure or low is None or high is None else (low / figure, high / figure)

    def doubt(self, *, by_energy: bool = False) -> float | None:
        """Return half the width of :meth:`interval`, if it is known."""
        found = self.interval(by_energy=by_energy)
        return None if found is None else (found[1] - found[0]) / 2

    def add_details(self, **details: Any) -> Self:
        """Return the result with further fields of its detail: ``result.add_details(cores=2)``."""
        # As `replace` does, which would look at each of the fields that a detail might have.
        detail = TrialDetail(**{**vars(self.detail), **details})
        return type(self)(**{**vars(self), "detail": detail})


@record
class Trial(TrialResult):
    """One config tried on one problem on one device model, as the store keeps it: its result, and whose it is.

    ``problem`` has only the values that enter the key. ``updated`` is a Unix time in s.
    """

    _: KW_ONLY
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
        return TrialResult(*(getattr(self, name) for name in TrialResult.__match_args__))

    def without_detail(self) -> Self:
        """Return the trial as lists and events have it: whatever writes it leaves its detail out."""
        short = object.__new__(type(self))
        vars(short).update({name: value for name, value in vars(self).items() if name != "detail"})
        return short


@record
class ListedTrial(Trial):
    """A trial as ``results`` lists it; its ``detail`` is empty unless it was asked for.

    Attributes:
        winner: it is the winner by any objective.
        objectives: what it is the winner by.
        facts: the numbers among the backend's facts.
    """

    winner: bool = False
    objectives: tuple[Objective, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    # The protocol's name of this field is a word of Python's; see `bit_class`.
    __annotations__["class"] = "str"
    vars()["class"] = ""

    @property
    def bit_class(self) -> str:
        """Its class of equal bits: a letter, ``nondeterministic``, or nothing."""
        return str(getattr(self, "class"))

    @property
    def is_winner(self) -> bool:
        """The same as :attr:`winner`."""
        return self.winner


@record
class KnownConfig(Record):
    """A config and what a trial has found, without the details, which would take ten times as long to read.

    ``text`` is the config as canonical text; ``figure`` is by the objective that the reader asked for.
    """

    text: str
    config: Config
    outcome: Outcome
    figure: float | None = None
    compile_s: float = 0.0


@record
class Winner(Record):
    """The best valid trial of a (kernel, problem, device model) by an objective, with the context of its measurement.

    It ``is_final`` once a final round has decided it. ``note`` says why it is worse than the config that was served
    before.
    """

    context: Context
    trial: int
    problem: Problem
    config: Config
    latency_us: float
    spread_us: float | None
    artifact: str | None
    decided: float
    is_final: bool = False
    note: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    objective: Objective = LATENCY

    @property
    def key(self) -> WinnerKey:
        """The key of which it is the winner."""
        return self.context.key_for(self.objective)

    @property
    def figure(self) -> float | None:
        """The figure by which it won."""
        return figure_of(self.objective, self.latency_us, self.metrics)


@record
class EarlierSearch(Record):
    """Results of a search of the same kernel for another problem, or on another device.

    All costs are by one objective; less is better.
    """

    configs: tuple[Config, ...]
    costs: tuple[float, ...]
