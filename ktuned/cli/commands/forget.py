"""``ktuned forget``: have configs tried again that a quarantine or an old figure keeps away."""

from __future__ import annotations

import click

from ktuned.cli import Exit, output
from ktuned.cli.options import given, json_option
from ktuned.model import Outcome
from ktuned_client import Client


@click.command()
@click.argument("kernel")
@click.option("--outcome", type=click.Choice([str(outcome) for outcome in Outcome]), help="Only trials that ended so.")
@json_option
def forget(kernel: str, outcome: str | None, as_json: bool) -> int:
    """Delete KERNEL's trials, so that they are tried again.

    `--outcome hung` lifts the quarantine of the configs that hung, and leaves all others.
    """
    with Client() as client:
        found = client.call("forget", **given(kernel=kernel, outcome=outcome))
    if as_json:
        output.emit_json(found)
    else:
        output.emit(f"{found['kernel']}: {found['trials']} trials forgotten")
    return Exit.DONE
