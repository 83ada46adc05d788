"""``ktuned doctor``: faults of the installation, and their remedies."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from ktuned.cli import doctor as checks
from ktuned.cli import equipment, output, versions
from ktuned.cli.commands.status import PROBE_DEADLINE_S
from ktuned.cli.doctor import Finding, Level
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import json_option
from ktuned.cli.spawn import state_directory
from ktuned.cli.versions import version
from ktuned_client import Client, DaemonError, DaemonUnavailable
from ktuned_client.paths import socket_path


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check this installation.

    Works without a daemon, and reports more with one. Exits with 1 if a check fails.
    """
    findings = _examine()
    if as_json:
        output.emit_json([finding.to_wire() for finding in findings])
    else:
        output.table(["", "what", "how it is", "remedy"], ([*map(str, _row(finding))] for finding in findings))
    return Exit.NOT_REACHED if any(finding.level is Level.FAIL for finding in findings) else Exit.DONE


def _row(finding: Finding) -> tuple[str, str, str, str]:
    return (finding.level, finding.what, finding.message, finding.mend)


def _examine() -> list[Finding]:
    # Not at the top: `--help` imports every command, and needs no backends.
    from ktuned.backends import ENTRY_POINT_GROUP

    status, environments, kernels, absence = _ask_daemon()
    home = state_directory()
    findings = [
        checks.check_python(),
        checks.check_socket(socket_path()),
        checks.check_home(home),
        checks.check_settings(),
        checks.check_disk(home),
        *equipment.check_compilers(),
        equipment.check_gpu(),
        checks.check_inotify(),
        checks.check_plugins(list(entry_points(group=ENTRY_POINT_GROUP))),
        checks.check_daemon(status, version(), *absence),
    ]
    if status is None:
        return [*findings, *equipment.check_backends([equipment.probe_here()])]
    roots = status.get("roots", ())
    findings += [*checks.check_notices(status), *checks.check_lanes(status)]
    findings += [*equipment.check_backends(environments, roots), *equipment.check_kernels(kernels, environments, roots)]
    place = status["artifacts"].get("directory")
    if place:
        # Not at the top: `--help` needs no database.
        from ktuned.store import Artifacts

        findings += equipment.check_artifacts(Artifacts(Path(place), 0).census(), environments)
    return findings


def _ask_daemon() -> tuple[Mapping[str, Any] | None, list[Mapping[str, Any]], list[Mapping[str, Any]], tuple[str, ...]]:
    """Return the daemon's status, backends and kernels, or the reason for its absence and the remedy."""
    try:
        versions.check()
        with Client() as client:
            status: Mapping[str, Any] = client.call("status")
            environments = client.call("backends", deadline_s=PROBE_DEADLINE_S)["environments"]
            kernels = client.call("kernels").get("kernels", [])
    except (DaemonUnavailable, DaemonError) as error:
        return None, [], [], (error.message, error.hint)
    return status, environments, kernels, ()
