"""``ktuned lookup``: the best config known now."""

from __future__ import annotations

from typing import Any

import click

from ktuned.cli import output, text
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import device_option, given, json_option, problem_option
from ktuned.model import Status
from ktuned_client import Client


@click.command()
@click.argument("kernel")
@problem_option
@device_option
@click.option("--pin", help="Look up under this pin: all who use it keep the same winner.")
@json_option
def lookup(kernel: str, problem: dict[str, Any], device: str | None, pin: str | None, as_json: bool) -> int:
    """Print the best config known for KERNEL."""
    with Client() as client:
        answer = client.call("lookup", kernel=kernel, problem=problem, **given(device=device, pin=pin))
    if as_json:
        output.emit_json(answer)
    elif answer["status"] != Status.UNKNOWN:
        output.emit(text.flat(answer["config"]))
        facts = [answer["status"], answer["device"], text.latency(answer["latency_us"])]
        facts.append(text.metrics(answer.get("metrics") or {}))
        if answer["age_s"] is not None:
            facts.append(f"{text.duration(answer['age_s'])} old")
        output.emit("  ".join(fact for fact in facts if fact))
        if answer["artifact"]:
            output.emit(answer["artifact"])
        if answer.get("message"):
            lead = "" if answer["status"] == Status.FRESH else "its tuning failed: "
            output.emit(f"{lead}{text.first_line(answer['message'])}")
    if answer["status"] == Status.UNKNOWN:
        output.complain(f"no kernel {kernel!r} is known", "`ktuned kernels` lists them; `ktuned tune PATH` adds a file")
        return Exit.NOT_REACHED
    return Exit.DONE
