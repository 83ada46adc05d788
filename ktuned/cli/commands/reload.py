"""``ktuned reload``."""

from __future__ import annotations

import click

from ktuned.cli import output
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import json_option
from ktuned_client import Client
from ktuned_client.answers import TUNE_DEADLINE_S


@click.command()
@json_option
def reload(as_json: bool) -> int:
    """Make the daemon read config.toml again.

    An error in it changes nothing, and exits with 2.
    """
    with Client() as client:
        # Roots with another interpreter are inspected again.
        told = client.call("reload", deadline_s=TUNE_DEADLINE_S)
    if as_json:
        output.emit_json(told)
    else:
        output.emit(f"{told['path']}: {', '.join(told['changed']) or 'nothing'} changed")
    return Exit.DONE
