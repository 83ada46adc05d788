"""Reads all trials of a kernel, and describes a single trial in words, for commands, the live screen and Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ktuned.cli import text
from ktuned.model import Outcome, canonical
from ktuned.protocol import RESULTS, ListedTrial, ResultsParams, Trial, call_method, is_reference_noisy
from ktuned_client import Client

_RESULT_CHANGES = "when its sources, its toolchain or its driver changes"
_BUILD_CHANGES = "when its sources or its toolchain changes"
_DEADLY = f"{_RESULT_CHANGES}, or after `ktuned forget KERNEL --outcome {{outcome}}`"
_NEXT_JOB = "by the next job: this says nothing about the config"

TRIED_AGAIN: dict[Outcome, str] = {
    Outcome.MEASURED: _RESULT_CHANGES,
    Outcome.SLOWER: _RESULT_CHANGES,
    Outcome.COMPILE_ERROR: _BUILD_CHANGES,
    Outcome.COMPILE_TIMEOUT: _BUILD_CHANGES,
    Outcome.UNSUPPORTED: "on another device",
    Outcome.MISMATCH: _BUILD_CHANGES,
    Outcome.LAUNCH_ERROR: _RESULT_CHANGES,
    Outcome.CRASHED: _DEADLY.format(outcome=Outcome.CRASHED),
    Outcome.HUNG: _DEADLY.format(outcome=Outcome.HUNG),
    Outcome.CONTENDED: _NEXT_JOB,
    Outcome.CANCELLED: _NEXT_JOB,
    Outcome.INTERRUPTED: _NEXT_JOB,
}
"""When a config with this outcome is tried again, as the end of a sentence."""

_MORE_GRANTED = {
    "deadline_s": "when its deadline is raised",
    "memory_bytes": "when the limit of memory is raised",
    "execution": "when the mount allows execution",
}
"""The same for what a config may have failed for want of."""


PAGE = 2_000
"""Most trials in one request: the daemon's limit, which is lower if details are requested."""

_DEADLINE_S = 60.0

_SHOWN_APART = ("stdout", "stderr", "samples", "story", "spans")
"""Details that are shown in their own form, or only in a report."""

_LABELS = {
    "count": "samples",
    "open_s": "opening",
    "phase_s": "lane by phase",
    "low_us": "median from",
    "high_us": "median to",
}


def load_all_trials(client: Client, wanted: ResultsParams) -> list[ListedTrial]:
    """Return all trials that match, in the order of ``ktuned results``; sends as many requests as needed."""
    found: dict[int, ListedTrial] = {}
    page = msgspec.structs.replace(wanted, limit=PAGE, order="newest")
    while True:
        trials = {trial.id: trial for trial in call_method(client, RESULTS, page, deadline_s=_DEADLINE_S).trials}
        if not trials.keys() - found.keys():
            return sorted(found.values(), key=_table_key)
        found |= trials
        page = msgspec.structs.replace(page, before=min(trials))


def _table_key(trial: ListedTrial) -> tuple[bool, str, str, float, int]:
    """Return the sort key of a trial in a table: by problem and device, fastest first; trials without latency last."""
    latency = trial.latency_us
    return latency is None, canonical(trial.problem), trial.device, latency or 0.0, trial.id


def describe_facts(trial: Trial) -> dict[str, str]:
    """Return a trial's facts by name, in the order in which people read them."""
    stages: dict[str, dict[str, Any]] = msgspec.to_builtins(trial.detail)
    known = {name: fact for stage in stages.values() for name, fact in stage.items()}
    known |= {"metrics": trial.metrics} if trial.metrics else {}
    facts = {
        "trial": f"{trial.id} of job {trial.job}",
        "kernel": trial.kernel,
        "problem": text.format_values(trial.problem),
        "device": trial.device,
        "config": text.format_values(trial.config),
        "outcome": trial.outcome or "under way",
        "latency": f"{text.format_latency(trial.latency_us)} (spread {text.format_spread(trial.spread_us)})",
        "compiling": text.format_duration(trial.compile_s),
        "measuring": text.format_duration(trial.lane_s),
        "artifact": trial.artifact or text.ABSENT,
        "digest": trial.digest,
        **{_fact_label(name): _format_fact(name, value) for name, value in known.items() if name not in _SHOWN_APART},
        "tried again": _describe_retry(trial),
    }
    if is_reference_noisy(trial.detail.final.reference_us, trial.detail.final.reference_spread_us, trial.latency_us):
        facts[_fact_label("reference_us")] += " (noisy)"
    if trial.detail.failure.story:
        facts["story"] = " → ".join(word.replace("_", " ") for word in trial.detail.failure.story)
    return {name: text.clean_message(value) for name, value in facts.items()}


def list_messages(trial: Trial) -> dict[str, str]:
    """Return a trial's texts of several lines, by name: its message, the commands, the process's output."""
    detail = trial.detail
    texts = {
        "message": trial.message,
        "command": "\n".join(map(str, detail.compiled.facts.get("command", ()))),
        "stderr": detail.failure.stderr,
        "stdout": detail.failure.stdout,
    }
    return {name: words for name, words in texts.items() if words}


def _fact_label(name: str) -> str:
    """Return the name of a detail, without its unit."""
    return _LABELS.get(name) or name.removesuffix("_us").removesuffix("_s").replace("_", " ")


def _format_fact(name: str, value: object) -> str:
    """Return a detail's value for people, in the unit that its name ends in."""
    match value:
        case Mapping():
            # Compilers' commands are shown in lines of their own.
            pairs = {
                key: _format_fact(name if name.endswith("_s") else key, item)
                for key, item in value.items()
                if key != "command"
            }
            return " ".join(f"{key}={shown}" for key, shown in pairs.items() if shown)
        case list() | tuple():
            return ", ".join(_format_fact(name, item) for item in value)
        case bool():
            return str(value).lower()
        case int() | float() if name.endswith("_us"):
            return text.format_latency(value)
        case int() | float() if name.endswith("_s"):
            return text.format_duration(value)
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)


def _describe_retry(trial: Trial) -> str:
    if trial.outcome is None:
        return text.ABSENT
    return ", or ".join([*(_MORE_GRANTED[grant] for grant in trial.detail.failure.granted), TRIED_AGAIN[trial.outcome]])
