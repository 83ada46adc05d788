"""``ktuned forget``: deletes trials."""

from __future__ import annotations

import click

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.options import json_option, problem_option
from ktuned.cli.output import Exit
from ktuned.model import Outcome, Scalar
from ktuned.protocol import FORGET, ForgetParams, call_method
from ktuned_client import Client


@click.command()
@click.argument("kernel", shell_complete=complete_kernel)
@problem_option
@click.option(
    "--outcome", type=click.Choice([str(outcome) for outcome in Outcome]), help="Delete only trials with this outcome."
)
@json_option
def forget(kernel: str, problem: dict[str, Scalar], outcome: str | None, as_json: bool) -> int:
    """Delete a kernel's trials and winners.

    You cannot undo this. ktuned then tries all configs again. With `-p`, delete only those of one problem; a save then
    tunes this problem only if `problems` lists it. With `--outcome hung`, delete only the trials that hung.
    """
    with Client() as client:
        wanted = ForgetParams(kernel, problem or None, None if outcome is None else Outcome(outcome))
        found = call_method(client, FORGET, wanted)
    lost = f", {text.format_count(found.winners, 'winner')} among them" if found.winners else ""
    output.emit_answer(found, as_json, f"{found.kernel}: {text.format_count(found.trials, 'trial')} forgotten{lost}")
    return Exit.DONE
