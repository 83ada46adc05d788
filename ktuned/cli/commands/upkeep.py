"""``ktuned metrics``, ``gc`` and ``reload``: upkeep of a daemon that runs for long."""

from __future__ import annotations

import click

from ktuned.cli import output, text
from ktuned.cli.exit_status import Exit
from ktuned.cli.metrics import families, render
from ktuned.cli.options import Number, given, json_option
from ktuned_client import Client
from ktuned_client.answers import TUNE_DEADLINE_S

GC_DEADLINE_S = 300.0
"""Deadline for many thousand artifacts on a slow disk."""


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


@click.command()
@click.option("--dry-run", is_flag=True, help="Only print how much would be removed.")
@click.option("--keep", "keep_gib", type=Number(min=0), metavar="GIB", help="Keep this much.")
@json_option
def gc(dry_run: bool, keep_gib: float | None, as_json: bool) -> int:
    """Remove compiled kernels to free disk space.

    The least recently served are removed first, winners last, down to `artifacts_gib` of config.toml, a limit that
    the daemon itself keeps too, or --keep. Removed kernels are compiled again when they are needed; results stay
    (`ktuned forget` deletes those).
    """
    with Client() as client, output.patience("removing artifacts"):
        found = client.call("gc", deadline_s=GC_DEADLINE_S, **given(dry_run=dry_run, keep_gib=keep_gib))
    if as_json:
        output.emit_json(found)
    else:
        done = "would be removed" if dry_run else "removed"
        output.emit(f"{text.number(found['artifacts'], 'artifact')} {done}, {text.size(found['freed_bytes'])}")
        output.emit(f"{text.size(found['bytes'])} of at most {text.size(found['cap_bytes'])} in use")
    return Exit.DONE


@click.command()
@json_option
def reload(as_json: bool) -> int:
    """Make the daemon read config.toml again.

    An error in it changes nothing, and exits with 2.
    """
    with Client() as client, output.patience("reading config.toml and inspecting what it changes"):
        # Roots with another interpreter are inspected again.
        done = client.call("reload", deadline_s=TUNE_DEADLINE_S)
    if as_json:
        output.emit_json(done)
    else:
        output.emit(f"{done['path']}: {', '.join(done['changed']) or 'nothing'} changed")
    return Exit.DONE
