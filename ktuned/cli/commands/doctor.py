"""``ktuned doctor``: faults of the installation, and their remedies."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import click
import msgspec

from ktuned.backends import ENTRY_POINT_GROUP
from ktuned.cli import doctor as checks
from ktuned.cli import equipment, output, spawn, text, versions
from ktuned.cli.doctor import Finding, Level
from ktuned.cli.options import json_option
from ktuned.cli.output import Exit
from ktuned.cli.versions import read_own_version
from ktuned.model import MEMORY, PRECISIONS
from ktuned.protocol import (
    BACKENDS,
    KERNELS,
    PEAKS,
    STATUS,
    EnvironmentInfo,
    KernelEntry,
    PeaksParams,
    StatusAnswer,
    call_method,
)
from ktuned.store import STORE_NAME
from ktuned.user_directories import find_user_directories
from ktuned_client import Client, DaemonError, DaemonUnavailable
from ktuned_client.paths import socket_path

PROBE_DEADLINE_S = 60.0
"""Deadline for probing every backend; each is imported in a worker."""

PEAKS_DEADLINE_S = 600.0
"""Deadline for measuring all devices of a large machine, one after the other; each waits for its lane."""


@click.command()
@click.option("--peaks", is_flag=True, help="Measure and show the limits of each device, instead of the checks.")
@json_option
def doctor(peaks: bool, as_json: bool) -> int:
    """Check this installation.

    Works without a daemon, and reports more if one runs. --peaks starts a daemon. Exits with 1 if a check fails.
    """
    if peaks:
        return _measure_peaks(as_json=as_json)
    findings = _examine_installation()
    if as_json:
        output.emit_json(msgspec.to_builtins(findings))
    else:
        # The findings that need action come last, next to the prompt.
        findings.sort(key=lambda finding: list(Level).index(finding.level))
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for line in format_findings(findings, width):
            output.emit_line(line)
        output.print_message(_summarise_findings(findings))
    return Exit.NOT_REACHED if any(finding.level is Level.FAIL for finding in findings) else Exit.DONE


MAX_LABEL = 30
"""Longest name of a finding that decides how far the messages are indented."""


def format_findings(findings: Sequence[Finding], width: int | None) -> list[str]:
    """Return the lines of findings: what is fine on one line each, cut at ``width``; all else with its remedy."""
    short = [len(finding.what) for finding in findings if len(finding.what) <= MAX_LABEL]
    margin = max(short, default=0)
    lines = []
    for finding in findings:
        line = f"{finding.level:<4}  {finding.what:<{margin}}  {finding.message}"
        if finding.level is Level.OK and width is not None:
            lines.append(line if len(line) <= width else f"{line[: width - 1]}…")
            continue
        told = [line, *([f"remedy: {finding.mend}"] if finding.mend else [])]
        for text_line, first in zip(told, ("", " " * 6), strict=False):
            if width is None:
                lines.append(first + text_line)
            else:
                lines += textwrap.wrap(
                    text_line,
                    width,
                    initial_indent=first,
                    subsequent_indent=" " * 6,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
    return lines


def _measure_peaks(*, as_json: bool) -> int:
    with spawn.open_client() as client, output.report_waiting("measuring the devices"):
        answer = call_method(client, PEAKS, PeaksParams(measure=True), deadline_s=PEAKS_DEADLINE_S)
    status = Exit.DONE if any(peaks.gbps for peaks in answer.peaks) else Exit.NOT_REACHED
    if as_json:
        output.emit_json(answer)
        return status
    rows = []
    for peaks in answer.peaks:
        figures = {MEMORY: peaks.gbps, **{PRECISIONS[kind]: peaks.tflops.get(kind) for kind in PRECISIONS}}
        names = {"memory": MEMORY, **PRECISIONS}
        absent = {names.get(kind, kind): why for kind, why in peaks.absent.items()}
        for limit, figure in figures.items():
            unit = "GB/s" if limit == MEMORY else "TFLOP/s"
            if figure is not None or limit in absent:
                rows.append((peaks.device, limit, absent[limit] if figure is None else f"{figure:.4g} {unit}"))
        if peaks.doubt:
            rows.append((peaks.device, "in doubt", f"{peaks.doubt}: measured again when the machine is quiet"))
        rows += [(peaks.device, "all", why) for kind, why in peaks.absent.items() if kind == "all"]
    output.print_table(["device", "limit", "measured"], rows)
    return status


def _summarise_findings(findings: Sequence[Finding]) -> str:
    """Return the last line of the report: the numbers of failures and warnings."""
    counts = [(sum(finding.level is level for finding in findings), level) for level in (Level.FAIL, Level.WARN)]
    if not any(count for count, _ in counts):
        return "all is well"
    words = {Level.FAIL: "failure", Level.WARN: "warning"}
    return ", ".join(text.format_count(count, words[level]) for count, level in counts if count)


def _is_new(home: Path) -> bool:
    """Return whether no daemon runs, and none has ever run with this state directory."""
    return not ((home / STORE_NAME).exists() or spawn.is_serving(socket_path()))


def _examine_installation() -> list[Finding]:
    status, environments, kernels, absence = _ask_daemon()
    home = spawn.state_directory()
    findings = [
        checks.check_python(),
        checks.check_observer(),
        checks.check_socket(socket_path()),
        checks.check_home(home),
        checks.check_mount(find_user_directories().cache),
        checks.check_settings(),
        checks.check_disk(home),
        *equipment.check_compilers(),
        equipment.check_gpu(),
        checks.check_inotify(),
        checks.check_plugins(list(entry_points(group=ENTRY_POINT_GROUP))),
        checks.check_daemon(status, read_own_version(), *absence, is_new=_is_new(home)),
    ]
    if status is None:
        return [*findings, *equipment.check_backends([equipment.probe_here()])]
    findings += [
        *checks.check_notices(status),
        *checks.check_lanes(status),
        *checks.check_hosts(status),
    ]
    here = [report for report in environments if not report.host]
    findings += [*equipment.check_backends(here, status.roots), *equipment.check_kernels(kernels, here, status.roots)]
    return findings


def _ask_daemon() -> tuple[
    StatusAnswer | None, Sequence[EnvironmentInfo], Sequence[KernelEntry], tuple[()] | tuple[str, str]
]:
    """Return the daemon's status, backends and kernels, or the reason for its absence and the remedy."""
    try:
        versions.check_protocol()
        with Client() as client:
            status = call_method(client, STATUS)
            environments = call_method(client, BACKENDS, deadline_s=PROBE_DEADLINE_S).environments
            kernels = call_method(client, KERNELS).kernels
    except (DaemonUnavailable, DaemonError) as error:
        return None, (), (), (error.message, error.hint)
    return status, environments, kernels, ()
