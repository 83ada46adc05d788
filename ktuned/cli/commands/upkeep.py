"""``ktuned forget`` and ``ktuned prune``: delete trials and artifacts."""

from __future__ import annotations

import click

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.options import Number, json_option
from ktuned.cli.output import Exit
from ktuned.model import Outcome
from ktuned.protocol import COLLECT, FORGET, CollectParams, ForgetParams, call_method
from ktuned_client import Client

PRUNE_DEADLINE_S = 300.0
"""Deadline for many thousand artifacts on a slow disk."""


@click.command()
@click.option("--dry-run", is_flag=True, help="Only print how much would be removed.")
@click.option("--keep", "keep_gib", type=Number(min=0), metavar="GIB", help="Keep this much.")
@json_option
def prune(dry_run: bool, keep_gib: float | None, as_json: bool) -> int:
    """Remove compiled kernels to free disk space.

    The least recently served are removed first, winners last, down to `artifacts_gib` of config.toml, a limit that
    the daemon itself keeps too, or --keep. Removed kernels are compiled again when they are needed; results stay
    (`ktuned forget` deletes those).
    """
    with Client() as client, output.report_waiting("removing artifacts"):
        found = call_method(client, COLLECT, CollectParams(dry_run, keep_gib), deadline_s=PRUNE_DEADLINE_S)
    done = "would be removed" if dry_run else "removed"
    removed = f"{text.format_count(found.artifacts, 'artifact')} {done}, {text.format_size(found.freed_bytes)}"
    in_use = f"{text.format_size(found.bytes)} of at most {text.format_size(found.cap_bytes)} in use"
    output.emit_answer(found, as_json, removed, in_use)
    return Exit.DONE


@click.command()
@click.argument("kernel", shell_complete=complete_kernel)
@click.option(
    "--outcome", type=click.Choice([str(outcome) for outcome in Outcome]), help="Only trials with this outcome."
)
@json_option
def forget(kernel: str, outcome: str | None, as_json: bool) -> int:
    """Delete a kernel's trials, so that they are tried again.

    `--outcome hung` lifts the quarantine of configs that hung, and keeps all other trials.
    """
    with Client() as client:
        wanted = ForgetParams(kernel, None if outcome is None else Outcome(outcome))
        found = call_method(client, FORGET, wanted)
    output.emit_answer(found, as_json, f"{found.kernel}: {text.format_count(found.trials, 'trial')} forgotten")
    return Exit.DONE
