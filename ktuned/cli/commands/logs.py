"""``ktuned logs``: the daemon's log, from the journal if systemd runs it, else from its file."""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from pathlib import Path

import click

from ktuned.cli import output, service_units
from ktuned.cli.exit_status import Exit
from ktuned.cli.spawn import LOG_NAME, state_directory

POLL_S = 0.2
"""Interval at which a followed file is read: soon enough for a reader, and next to no work."""

SYSTEMCTL_DEADLINE_S = 5.0


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=100, show_default=True, help="Number of last lines.")
def logs(follow: bool, lines: int) -> int:
    """Show the daemon's log.

    It comes from the journal if systemd runs the daemon, else from the file that a daemon started by a command writes.
    `ktuned serve` in a terminal logs to that terminal.
    """
    if _is_a_service():
        return _show_journal(lines, follow=follow)
    path = state_directory() / LOG_NAME
    if not path.exists():
        output.complain(f"there is no log at {path}", "`ktuned serve` logs to its own stderr")
        return Exit.NOT_REACHED
    try:
        _show_file(path, lines, follow=follow)
    except KeyboardInterrupt:
        return Exit.DONE
    return Exit.DONE


def _is_a_service() -> bool:
    if not (service_units.directory(os.environ) / service_units.SERVICE).exists():
        return False
    asked = ["systemctl", "--user", "--quiet", "is-active", service_units.SERVICE]
    try:
        return subprocess.run(asked, timeout=SYSTEMCTL_DEADLINE_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _show_journal(lines: int, *, follow: bool) -> int:
    command = ["journalctl", "--user", "--unit", service_units.SERVICE, "--lines", str(lines), "--no-pager"]
    try:
        # No deadline: it ends with its reader, or with Ctrl-C.
        done = subprocess.run([*command, *(["--follow"] if follow else [])], check=False)
    except KeyboardInterrupt:
        return Exit.DONE
    except OSError as error:
        output.complain(f"journalctl cannot be run: {error.strerror}", "install systemd's journalctl")
        return Exit.NOT_REACHED
    return Exit.NOT_REACHED if done.returncode else Exit.DONE


def _show_file(path: Path, lines: int, *, follow: bool) -> None:
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in deque(log, lines):
            output.emit(line.rstrip("\n"))
        begun = ""
        while follow:
            begun += log.readline()
            if begun.endswith("\n"):
                output.emit(begun.rstrip("\n"))
                begun = ""
            else:
                time.sleep(POLL_S)  # noqa: TID251 - a regular file reports no new lines
