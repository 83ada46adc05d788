"""``ktuned gc``: make room on the disk."""

from __future__ import annotations

import click

from ktuned.cli import output, text
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import given, json_option
from ktuned_client import Client

GC_DEADLINE_S = 300.0
"""How long it may take to go through many thousand artifacts on a slow disk."""


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--keep", "keep_gib", type=click.FloatRange(min=0), metavar="GIB", help="Come down to so much.")
@json_option
def gc(dry_run: bool, keep_gib: float | None, as_json: bool) -> int:
    """Remove compiled kernels to make room on the disk.

    The least recently served go first, winners last, until no more than `artifacts_gib` of config.toml is left,
    which the daemon keeps to by itself too, or --keep. What is removed is compiled again when it is needed;
    results stay (`ktuned forget` deletes those).
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
