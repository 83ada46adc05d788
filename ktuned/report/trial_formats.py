"""Trials as text for other programs: JSON, CSV and T4.

T4 is the autotuning community's format for results (https://github.com/autotuning/schemas). It is written as Kernel
Tuner does: times are in milliseconds, and the objective is called ``time``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from ktuned.model import Outcome
from ktuned.protocol import ListedTrial

Trials = Sequence[ListedTrial]

T4_VERSION = "1.0.0"

_MS_PER_S = 1e3
_US_PER_MS = 1e3

_INVALIDITY: Mapping[str, str] = {
    Outcome.MEASURED: "correct",
    Outcome.SLOWER: "correct",
    Outcome.COMPILE_ERROR: "compile",
    Outcome.COMPILE_TIMEOUT: "timeout",
    Outcome.UNSUPPORTED: "constraints",
    Outcome.MISMATCH: "correctness",
    Outcome.LAUNCH_ERROR: "runtime",
    Outcome.CRASHED: "runtime",
    Outcome.HUNG: "timeout",
}
"""T4's words for outcomes. A trial with another outcome, which says nothing about its config, is left out."""

_CSV_FIELDS = ("id", "kernel", "device", "outcome", "winner", "latency_us", "spread_us", "compile_s", "lane_s")
"""The first columns, before ``p.KEY`` for the problem, ``c.KNOB`` for the config, ``m.NAME`` for metrics and ``f.NAME``
for facts."""


def render_trials(trials: Trials, kind: str) -> str:
    """Return trials in one of :data:`FORMATS`."""
    return FORMATS[kind](trials)


def _render_json(trials: Trials) -> str:
    return json.dumps(msgspec.to_builtins(list(trials)), ensure_ascii=False)


def _render_csv(trials: Trials) -> str:
    keys = list(dict.fromkeys(key for trial in trials for key in trial.problem))
    knobs = list(dict.fromkeys(knob for trial in trials for knob in trial.config))
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    metrics = list(dict.fromkeys(name for trial in trials for name in trial.metrics))
    facts = list(dict.fromkeys(name for trial in trials for name in trial.facts))
    kinds = {"p": keys, "c": knobs, "m": metrics, "f": facts}
    named = [f"{mark}.{name}" for mark, names in kinds.items() for name in names]
    columns = [*_CSV_FIELDS, *named, "updated", "message"]
    writer.writerow(columns)
    for trial in trials:
        writer.writerow(
            [
                trial.id,
                *(getattr(trial, name) for name in ("kernel", "device", "outcome")),
                int(trial.winner),
                *(getattr(trial, name) for name in ("latency_us", "spread_us", "compile_s", "lane_s")),
                *(trial.problem.get(key) for key in keys),
                *(trial.config.get(knob) for knob in knobs),
                *(trial.metrics.get(name) for name in metrics),
                *(trial.facts.get(name) for name in facts),
                _format_timestamp(trial),
                trial.message,
            ]
        )
    return written.getvalue().rstrip("\n")


def _render_t4(trials: Trials) -> str:
    results = [_make_t4_result(trial) for trial in trials if trial.outcome in _INVALIDITY]
    return json.dumps({"schema_version": T4_VERSION, "results": results}, ensure_ascii=False)


def _make_t4_result(trial: ListedTrial) -> dict[str, Any]:
    invalidity = _INVALIDITY[trial.outcome or ""]
    named = {"time": trial.latency_us, "spread": trial.spread_us}
    measurements = [_make_t4_time(name, value) for name, value in named.items() if value is not None]
    return {
        "timestamp": _format_timestamp(trial),
        "configuration": dict(trial.config),
        "times": {
            "compilation": trial.compile_s * _MS_PER_S,
            "benchmark": trial.lane_s * _MS_PER_S,
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": 0.0,
            "runtimes": [sample / _US_PER_MS for sample in trial.detail.timing.samples],
        },
        "invalidity": invalidity,
        "correctness": int(invalidity == "correct"),
        "measurements": measurements,
        "objectives": ["time"],
    }


def _make_t4_time(name: str, microseconds: float) -> dict[str, Any]:
    return {"name": name, "value": microseconds / _US_PER_MS, "unit": "ms"}


def _format_timestamp(trial: ListedTrial) -> str:
    return datetime.fromtimestamp(trial.updated, UTC).isoformat(timespec="milliseconds")


FORMATS: Mapping[str, Callable[[Trials], str]] = {"json": _render_json, "csv": _render_csv, "t4": _render_t4}
"""The function that writes each format, by the format's name."""
