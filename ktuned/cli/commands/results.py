"""``ktuned results``: what became of each config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from ktuned.cli import Exit, output, text
from ktuned.cli.options import device_option, given, json_option, problem_option
from ktuned.lifecycle import TRIED_AGAIN
from ktuned.model import Outcome
from ktuned_client import Client

DEFAULT_LIMIT = 50
"""Trials shown when nobody says how many: about a screen."""

_TOLD_APART = ("stdout", "stderr", "samples", "story")
_COLUMNS = ["trial", "problem", "device", "config", "outcome", "latency", "spread", "compile", "lane", "message"]
_FIGURES = ["trial", "latency", "spread", "compile", "lane"]


@click.command()
@click.argument("kernel", required=False)
@problem_option
@device_option
@click.option("--outcome", type=click.Choice([str(outcome) for outcome in Outcome]), help="Only trials that ended so.")
@click.option("--trial", type=click.IntRange(min=1), help="Tell all about one trial.")
@click.option("--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="At most so many.")
@json_option
def results(
    kernel: str | None,
    problem: dict[str, Any],
    device: str | None,
    outcome: str | None,
    trial: int | None,
    limit: int,
    as_json: bool,
) -> int:
    """List trials of KERNEL, or tell all about one."""
    if kernel is None and trial is None:
        raise click.UsageError("name a kernel, or a trial with --trial", click.get_current_context())
    chosen = given(kernel=kernel, problem=problem, device=device, outcome=outcome, trial=trial)
    with Client() as client:
        trials = client.call("results", limit=limit, **chosen)["trials"]
    if as_json:
        output.emit_json(trials)
    elif trial is not None:
        for found in trials:
            _tell(found)
    elif trials:
        _show(trials)
        if len(trials) == limit:
            output.say(f"(the first {limit}; --limit shows more)")
    if not trials:
        output.complain(
            f"no such trial of {kernel}" if kernel else f"there is no trial {trial}",
            "`ktuned jobs` shows what was tuned",
        )
        return Exit.NOT_REACHED
    return Exit.DONE


def _show(trials: Iterable[Mapping[str, Any]]) -> None:
    rows = (
        [
            str(trial["id"]),
            text.flat(trial["problem"]),
            trial["device"],
            text.flat(trial["config"]),
            trial["outcome"] or "under way",
            text.latency(trial["latency_us"]),
            text.latency(trial["spread_us"]),
            text.duration(trial["compile_s"]),
            text.duration(trial["lane_s"]),
            text.first_line(trial["message"], limit=80),
        ]
        for trial in trials
    )
    output.table(_COLUMNS, rows, right=_FIGURES)


def _tell(trial: Mapping[str, Any]) -> None:
    detail: Mapping[str, Any] = trial.get("detail") or {}
    again = TRIED_AGAIN[Outcome(trial["outcome"])] if trial["outcome"] else text.ABSENT
    facts = {
        "trial": f"{trial['id']} of job {trial['job']}",
        "kernel": trial["kernel"],
        "problem": text.flat(trial["problem"]),
        "device": trial["device"],
        "config": text.flat(trial["config"]),
        "outcome": trial["outcome"] or "under way",
        "latency": f"{text.latency(trial['latency_us'])} (spread {text.latency(trial['spread_us'])})",
        "compiling": text.duration(trial["compile_s"]),
        "measuring": text.duration(trial["lane_s"]),
        "artifact": trial["artifact"] or text.ABSENT,
        "digest": trial.get("digest", text.ABSENT),
        **{key.replace("_", " "): _said(value) for key, value in detail.items() if key not in _TOLD_APART},
        "tried again": again,
    }
    if "story" in detail:
        facts["story"] = " → ".join(word.replace("_", " ") for word in detail["story"])
    width = max(map(len, facts))
    for name, value in facts.items():
        output.emit(f"{name:<{width}}  {text.clean(value)}")
    for name, words in (("message", trial["message"]), *((name, detail.get(name)) for name in ("stderr", "stdout"))):
        if words:
            output.emit()
            output.emit(f"{name}:")
            for line in text.clean(str(words)).splitlines():
                output.emit(f"  {line}")


def _said(value: object) -> str:
    return text.flat(value) if isinstance(value, Mapping) else str(value)
