"""The detail that a trial keeps besides its figures, as a value; in the store it is a JSON map with the fields' names.

Absent fields are not stored. No IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ktuned.ipc import InvalidMessage, from_plain, replies, to_plain
from ktuned.model import ENERGY, RETRIED_BY_NEXT_JOB, KernelInfo, Objective, Outcome, Record, Trial, TrialResult, record


@record
class TrialDetail(Record):
    """Details of a trial, as far as it got.

    From its end: the ``phase`` that it failed in, ``signal``, ``after_s`` (the deadline that passed), ``story`` (its
    events) and the output of its code. From measuring: some of the ``samples`` (µs) and their ``count``, ``low_us`` and
    ``high_us`` (the median's 95 % interval), ``beaten`` (sampling ended early: it could not win), the check's errors,
    how many launches were ``compared`` (a finalist's in all rounds), the ``bits`` of the outputs where numerics are
    exact, those of the rows that smaller batches have (``row_bits``, by problem), whether they are the anchor's
    (``same_bits``; absent while that is unknown), whether launches left different outputs (``nondeterministic``), the
    lane's seconds by phase (``phase_s``), the inputs that the kernel has ``overwritten`` undeclared, the ``cores`` that
    it used, the kernel file's own ``metrics`` (with its ``energy`` where that was measured, and ``energy_low`` and
    ``energy_high``, the ends of its 95 % interval, in J; ``metrics_fault`` says why the file's failed), why contention
    could not be judged, and the outcome that a config which differs from the default's outputs would have
    ``undisputed``. From compiling: the Build, the backend's ``facts``, ``content`` (a digest that equal measurements
    share), ``read`` (the digest of the data files and variables that were read until it ended). ``spans`` are its
    times: ``compile`` or ``lane``, the name of the slot or the device, and when it began there last (Unix s).
    ``carried_from`` is the trial that measured equal content; ``rounds`` and the figures after it are the finalists'
    rounds', ``energy_rounds`` and ``round_costs`` those of rounds that were decided by another
    figure than the latency.
    """

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
    metrics: Mapping[str, float] | None = None
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

    def to_json(self) -> dict[str, Any]:
        """Return the map that the store keeps."""
        return {name: value for name, value in to_plain(self).items() if value is not None}

    @classmethod
    def from_json(cls, detail: Mapping[str, Any]) -> TrialDetail:
        """Rebuild from what the store holds; a map that cannot be understood counts as empty."""
        try:
            return from_plain(cls, dict(detail))
        except InvalidMessage:
            return cls()

    @classmethod
    def from_measurement(cls, measured: replies.Measurement) -> TrialDetail:
        """Return what is kept of a measurement."""
        return cls(
            phase=measured.phase,
            count=measured.count,
            samples=measured.samples,
            low_us=measured.low_us,
            high_us=measured.high_us,
            beaten=measured.beaten,
            max_error=measured.max_error,
            mismatched_ratio=measured.mismatched_ratio,
            contention=measured.contention,
            overwritten=measured.overwritten,
            cores=measured.cores,
            phase_s=measured.phase_s,
            metrics=measured.metrics,
            metrics_fault=measured.metrics_fault,
            undisputed=measured.undisputed,
            energy_low=measured.energy_low,
            energy_high=measured.energy_high,
            compared=measured.compared,
            bits=measured.bits,
            row_bits=measured.row_bits,
            same_bits=measured.same_bits,
            nondeterministic=measured.nondeterministic,
        )


NO_DETAIL = TrialDetail()


def choose_rounds_name(kernel: KernelInfo, objective: Objective) -> str:
    """Return the detail that counts a finalist's rounds: those in which its energy was measured count apart."""
    return "energy_rounds" if kernel.needs_energy(objective) else "rounds"


def read_interval(
    detail: Mapping[str, Any], latency_us: float | None, *, by_energy: bool
) -> tuple[float, float] | None:
    """Return the ends of the 95 % interval of a trial's latency, or of its energy, as shares of it, if they are known.

    Reads the stored map itself: a job that knows 10,000 trials asks for all of them.
    """
    low, high, figure = detail.get("low_us"), detail.get("high_us"), latency_us
    if by_energy:
        figure = (detail.get("metrics") or {}).get(ENERGY)
        low, high = detail.get("energy_low"), detail.get("energy_high")
    if not figure or not isinstance(low, float) or not isinstance(high, float):
        return None
    return low / figure, high / figure


def read_doubt(detail: Mapping[str, Any], latency_us: float | None, *, by_energy: bool = False) -> float | None:
    """Return half of the interval of a trial's figure as a share of it, if it is known."""
    found = read_interval(detail, latency_us, by_energy=by_energy)
    return None if found is None else (found[1] - found[0]) / 2


def complete_result(known: Trial, result: TrialResult) -> TrialResult:
    """Return the result of a measured trial that lacked a figure, once that was measured: all else stays as it was.

    What says nothing of the config changes nothing. Where it failed now, that is its result.
    """
    if result.outcome in RETRIED_BY_NEXT_JOB:
        return _make_measured_result(known, known.detail)
    if result.outcome is not Outcome.MEASURED:
        return result
    added = {name: result.detail[name] for name in _ADDED if name in result.detail}
    return replace(_make_measured_result(known, {**known.detail, **added}), lane_s=known.lane_s + result.lane_s)


_ADDED = ("metrics", "energy_low", "energy_high", "bits", "row_bits", "same_bits", "nondeterministic")


def _make_measured_result(known: Trial, detail: Mapping[str, Any]) -> TrialResult:
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
