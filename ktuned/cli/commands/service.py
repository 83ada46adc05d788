"""``ktuned service``: systemd user units that start and supervise the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click

from ktuned.cli import output, service_units, spawn
from ktuned.cli.options import json_option
from ktuned.cli.output import Exit
from ktuned.model import KtunedError
from ktuned_client.paths import socket_path

SYSTEMCTL_DEADLINE_S = 30.0
"""Deadline of a systemctl command; it waits for the daemon's start or end."""


class ServiceError(KtunedError):
    """The units cannot be written or removed, or systemd refuses them."""

    code = "service"


@click.group()
def service() -> None:
    """Run the daemon as a systemd user service."""


@service.command()
@click.option("--no-start", is_flag=True, help="Write the units without enabling them.")
@click.option("--force", is_flag=True, help="Replace units that were written by hand.")
@json_option
def install(no_start: bool, force: bool, as_json: bool) -> int:
    """Install the service: its user units are written, and systemd listens at the socket.

    They run this installation: systemd starts the daemon at the first connection.
    """
    wanted = service_units.compose_installed_units(sys.executable, os.environ)
    place = service_units.units_directory(os.environ)
    foreign = [
        name for name in wanted if (text := _read_unit(place / name)) and not text.startswith(service_units.MARK)
    ]
    if foreign and not force:
        raise ServiceError(f"{place / foreign[0]} was written by hand", hint="move it away, or give --force")
    starts = not no_start and _is_systemd_running()
    if starts and run_systemctl("is-active", service_units.SOCKET).returncode != 0 and spawn.is_serving(socket_path()):
        raise ServiceError(
            f"a daemon that systemd did not start serves {socket_path()}", hint="stop it first with `ktuned stop`"
        )
    for name, text in wanted.items():
        try:
            place.mkdir(parents=True, exist_ok=True)
            output.write_atomically(place / name, text)
        except OSError as error:
            raise ServiceError(
                f"{place / name} cannot be written: {error.strerror}", hint="check the mode of its directory"
            ) from error
    if starts:
        _command_systemd("daemon-reload")
        _command_systemd("enable", "--now", service_units.SOCKET)
    listening = "systemd listens at the socket now, and starts the daemon at the first connection"
    lines = [f"wrote {' and '.join(wanted)} to {place}", *([listening] if starts else [])]
    output.emit_answer({"directory": str(place), "units": list(wanted), "started": starts}, as_json, *lines)
    if not starts:
        reason = "not started, as requested" if no_start else "no user manager of systemd answers here"
        output.print_message(
            f"{reason}; later: systemctl --user daemon-reload && systemctl --user enable --now {service_units.SOCKET}"
        )
    return Exit.DONE


@service.command()
@json_option
def uninstall(as_json: bool) -> int:
    """Stop the service and remove its units.

    State and artifacts stay.
    """
    place = service_units.units_directory(os.environ)
    ours = [
        name
        for name in (service_units.SERVICE, service_units.SOCKET)
        if (_read_unit(place / name) or "").startswith(service_units.MARK)
    ]
    answers = _is_systemd_running()
    if ours and answers:
        _command_systemd("disable", "--now", *ours)
    for name in ours:
        (place / name).unlink(missing_ok=True)
    if ours and answers:
        _command_systemd("daemon-reload")
    line = f"removed {' and '.join(ours)} from {place}" if ours else f"there are no units of ktuned in {place}"
    output.emit_answer({"directory": str(place), "removed": ours}, as_json, line)
    return Exit.DONE


@service.command()
@json_option
def status(as_json: bool) -> int:
    """Show the state of the units.

    Exits with 1 unless the socket unit is active.
    """
    place = service_units.units_directory(os.environ)
    wanted = service_units.compose_installed_units(sys.executable, os.environ)
    answers = _is_systemd_running()
    found = {name: _find_unit_state(place / name, text, answers) for name, text in wanted.items()}
    if as_json:
        units = {name: state._asdict() for name, state in found.items()}
        output.emit_json({"directory": str(place), "units": units})
    else:
        columns = ["unit", "file", "enabled", "active"]
        output.print_table(columns, ([name, *state] for name, state in found.items()))
        if not answers:
            output.print_message("notice: no user manager of systemd answers here")
        elif any(state.file == "differs" for state in found.values()):
            output.print_message("notice: a unit differs from this installation's; `ktuned service install` updates it")
    return Exit.DONE if found[service_units.SOCKET].active == "active" else Exit.NOT_REACHED


class UnitState(NamedTuple):
    """Whether a unit's file is this installation's, and what systemd says about the unit."""

    file: str
    enabled: str
    active: str


def _find_unit_state(path: Path, wanted: str, answers: bool) -> UnitState:
    text = _read_unit(path)
    if text is None:
        file = "absent"
    elif not text.startswith(service_units.MARK):
        file = "written by hand"
    else:
        file = "current" if text == wanted else "differs"
    if not answers:
        return UnitState(file, "unknown", "unknown")
    enabled, active = (run_systemctl(verb, path.name).stdout.strip() for verb in ("is-enabled", "is-active"))
    return UnitState(file, enabled or "not-found", active or "not-found")


def _read_unit(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ServiceError(f"{path} cannot be read: {error.strerror}", hint="check its owner and mode") from error


def _is_systemd_running() -> bool:
    return run_systemctl("show", "--property=Version").returncode == 0


def _command_systemd(*words: str) -> None:
    done = run_systemctl(*words)
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
        raise ServiceError(
            f"systemctl --user {' '.join(words)} failed: {reason}", hint="see `journalctl --user -u ktuned`"
        )


def run_systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    """Run ``systemctl --user``; if it cannot be run or does not answer, its status is 1."""
    command = ["systemctl", "--user", *words]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SYSTEMCTL_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {SYSTEMCTL_DEADLINE_S:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", f"systemctl cannot be run: {error.strerror}")
