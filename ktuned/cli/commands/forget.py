"""``ktuned forget``: deletes trials, so that their configs are tried again, and releases pins."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import given, json_option
from ktuned.model import Outcome, UsageError
from ktuned_client import Client


@click.command()
@click.argument("kernel", required=False, shell_complete=complete_kernel)
@click.option("--pin", help="Release this pin, instead of a kernel's trials.")
@click.option("--pins", "lists_pins", is_flag=True, help="List the pins.")
@click.option(
    "--outcome", type=click.Choice([str(outcome) for outcome in Outcome]), help="Only trials with this outcome."
)
@json_option
def forget(kernel: str | None, pin: str | None, lists_pins: bool, outcome: str | None, as_json: bool) -> int:
    """Delete KERNEL's trials, so that they are tried again.

    `--outcome hung` lifts the quarantine of configs that hung, and keeps all other trials.
    """
    if [kernel is not None, pin is not None, lists_pins].count(True) != 1:
        raise UsageError("forget needs a kernel, or --pin, or --pins", hint="see `ktuned forget --help`")
    if kernel is None:
        return _pins(as_json) if pin is None else _unpin(pin, as_json)
    with Client() as client:
        found = client.call("forget", **given(kernel=kernel, outcome=outcome))
    if as_json:
        output.emit_json(found)
    else:
        output.emit(f"{found['kernel']}: {text.number(found['trials'], 'trial')} forgotten")
    return Exit.DONE


def _pins(as_json: bool) -> int:
    with Client() as client:
        found = client.call("pins")
    if as_json:
        output.emit_json(found)
    elif found["pins"]:
        output.table(["pin", "questions", "age"], map(_row, found["pins"]), right=["questions", "age"])
    else:
        output.say("there are no pins")
    return Exit.DONE


def _row(pin: Mapping[str, Any]) -> list[str]:
    return [pin["pin"], str(pin["questions"]), text.duration(max(0.0, time.time() - pin["created"]))]


def _unpin(pin: str, as_json: bool) -> int:
    with Client() as client:
        found = client.call("unpin", pin=pin)
    if as_json:
        output.emit_json(found)
    else:
        output.emit(f"{pin}: {text.number(found['questions'], 'question')} forgotten")
    return Exit.DONE
