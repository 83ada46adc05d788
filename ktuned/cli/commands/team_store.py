"""``ktuned share``: exchanges winners with the team's store at once, instead of every few minutes."""

from __future__ import annotations

import click

from ktuned.cli import output, spawn, text
from ktuned.cli.options import SectionedCommand, json_option
from ktuned.cli.output import Exit
from ktuned.protocol import SHARE, ShareParams, call_method

_EXCHANGE_S = 600.0
"""Deadline of an exchange: several runs of the program that reads and writes, each with a deadline of its own."""


@click.group()
def share() -> None:
    """Exchange winners with other daemons through a team's store.

    `[share] url = …` in config.toml says where: a directory or object storage.
    """


@share.command(cls=SectionedCommand)
@json_option
def push(as_json: bool) -> int:
    """Write winners to the store now, and wait until they are there.

    Use it at the end of a CI job on an ephemeral runner. Exits with 1 if the store cannot be used.
    """
    with spawn.open_client() as client, output.report_waiting("writing winners"):
        done = call_method(client, SHARE, ShareParams(push=True), deadline_s=_EXCHANGE_S)
    output.emit_answer(done, as_json, f"{done.url} has all winners of this daemon; {done.sent} sent now")
    return Exit.DONE


@share.command(cls=SectionedCommand)
@json_option
def pull(as_json: bool) -> int:
    """Import others' winners now, and wait until they are served.

    Exits with 1 if the store cannot be used.
    """
    with spawn.open_client() as client, output.report_waiting("reading others' winners"):
        done = call_method(client, SHARE, ShareParams(), deadline_s=_EXCHANGE_S)
    output.emit_answer(done, as_json, f"imported {text.format_count(done.taken, 'winner')} from {done.url} now")
    return Exit.DONE
