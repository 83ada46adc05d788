"""``ktuned add`` and ``ktuned remove``: which directories the daemon watches."""

from __future__ import annotations

import os

import click

from ktuned.cli import output, spawn, text
from ktuned.cli.commands.kernels import show_kernels
from ktuned.cli.options import SectionedCommand, as_path, json_option, no_spawn_option
from ktuned.cli.output import Exit
from ktuned.protocol import ADD, UNWATCH, AddParams, UnwatchParams, call_method
from ktuned_client import Client
from ktuned_client.answers import TUNE_DEADLINE_S


@click.command(cls=SectionedCommand)
@click.argument("path")
@no_spawn_option
@json_option
def add(path: str, no_spawn: bool, as_json: bool) -> int:
    """Watch a kernel file or a directory without tuning it.

    Its kernels can be looked up, imported and tuned by name from then on. Exits with 1 if a kernel file has an error.
    """
    place = as_path(path, "a kernel's name is none")
    if not no_spawn:
        spawn.announce_daemon(spawn.ensure_daemon())
    with Client() as client, output.report_waiting(f"inspecting {place}"):
        # As a tuning: it inspects every kernel file below the path.
        added = call_method(client, ADD, AddParams(place), deadline_s=TUNE_DEADLINE_S)
    if as_json:
        output.emit_json(added)
    else:
        for notice in added.notices:
            output.print_message(notice)
        show_kernels(added)
        output.print_message(f"watching {added.root.path}; `ktuned remove {added.root.path}` ends it")
    return Exit.NOT_REACHED if added.errors else Exit.DONE


@click.command()
@click.argument("path")
@json_option
def remove(path: str, as_json: bool) -> int:
    """Stop watching a directory.

    Its jobs are cancelled and its kernels are forgotten; results stay for the time when it is watched again.
    """
    with Client() as client:
        # Not resolved here: the directory may be gone.
        gone = call_method(client, UNWATCH, UnwatchParams(os.path.abspath(path)))
    if as_json:
        output.emit_json(gone)
    else:
        output.emit_line(f"{gone.path} is no longer watched; {text.count_of(len(gone.kernels), 'kernel')} forgotten")
    return Exit.DONE
