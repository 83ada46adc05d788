"""``ktuned forget``: deletes trials."""

from __future__ import annotations

import click

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.options import json_option
from ktuned.cli.output import Exit
from ktuned.model import Outcome
from ktuned.protocol import FORGET, ForgetParams, call_method
from ktuned_client import Client


@click.command()
@click.argument("kernel", shell_complete=complete_kernel)
@click.option(
    "--outcome", type=click.Choice([str(outcome) for outcome in Outcome]), help="Delete only trials with this outcome."
)
@json_option
def forget(kernel: str, outcome: str | None, as_json: bool) -> int:
    """Delete a kernel's trials and winners, to try all again.

    `--outcome hung` lifts the quarantine of configs that hung, and keeps all other trials.
    """
    with Client() as client:
        wanted = ForgetParams(kernel, None if outcome is None else Outcome(outcome))
        found = call_method(client, FORGET, wanted)
    lost = f", {text.format_count(found.winners, 'winner')} among them" if found.winners else ""
    output.emit_answer(found, as_json, f"{found.kernel}: {text.format_count(found.trials, 'trial')} forgotten{lost}")
    return Exit.DONE
