"""``ktuned service``: systemd user units that start and supervise the daemon."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    wanted = service_units.for_this_installation(sys.executable, os.environ)
    place = service_units.units_directory(os.environ)
    foreign = [
        name for name in wanted if (text := _read_unit(place / name)) and not text.startswith(service_units.MARK)
    ]
    if foreign and not force:
        raise ServiceError(f"{place / foreign[0]} was written by hand", hint="move it away, or give --force")
    starts = not no_start and _manager_answers()
    if starts and _run_systemctl("is-active", service_units.SOCKET).returncode != 0 and spawn.is_serving(socket_path()):
        raise ServiceError(
            f"a daemon that systemd did not start serves {socket_path()}", hint="stop it first with `ktuned stop`"
        )
    for name, text in wanted.items():
        try:
            place.mkdir(parents=True, exist_ok=True)
            output.write_atomically(place / name, text)
        except OSError as error:
            raise ServiceError(
                f"{place / name} cannot be written: {error.strerror}", hint="mend its directory's mode"
            ) from error
    if starts:
        _order_systemd("daemon-reload")
        _order_systemd("enable", "--now", service_units.SOCKET)
    _tell_state({"directory": str(place), "units": list(wanted), "started": starts}, as_json)
    if not as_json:
        output.emit_line(f"wrote {' and '.join(wanted)} to {place}")
        if starts:
            output.emit_line("systemd listens at the socket now, and starts the daemon at the first connection")
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
    answers = _manager_answers()
    if ours and answers:
        _order_systemd("disable", "--now", *ours)
    for name in ours:
        (place / name).unlink(missing_ok=True)
    if ours and answers:
        _order_systemd("daemon-reload")
    _tell_state({"directory": str(place), "removed": ours}, as_json)
    if not as_json:
        output.emit_line(
            f"removed {' and '.join(ours)} from {place}" if ours else f"there are no units of ktuned in {place}"
        )
    return Exit.DONE


@service.command()
@json_option
def status(as_json: bool) -> int:
    """Show the state of the units.

    Exits with 1 unless the socket unit is active.
    """
    place = service_units.units_directory(os.environ)
    wanted = service_units.for_this_installation(sys.executable, os.environ)
    answers = _manager_answers()
    found = {name: _unit_state(place / name, text, answers) for name, text in wanted.items()}
    _tell_state({"directory": str(place), "units": found}, as_json)
    if not as_json:
        columns = ["unit", "file", "enabled", "active"]
        output.print_table(columns, ([name, one["file"], one["enabled"], one["active"]] for name, one in found.items()))
        if not answers:
            output.print_message("notice: no user manager of systemd answers here")
        elif any(one["file"] == "differs" for one in found.values()):
            output.print_message(
                "notice: a unit differs from that of this installation; `ktuned service install` updates it"
            )
    return Exit.DONE if found[service_units.SOCKET]["active"] == "active" else Exit.NOT_REACHED


def _unit_state(path: Path, wanted: str, answers: bool) -> dict[str, str]:
    text = _read_unit(path)
    if text is None:
        file = "absent"
    elif not text.startswith(service_units.MARK):
        file = "written by hand"
    else:
        file = "current" if text == wanted else "differs"
    enabled, active = (
        ("unknown", "unknown")
        if not answers
        else (_describe_action("is-enabled", path), _describe_action("is-active", path))
    )
    return {"file": file, "enabled": enabled, "active": active}


def _describe_action(verb: str, path: Path) -> str:
    done = _run_systemctl(verb, path.name)
    return done.stdout.strip() or "not-found"


def _tell_state(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.emit_json(found)


def _read_unit(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ServiceError(f"{path} cannot be read: {error.strerror}", hint="mend its mode or its owner") from error


def _manager_answers() -> bool:
    return shutil.which("systemctl") is not None and _run_systemctl("show", "--property=Version").returncode == 0


def _order_systemd(*words: str) -> None:
    done = _run_systemctl(*words)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
        raise ServiceError(
            f"systemctl --user {' '.join(words)} failed: {said}", hint="see `journalctl --user -u ktuned`"
        )


def _run_systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", "--user", *words]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SYSTEMCTL_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {SYSTEMCTL_DEADLINE_S:g} s")
