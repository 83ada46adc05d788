"""``ktuned lookup``: the best config known now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.exit_status import Exit
from ktuned.cli.limits import limits, share_of
from ktuned.cli.options import device_option, given, json_option, objective_option, problem_option
from ktuned.model import LATENCY, Status, sentence
from ktuned_client import Client
from ktuned_client.answers import LEFT_OUT


@click.command()
@click.argument("kernel", shell_complete=complete_kernel)
@problem_option
@device_option
@objective_option
@click.option("--pin", help="Look up under this pin: all who use it keep the same winner.")
@click.option("--why", is_flag=True, help="Show the changes that made the answer stale.")
@json_option
def lookup(
    kernel: str,
    problem: dict[str, Any],
    device: str | None,
    objective: str | None,
    pin: str | None,
    why: bool,
    as_json: bool,
) -> int:
    """Print the best config known for KERNEL."""
    with Client() as client:
        place = given(device=device, pin=pin, objective=objective)
        answer = client.call("lookup", kernel=kernel, problem=problem, **place)
        if answer["status"] == Status.UNKNOWN and not as_json:
            # It is refused, with the name that is near.
            client.call("kernels", kernel=kernel)
        if why and answer["status"] != Status.UNKNOWN:
            answer["changes"] = _changes(client, answer)
        metrics = answer.get("metrics") or {}
        # Few kernels have metrics: the others' lookups ask for nothing more.
        share = share_of(metrics, limits(client), answer["device"]) if metrics else ""
    if as_json:
        output.emit_json({**answer, **LEFT_OUT, **answer})
    elif answer["status"] != Status.UNKNOWN:
        output.emit(text.flat(answer["config"]))
        objective = answer.get("objective") or LATENCY
        by = "" if objective == LATENCY else f"by {objective}"
        facts = [answer["status"], by, answer["device"], text.latency(answer["latency_us"])]
        facts.append(text.metrics(answer.get("metrics") or {}))
        facts.append(share)
        if answer.get("expected_loss") is not None:
            facts.append(f"expected loss {answer['expected_loss']:.1%}")
        if answer["age_s"] is not None:
            facts.append(f"{text.duration(answer['age_s'])} old")
        output.emit("  ".join(fact for fact in facts if fact))
        if answer["artifact"]:
            output.emit(answer["artifact"])
        if answer.get("message"):
            output.emit(text.first_line(answer["message"]))
        for change in answer.get("changes", ()):
            output.emit(f"  {sentence(change)}")
    if answer["status"] == Status.UNKNOWN:
        output.complain(f"no kernel {kernel!r} is known", "`ktuned kernels` lists them; `ktuned tune PATH` adds a file")
        return Exit.NOT_REACHED
    return Exit.DONE


def _changes(client: Client, answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the changes since the winner of an answer's problem and device was measured."""
    (kernel,) = client.call("kernels", kernel=answer["kernel"], why=True)["kernels"]
    asked = answer["problem"].items()
    entries = (
        entry
        for entry in kernel["why"]
        if entry["device"] == answer["device"] and entry.get("objective") == answer.get("objective")
    )
    return [change for entry in entries if entry["problem"].items() <= asked for change in entry["changes"]]
