"""The detail that a trial keeps besides its figures. In the store it is a JSON map of the fields that are not ``None``.

No IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ktuned.ipc import InvalidMessage, from_plain, replies, to_plain
from ktuned.model import ENERGY, RETRIED_BY_NEXT_JOB, KernelInfo, Objective, Outcome, Record, Trial, TrialResult, record


@record
class TrialDetail(Record):
    """Details of a trial, as far as it got."""

    phase: str | None = None  # in which it failed
    signal: str | None = None
    after_s: float | None = None  # the deadline that passed
    story: tuple[str, ...] | None = None  # its events
    stdout: str | None = None
    stderr: str | None = None
    count: int | None = None  # of samples; `samples` are some of them, in µs
    samples: tuple[float, ...] | None = None
    low_us: float | None = None  # ends of the median's 95 % interval
    high_us: float | None = None
    beaten: bool | None = None  # sampling ended early, because it could not win
    max_error: float | None = None
    mismatched_ratio: float | None = None
    contention: str | None = None  # why contention could not be judged
    overwritten: tuple[str, ...] | None = None  # inputs that the kernel overwrites without declaring it
    cores: int | None = None  # that it used
    phase_s: Mapping[str, float] | None = None  # the lane's time by phase
    metrics: Mapping[str, float] | None = None  # of the kernel file, and `energy` (J) where that was measured
    metrics_fault: str | None = None
    undisputed: Outcome | None = None  # its outcome if the default's outputs, from which it differs, prove nothing
    energy_low: float | None = None  # ends of the energy's 95 % interval, in J
    energy_high: float | None = None
    energy_rounds: int | None = None  # rounds as a finalist, and their costs, by another figure than the latency
    round_costs: tuple[float, ...] | None = None
    build: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] | None = None  # the backend's
    content: str | None = None  # digest that equal measurements share
    read: str | None = None  # digest of the data files and variables that were read until it ended
    open_s: float | None = None
    spans: tuple[tuple[str, str, float], ...] | None = None  # `compile` or `lane`; slot or device; since when (Unix s)
    carried_from: int | None = None  # the trial that measured equal content
    rounds: int | None = None  # rounds as a finalist, by the latency, and what they found
    round_medians_us: tuple[float, ...] | None = None
    first_latency_us: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None
    compared: int | None = None  # launches whose outputs were compared, in all rounds
    bits: tuple[str, ...] | None = None  # of the outputs by input, where numerics are exact
    row_bits: Mapping[str, tuple[str, ...]] | None = None  # of the rows that smaller batches have, by problem
    same_bits: bool | None = None  # whether they equal the anchor's
    nondeterministic: bool | None = None  # launches left different outputs

    def to_json(self) -> dict[str, Any]:
        """Return the map that the store keeps."""
        return {name: value for name, value in to_plain(self).items() if value is not None}

    @classmethod
    def from_json(cls, detail: Mapping[str, Any]) -> TrialDetail:
        """Read what the store holds; a map that cannot be understood counts as empty."""
        try:
            return from_plain(cls, dict(detail))
        except InvalidMessage:
            return cls()

    @classmethod
    def from_measurement(cls, measured: replies.Measurement) -> TrialDetail:
        """Return what is kept of a measurement: its fields that have the same names here."""
        return cls(**{name: getattr(measured, name) for name in _OF_MEASUREMENT})


_OF_MEASUREMENT = {field.name for field in fields(TrialDetail)} & {field.name for field in fields(replies.Measurement)}

NO_DETAIL = TrialDetail()


def choose_rounds_name(kernel: KernelInfo, objective: Objective) -> str:
    """Return the name of the detail that counts a finalist's rounds: those by energy are counted apart."""
    return "energy_rounds" if kernel.needs_energy(objective) else "rounds"


def read_interval(
    detail: Mapping[str, Any], latency_us: float | None, *, by_energy: bool
) -> tuple[float, float] | None:
    """Return the ends of the 95 % interval of a trial's latency or energy, relative to that figure, if they are known.

    Reads the stored map directly, because a job that knows 10,000 trials asks for all of them.
    """
    low, high, figure = detail.get("low_us"), detail.get("high_us"), latency_us
    if by_energy:
        figure = (detail.get("metrics") or {}).get(ENERGY)
        low, high = detail.get("energy_low"), detail.get("energy_high")
    if not figure or not isinstance(low, float) or not isinstance(high, float):
        return None
    return low / figure, high / figure


def read_doubt(detail: Mapping[str, Any], latency_us: float | None, *, by_energy: bool = False) -> float | None:
    """Return half the width of the interval of a trial's figure, relative to the figure, if it is known."""
    found = read_interval(detail, latency_us, by_energy=by_energy)
    return None if found is None else (found[1] - found[0]) / 2


def complete_result(known: Trial, result: TrialResult) -> TrialResult:
    """Return the result of a measured trial that lacked a figure, with the figure added; all else stays as it was.

    If the config failed this time, that is its result. An outcome that says nothing about the config changes nothing.
    """
    if result.outcome in RETRIED_BY_NEXT_JOB:
        return make_measured_result(known, known.detail)
    if result.outcome is not Outcome.MEASURED:
        return result
    added = {name: result.detail[name] for name in _ADDED if name in result.detail}
    return replace(make_measured_result(known, {**known.detail, **added}), lane_s=known.lane_s + result.lane_s)


_ADDED = ("metrics", "energy_low", "energy_high", "bits", "row_bits", "same_bits", "nondeterministic")


def make_measured_result(known: Trial, detail: Mapping[str, Any]) -> TrialResult:
    """Return the result of a measured trial as it stands, with another ``detail``."""
    return TrialResult(
        Outcome.MEASURED,
        known.latency_us,
        known.spread_us,
        known.compile_s,
        known.lane_s,
        known.message,
        known.artifact,
        detail,
    )
