"""``ktuned logs``: the daemon's log, from the journal if systemd runs it, else from its file."""

from __future__ import annotations

import subprocess
from collections import deque
from pathlib import Path
from typing import TextIO

import click

from ktuned.cli import output
from ktuned.cli.options import WholeNumber
from ktuned.cli.output import Exit
from ktuned.cli.spawn import LOG_NAME, state_directory

SERVICE = "ktuned.service"
"""The daemon's user unit."""

SYSTEMCTL_DEADLINE_S = 5.0

QUIET_MS = 500
"""Interval at which a followed file is read even without an event: lines may be written before the watch starts, or on
NFS."""

STEP_MS = 20
"""How long a burst of lines is collected before it is shown."""

BURST_MS = 200
"""Longest burst that is collected; lines of a longer one are shown before its end."""


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on printing new lines until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=WholeNumber(min=0),
    default=100,
    show_default=True,
    help="How many of the last lines to print.",
)
def logs(follow: bool, lines: int) -> int:
    """Show the daemon's log.

    If systemd runs the daemon, the log comes from the journal. A daemon that a command started logs to a file.
    `ktuned start --foreground` logs to its terminal.
    """
    if _is_run_by_systemd():
        return _show_journal(lines, follow=follow)
    path = state_directory() / LOG_NAME
    if not path.exists():
        output.print_error(f"there is no log at {path}", "`ktuned start --foreground` logs to its own stderr")
        return Exit.NOT_REACHED
    try:
        _show_file(path, lines, follow=follow)
    except KeyboardInterrupt:
        return Exit.DONE
    return Exit.DONE


def _is_run_by_systemd() -> bool:
    command = ["systemctl", "--user", "is-active", "--quiet", SERVICE]
    try:
        done = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=SYSTEMCTL_DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _show_journal(lines: int, *, follow: bool) -> int:
    command = ["journalctl", "--user", "--unit", SERVICE, "--lines", str(lines), "--no-pager"]
    try:
        # No deadline: it ends when its reader does, or with Ctrl-C.
        done = subprocess.run([*command, *(["--follow"] if follow else [])], check=False)
    except KeyboardInterrupt:
        return Exit.DONE
    except OSError as error:
        output.print_error(f"journalctl cannot be run: {error.strerror}", "install systemd's journalctl")
        return Exit.NOT_REACHED
    return Exit.NOT_REACHED if done.returncode else Exit.DONE


def _show_file(path: Path, lines: int, *, follow: bool) -> None:
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in deque(log, lines):
            output.emit_line(line.rstrip("\n"))
        if follow:
            _follow_log(path, log)


def _follow_log(path: Path, log: TextIO) -> None:
    """Show the lines that are added to a log, each when it is complete."""
    # Imported here, because only this option needs it.
    from watchfiles import watch

    begun = ""
    for _ in watch(
        path, watch_filter=None, debounce=BURST_MS, step=STEP_MS, rust_timeout=QUIET_MS, yield_on_timeout=True
    ):
        for piece in log:
            begun += piece
            if begun.endswith("\n"):
                output.emit_line(begun.rstrip("\n"))
                begun = ""
