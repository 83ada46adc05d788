"""``ktuned lookup``: the best config known now, and the pins that keep answers as they are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.exit_status import Exit
from ktuned.cli.limits import load_limits, share_of
from ktuned.cli.options import (
    AdvancedOption,
    SectionedCommand,
    device_option,
    drop_missing,
    json_option,
    objective_option,
    problem_option,
)
from ktuned.model import LATENCY, Change, JobState, Status, describe_change, is_exact, mention_objective
from ktuned.protocol import PINS, RESULTS, UNPIN, PinInfo, ResultsParams, UnpinParams, call_method
from ktuned_client import Client
from ktuned_client.answers import LEFT_OUT

SETTLE_S = 5.0
"""Time that an answer may take for a worker to start and to run a kernel file's constraints."""

MAX_JOBS = 1_000
"""Jobs among which the one of a lookup is looked for."""


@click.command(cls=SectionedCommand)
@click.argument("kernel", required=False, shell_complete=complete_kernel)
@problem_option
@device_option
@click.option("--why", is_flag=True, help="Show the changes that made the answer stale.")
@json_option
@objective_option
@click.option("--pin", cls=AdvancedOption, help="Look up under this pin: all who use it keep the same winner.")
@click.option("--pins", "lists_pins", cls=AdvancedOption, is_flag=True, help="List the pins instead.")
@click.option("--release", cls=AdvancedOption, metavar="PIN", help="Give a pin up instead.")
def lookup(
    kernel: str | None,
    problem: dict[str, Any],
    device: str | None,
    objective: str | None,
    pin: str | None,
    lists_pins: bool,
    release: str | None,
    why: bool,
    as_json: bool,
) -> int:
    """Print the best config known for a kernel."""
    if [kernel is not None, lists_pins, release is not None].count(True) != 1:
        raise click.UsageError("lookup needs a kernel, or --pins, or --release PIN", click.get_current_context())
    if lists_pins:
        return _list_pins(as_json)
    if release is not None:
        return _release_pin(release, as_json)
    assert kernel is not None
    with Client() as client:
        place = drop_missing(device=device, pin=pin, objective=objective)
        # A person may wait until a worker has said whether the winner of a near problem is valid for this one.
        answer = client.call("lookup", kernel=kernel, problem=problem, settle=SETTLE_S, **place)
        if answer["status"] == Status.UNKNOWN and not as_json:
            # It is refused, with the name that is near.
            client.call("kernels", kernel=kernel)
        if why and answer["status"] != Status.UNKNOWN:
            answer["changes"] = _load_changes(client, answer)
        metrics = answer.get("metrics") or {}
        place_in_line = _place_in_line(client, answer) if answer["status"] in (Status.DEFAULT, Status.NEAR) else ""
        # Few kernels have metrics: the others' lookups ask for nothing more.
        share = share_of(metrics, load_limits(client), answer["device"]) if metrics else ""
        classes = (
            _load_bit_classes(client, answer) if is_exact(answer.get("objective") or LATENCY) and not as_json else []
        )
    if as_json:
        output.emit_json({**answer, **LEFT_OUT, **answer})
    elif answer["status"] != Status.UNKNOWN:
        output.emit_line(text.format_values(answer["config"]))
        objective = answer.get("objective") or LATENCY
        by = mention_objective(objective).strip()
        facts = [answer["status"], by, answer["device"], text.format_latency(answer["latency_us"])]
        facts.append(text.format_metrics(answer.get("metrics") or {}))
        facts.append(share)
        if answer.get("expected_loss") is not None:
            facts.append(f"expected loss {answer['expected_loss']:.1%}")
        if answer["age_s"] is not None:
            facts.append(f"{text.format_duration(answer['age_s'])} old")
        output.emit_line("  ".join(fact for fact in facts if fact))
        if answer["artifact"]:
            output.emit_line(answer["artifact"])
        if answer.get("message"):
            output.emit_line(text.first_line(answer["message"]))
        for line in classes:
            output.emit_line(line)
        if place_in_line:
            output.emit_line(place_in_line)
        for change in answer.get("changes", ()):
            output.emit_line(f"  {describe_change(msgspec.convert(change, Change))}")
    if answer["status"] == Status.UNKNOWN:
        output.print_error(
            f"no kernel {kernel!r} is known", "`ktuned kernels` lists them; `ktuned tune PATH` adds a file"
        )
        return Exit.NOT_REACHED
    return Exit.DONE


def _place_in_line(client: Client, answer: Mapping[str, Any]) -> str:
    """Return where the job stands that a lookup has queued; nothing where there is none, or not yet."""
    waiting = client.call("jobs", limit=MAX_JOBS)["jobs"]
    live = [job for job in waiting if job["state"] in (JobState.RUNNING, JobState.QUEUED)]
    for place, job in enumerate(live):
        if job["kernel"] == answer["kernel"] and job["problem"].items() <= answer["problem"].items():
            if job["state"] == JobState.RUNNING:
                return f"job {job['id']} tunes it now"
            return f"job {job['id']} will tune it, after {text.count_of(place, 'other job')}"
    return ""


def _load_bit_classes(client: Client, answer: Mapping[str, Any]) -> list[str]:
    """Return what is known of the classes of equal bits of an answer's problem, but the price, which it has itself."""
    wanted = ResultsParams(answer["kernel"], answer["problem"] or None, answer["device"], current=True)
    found = call_method(client, RESULTS, wanted).numerics
    return [line for report in found for line in report.lines if line != answer.get("message")]


def _load_changes(client: Client, answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the changes since the winner of an answer's problem and device was measured."""
    (kernel,) = client.call("kernels", kernel=answer["kernel"], why=True)["kernels"]
    asked = answer["problem"].items()
    entries = (
        entry
        for entry in kernel["why"]
        if entry["device"] == answer["device"] and entry.get("objective") == answer.get("objective")
    )
    return [change for entry in entries if entry["problem"].items() <= asked for change in entry["changes"]]


def _list_pins(as_json: bool) -> int:
    """Print the pins, and how many answers each holds."""
    with Client() as client:
        found = call_method(client, PINS)
    if as_json:
        output.emit_answer(found)
    elif found.pins:
        output.print_table(["pin", "questions", "age"], map(_pin_row, found.pins), right=["questions", "age"])
    else:
        output.print_message("there are no pins")
    return Exit.DONE


def _pin_row(pin: PinInfo) -> list[str]:
    return [pin.pin, str(pin.questions), text.format_duration(max(0.0, time.time() - pin.created))]


def _release_pin(pin: str, as_json: bool) -> int:
    """Give a pin up: its questions get the best answers again."""
    with Client() as client:
        found = call_method(client, UNPIN, UnpinParams(pin))
    if as_json:
        output.emit_answer(found)
    else:
        output.emit_line(f"{pin}: {text.count_of(found.questions, 'question')} forgotten")
    return Exit.DONE
