"""A config's measurement, made of a timing, a verdict, damage or an error. No IO."""

from __future__ import annotations

from dataclasses import replace

from ktuned.ipc import replies, requests
from ktuned.model import Device, Outcome, Phase
from ktuned.worker.check import Verdict
from ktuned.worker.damage import Damage
from ktuned.worker.failures import words
from ktuned.worker.race import Ending
from ktuned.worker.timing import Timing

KEPT_SAMPLES = 200
"""Samples that travel with a measurement, evenly chosen by rank: enough for a distribution."""


def from_timing(timing: Timing) -> replies.Measurement:
    """Return the measurement of a config that was timed, to the end or until it could not win."""
    samples = timing.samples
    low_us, high_us = timing.interval_us
    kept = samples.sorted_us[:: max(1, len(samples) // KEPT_SAMPLES)]
    is_beaten = timing.ending is Ending.BEATEN
    return replies.Measurement(
        Outcome.SLOWER if timing.stopped_early else Outcome.MEASURED,
        f"cannot win: {low_us:,.1f} to {high_us:,.1f} µs by {len(samples)} samples" if is_beaten else "",
        latency_us=samples.median_us,
        spread_us=samples.spread_us,
        low_us=low_us,
        high_us=high_us,
        beaten=is_beaten or None,
        count=len(samples),
        samples=tuple(round(value, 3) for value in kept),
    )


def ends_batch(measured: replies.Measurement, request: requests.Trial) -> bool:
    """Return whether the next config must not follow in this request: it would meet what this one has left behind."""
    lacks_cores = request.cores is not None and measured.cores is not None and measured.cores > request.cores
    is_harmful = measured.is_guilty or measured.is_unsound or bool(measured.leftover)
    return measured.outcome is Outcome.LAUNCH_ERROR or is_harmful or lacks_cores


def judged(measured: replies.Measurement, verdict: Verdict) -> replies.Measurement:
    """Add the errors that the check found."""
    return replace(measured, max_error=verdict.finite_error, mismatched_ratio=verdict.mismatched_ratio)


def disputed(timed: replies.Measurement, first: replies.Measurement) -> replies.Measurement:
    """Return the measurement of a config that differs from the default: a mismatch, with the figures that it has."""
    if timed.outcome not in (Outcome.MEASURED, Outcome.SLOWER):
        return timed
    return replace(
        timed,
        outcome=Outcome.MISMATCH,
        message=f"differs from the default's outputs: {first.message}",
        phase=Phase.CHECK,
        max_error=first.max_error,
        mismatched_ratio=first.mismatched_ratio,
        overwritten=first.overwritten,
        undisputed=timed.outcome,
    )


def guilty(damage: Damage, phase: Phase) -> replies.Measurement:
    """Return the measurement of a config that wrote outside its tensors."""
    return replies.Measurement(
        Outcome.MISMATCH, damage.message, phase, is_guilty=True, is_unsound=not damage.is_contained
    )


def contended(device: Device, phase: Phase) -> replies.Measurement:
    """Return the measurement of a config whose timing other programs disturbed."""
    message = f"other programs used {device.name} while this was timed (`contention = false` keeps such timings)"
    return replies.Measurement(Outcome.CONTENDED, message, phase)


def raised(error: Exception, phase: Phase) -> replies.Measurement:
    """Return the measurement of a config that raised.

    Raises:
        MemoryError: it lacked memory, which is the worker's affair.
    """
    if isinstance(error, MemoryError):
        raise error
    return replies.Measurement(Outcome.LAUNCH_ERROR, words(error), phase)
