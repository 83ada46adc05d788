"""``ktuned run``: an unmodified program whose autotuned functions the daemon tunes, and a summary at its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ktuned.cli import output, run_hook, spawn
from ktuned.model import UsageError

HOOK = Path(run_hook.__file__).parent


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--wait", "waits", is_flag=True, help="Have the first call of each tuning key wait for its winner.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(waits: bool, command: tuple[str, ...]) -> int:
    """Run a program; the daemon tunes its autotuned kernels.

    Those are its `@triton.autotune` and `@tilelang.autotune` functions.

    COMMAND is run as it is: `python app.py`, `python -m package`, `torchrun …`, a script. The interpreters that it
    starts need ktuned-triton or ktuned-tilelang. Starts a daemon if none runs. Exits with the program's status.
    """
    if shutil.which(command[0]) is None:
        raise UsageError(f"there is no program {command[0]!r}", hint="give a command, as in `ktuned run python app.py`")
    started = spawn.ensure()
    if started is not None:
        output.say(f"started a daemon (pid {started}); `ktuned stop` ends it")
    with tempfile.TemporaryDirectory(prefix="ktuned-run-") as summary:
        status = _run(command, {**os.environ, **hooked("wait" if waits else "background", summary, os.environ)})
        for line in summarise(list(_reports(Path(summary)))):
            output.say(line)
    return status


def summarise(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a summary: functions taken over, functions left alone and why, keys tuned and queued."""
    taken = sorted({name for report in reports for name in report["taken_over"]})
    left = {name: reason for report in reports for name, reason in report["left_alone"].items()}
    keys: dict[str, str] = {}
    for report in reports:
        # A key that one process saw tuned is tuned, whatever another saw before.
        keys |= {key: state for key, state in report["keys"].items() if keys.get(key) != "tuned"}
    if not taken and not left:
        return ["no autotuned function was called, or the program's interpreter has no plugin with a drop-in"]
    lines = [f"taken over: {', '.join(taken)}"] if taken else []
    lines += [f"left alone: {name}: {reason}" for name, reason in sorted(left.items())]
    if keys:
        tuned = sum(state == "tuned" for state in keys.values())
        lines.append(f"{tuned} of {len(keys)} tuning keys are tuned, {len(keys) - tuned} are queued")
        lines += [f"queued: {key}" for key, state in sorted(keys.items()) if state != "tuned"]
    return lines


def hooked(mode: str, summary: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which every interpreter that a program starts in an environment gets the drop-ins."""
    paths = [str(HOOK), environment.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "KTUNED_RUN_MODE": mode,
        "KTUNED_RUN_SUMMARY": summary,
    }


def _run(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Run the program and return its status; an interrupt is the program's, which the terminal sends to it, too."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with subprocess.Popen(command, env=environment) as program:
            status = program.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


def _reports(directory: Path) -> Iterator[Mapping[str, Any]]:
    for path in sorted(directory.glob("*.json")):
        try:
            yield json.loads(path.read_text())
        except ValueError:
            sys.stderr.write(f"ktuned: {path.name} is incomplete: its process was killed\n")
