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
    """Have the daemon read config.toml again.

    What cannot be followed is an error, and changes nothing.
    """
    with Client() as client:
        # Roots that get another interpreter are inspected anew.
        told = client.call("reload", deadline_s=TUNE_DEADLINE_S)
    if as_json:
        output.emit_json(told)
    else:
        output.emit(f"{told['path']}: {', '.join(told['changed']) or 'nothing'} changed")
    return Exit.DONE
