"""``ktuned metrics``: the daemon's figures for a monitoring system."""

from __future__ import annotations

import click

from ktuned.cli import output
from ktuned.cli.exit_status import Exit
from ktuned.cli.metrics import families, render
from ktuned.cli.options import json_option
from ktuned_client import Client


@click.command()
@json_option
def metrics(as_json: bool) -> int:
    """Print the daemon's figures as OpenMetrics text.

    For a Prometheus node exporter: `ktuned metrics > …/ktuned.prom` into its textfile directory, at regular intervals.
    """
    with Client() as client:
        status = client.call("status")
    if as_json:
        samples = [
            {"name": family.name, "type": family.type, "labels": dict(labels), "value": value}
            for family in families(status)
            for labels, value in family.samples
        ]
        output.emit_json(samples)
    else:
        output.emit(render(status).removesuffix("\n"))
    return Exit.DONE
