"""``ktuned gc``: frees disk space."""

from __future__ import annotations

import click

from ktuned.cli import output, text
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import given, json_option
from ktuned_client import Client

GC_DEADLINE_S = 300.0
"""Deadline for many thousand artifacts on a slow disk."""


@click.command()
@click.option("--dry-run", is_flag=True, help="Only print how much would be removed.")
@click.option("--keep", "keep_gib", type=click.FloatRange(min=0), metavar="GIB", help="Keep this much.")
@json_option
def gc(dry_run: bool, keep_gib: float | None, as_json: bool) -> int:
    """Remove compiled kernels to free disk space.

    The least recently served are removed first, winners last, down to `artifacts_gib` of config.toml, a limit that
    the daemon itself keeps too, or --keep. Removed kernels are compiled again when they are needed; results stay
    (`ktuned forget` deletes those).
    """
    with Client() as client:
        found = client.call("gc", deadline_s=GC_DEADLINE_S, **given(dry_run=dry_run, keep_gib=keep_gib))
    if as_json:
        output.emit_json(found)
    else:
        done = "would be removed" if dry_run else "removed"
        output.emit(f"{text.number(found['artifacts'], 'artifact')} {done}, {text.size(found['freed_bytes'])}")
        output.emit(f"{text.size(found['bytes'])} of at most {text.size(found['cap_bytes'])} in use")
    return Exit.DONE
