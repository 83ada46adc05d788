"""The detail that a trial keeps besides its figures, as a value; in the store it is a JSON map with the fields' names.

Absent fields are not stored. No IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ktuned.ipc import InvalidMessage, from_plain, replies, to_plain
from ktuned.model import Outcome


@dataclass(frozen=True, slots=True)
class TrialDetail:
    """Details of a trial, as far as it got.

    From its end: the ``phase`` that it failed in, ``signal``, ``after_s`` (the deadline that passed), ``story`` (its
    events) and the output of its code. From measuring: some of the ``samples`` (µs) and their ``count``, ``low_us`` and
    ``high_us`` (the median's 95 % interval), ``beaten`` (sampling ended early: it could not win), the check's errors,
    the inputs that the kernel has ``overwritten`` undeclared, the ``cores`` that it used, the kernel file's own
    ``metrics``, why contention could not be judged, and the outcome that a config which differs from the default's
    outputs would have ``undisputed``. From compiling: the Build, the backend's ``facts``, ``content``
    (a digest that equal measurements share). ``spans`` are its times: ``compile`` or ``lane``, the name of the slot or
    the device, and when it began there last (Unix s). ``carried_from`` is the trial that measured equal content;
    ``rounds`` and the figures after it are the finalists' round's.
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
    metrics: Mapping[str, float] | None = None
    undisputed: Outcome | None = None
    build: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] | None = None
    content: str | None = None
    open_s: float | None = None
    spans: tuple[tuple[str, str, float], ...] | None = None
    carried_from: int | None = None
    rounds: int | None = None
    round_medians_us: tuple[float, ...] | None = None
    first_latency_us: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None

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
    def of(cls, measured: replies.Measurement) -> TrialDetail:
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
            metrics=measured.metrics,
            undisputed=measured.undisputed,
        )


NO_DETAIL = TrialDetail()


def doubt(detail: Mapping[str, Any], latency_us: float | None) -> float | None:
    """Return half of a median's interval as a share of it, if it is known.

    Reads the stored map itself: a job that knows 10,000 trials asks for all of them.
    """
    low_us, high_us = detail.get("low_us"), detail.get("high_us")
    if not latency_us or not isinstance(low_us, float) or not isinstance(high_us, float):
        return None
    return (high_us - low_us) / 2 / latency_us
