"""``ktuned jobs``: lists jobs, and cancels, pauses and resumes them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import WholeNumber, drop_missing, json_option
from ktuned.model import LATENCY, JobState, Objective, mention_objective, needs_metric
from ktuned.protocol import STATUS, call_method
from ktuned_client import Client

DEFAULT_LIMIT = 200
"""Default number of jobs: some screens."""

MAX_LIMIT = 1_999
"""The daemon lists one more at most, which shows that a list was cut."""


@click.command()
@click.argument("target", metavar="[JOB|KERNEL]", required=False, shell_complete=complete_kernel)
@click.option("--cancel", "action", flag_value="cancel", help="Cancel the job, or all jobs of the kernel.")
@click.option("--pause", "action", flag_value="pause", help="Pause them; without a target a device, or all tuning.")
@click.option("--resume", "action", flag_value="resume", help="Undo a pause.")
@click.option("--device", metavar="DEVICE", help="With --pause or --resume: this device (cpu:0, cuda:1) or model.")
@click.option("--state", type=click.Choice([str(state) for state in JobState]), help="Only jobs in this state.")
@click.option("--limit", type=WholeNumber(min=1), help=f"At most this many, the newest. Default: {DEFAULT_LIMIT}.")
@json_option
def jobs(
    target: str | None,
    action: str | None,
    device: str | None,
    state: str | None,
    limit: int | None,
    as_json: bool,
) -> int:
    """List, cancel, pause or resume jobs.

    A pause lasts until it is resumed, across restarts of the daemon too. Measurements are kept, and lookups are still
    answered. A job that was paused by itself is not resumed with its device.
    """
    if action is None:
        if device is not None:
            raise click.UsageError("--device goes with --pause or --resume", click.get_current_context())
        return _list_jobs(target, state, limit, as_json)
    if state is not None or limit is not None:
        raise click.UsageError(f"--state and --limit do not go with --{action}", click.get_current_context())
    if action == "cancel" and target is None:
        raise click.UsageError("--cancel needs a job or a kernel", click.get_current_context())
    if action == "cancel" and device is not None:
        raise click.UsageError("--device goes with --pause or --resume", click.get_current_context())
    if target is not None and device is not None:
        raise click.UsageError(
            "a target and --device exclude each other; give one of them", click.get_current_context()
        )
    return _act_on_jobs(action, target, device, as_json)


def _choose_jobs(target: str | None) -> dict[str, Any]:
    if target is None:
        return {}
    return {"job": int(target)} if target.isdecimal() else {"kernel": target}


def _list_jobs(target: str | None, state: str | None, limit: int | None, as_json: bool) -> int:
    at_most = min(limit or DEFAULT_LIMIT, MAX_LIMIT)
    with Client() as client:
        found = client.call("jobs", **drop_missing(**_choose_jobs(target), state=state, limit=at_most + 1))["jobs"]
    found, is_cut = found[:at_most], len(found) > at_most
    if as_json:
        output.emit_json(found)
    elif found:
        show_jobs(found)
    else:
        output.print_message("no jobs")
    if is_cut:
        output.print_message(f"there are more jobs than these {at_most}; --limit shows up to {MAX_LIMIT}")
    return Exit.DONE


_DONE = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}


def _act_on_jobs(action: str, target: str | None, device: str | None, as_json: bool) -> int:
    """Cancel, pause or resume; say what was done, and what is still paused."""
    with Client() as client:
        before = set() if action == "cancel" else set(call_method(client, STATUS).paused)
        answer = client.call(action, **drop_missing(**_choose_jobs(target), device=device))
        changed = answer["jobs"]
        if as_json:
            output.emit_json(answer)
        else:
            if changed:
                show_jobs(changed)
                numbers = ", ".join(str(job["id"]) for job in changed)
                output.print_message(f"{_DONE[action]} job {numbers}")
            if target is None:
                output.print_message(_devices_line(action, before, set(answer["paused"])))
                output.print_message(_still_paused(client, answer["paused"]))
    if target is not None and not changed:
        output.print_error(f"{target} has no job that could be {_DONE[action]}", "`ktuned jobs` lists them")
        return Exit.NOT_REACHED
    return Exit.DONE


def _devices_line(action: str, before: set[str], after: set[str]) -> str:
    """Return what a pause or its end has changed."""
    changed = sorted(after - before if action == "pause" else before - after)
    if not changed:
        return f"nothing was {'paused that was not before' if action == 'pause' else 'paused there'}"
    return f"{_DONE[action]}: {', '.join(name or 'all tuning' for name in changed)}"


def _still_paused(client: Client, devices: Iterable[str]) -> str:
    """Return what is paused now, and how that ends."""
    paused = [str(job["id"]) for job in client.call("jobs", state="paused")["jobs"]]
    parts = [name or "all tuning" for name in sorted(devices)]
    parts += [f"job {', '.join(paused)}"] if paused else []
    if not parts:
        return "nothing is paused"
    return f"paused now: {'; '.join(parts)} (`ktuned jobs --resume` ends it; add --device DEVICE, or name a JOB)"


def show_jobs(found: Iterable[Mapping[str, Any]]) -> None:
    """Print a table of job maps."""
    now = time.time()
    figures = ["job", "done", "left", "best", "default", "launches", "age"]
    columns = [
        "job",
        "kernel",
        "problem",
        "device",
        "state",
        "why",
        "done",
        "left",
        "best",
        "default",
        "launches",
        "age",
        "outcomes",
    ]
    output.print_table(columns, (_job_row(job, now) for job in found), right=figures)


def _job_row(job: Mapping[str, Any], now: float) -> list[str]:
    done = str(job["done"]) if job["total"] is None else f"{job['done']}/{job['total']}"
    return [
        str(job["id"]),
        job["kernel"],
        text.format_values(job["problem"]) + _job_objective(job),
        job["device"],
        job["state"],
        _describe_reason(job),
        done,
        text.format_duration(job.get("left_s")),
        *_best_and_default(job),
        f"{job['launches']:,}" if job.get("launches") else text.ABSENT,
        text.format_duration(max(0.0, now - job["created"])) if job.get("created") else text.ABSENT,
        job.get("waits_for") or text.first_line(job.get("message")) or text.format_outcomes(job["outcomes"]),
    ]


def _job_objective(job: Mapping[str, Any]) -> str:
    return mention_objective(job.get("objective") or LATENCY)


def _best_and_default(job: Mapping[str, Any]) -> list[str]:
    """Return the best figure and the default's, by the job's objective."""
    objective = Objective(job.get("objective") or LATENCY)
    names = ("best_figure", "default_figure") if needs_metric(objective) else ("best_us", "default_us")
    return [text.by_objective(objective, job.get(name)) for name in names]


def _describe_reason(job: Mapping[str, Any]) -> str:
    """Return a job's reason, and the number of clients that wait for it."""
    waiters = job.get("waiters", 0)
    return f"{job['reason']}; {waiters} wait{'s' if waiters == 1 else ''}" if waiters else job["reason"]
