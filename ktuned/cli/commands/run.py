"""``ktuned run``: an unmodified program whose autotuned functions the daemon tunes, and a summary at its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ktuned.cli import output, run_hook, spawn
from ktuned.model import UsageError

if TYPE_CHECKING:
    from ktuned.dropin import Account

HOOK = Path(run_hook.__file__).parent

_TERMINALS = (signal.SIGINT, signal.SIGQUIT)
"""Signals of a terminal's keys."""

_FORWARDED = (*_TERMINALS, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--wait", "waits", is_flag=True, help="Have the first call of each tuning key wait for its winner.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(waits: bool, command: tuple[str, ...]) -> int:
    """Run a program; the daemon tunes its autotuned kernels.

    Those are its `@triton.autotune` and `@tilelang.autotune` functions.

    COMMAND is run as it is: `python app.py`, `python -m package`, `torchrun …`, a script. The interpreters that it
    starts need ktuned-triton or ktuned-tilelang. Starts a daemon if none runs. Exits with the program's status.
    """
    # Not at the top: `--help` imports every command, and tunes nothing.
    from ktuned.dropin import Account

    if shutil.which(command[0]) is None:
        raise UsageError(f"there is no program {command[0]!r}", hint="give a command, as in `ktuned run python app.py`")
    started = spawn.ensure()
    if started is not None:
        output.say(f"started a daemon (pid {started}); `ktuned stop` ends it")
    with tempfile.TemporaryDirectory(prefix="ktuned-run-") as summary:
        status = run_program(command, {**os.environ, **hooked("wait" if waits else "background", summary, os.environ)})
        for line in summarise(Account.read(Path(summary))):
            output.say(line)
    return status


def summarise(account: Account) -> list[str]:
    """Return the lines of a summary: functions taken over, functions left alone and why, keys tuned and queued."""
    from ktuned.dropin import QUEUED, TUNED

    if not account.taken_over and not account.left_alone:
        return ["no autotuned function was called, or the program's interpreter has no plugin with a drop-in"]
    lines = [f"taken over: {', '.join(sorted(account.taken_over))}"] if account.taken_over else []
    lines += [f"left alone: {name}: {reason}" for name, reason in sorted(account.left_alone.items())]
    if keys := account.keys:
        states = list(keys.values())
        tuned, queued = states.count(TUNED), states.count(QUEUED)
        failed = f", {len(keys) - tuned - queued} are not" if tuned + queued < len(keys) else ""
        lines.append(f"{tuned} of {len(keys)} tuning keys are tuned, {queued} are queued{failed}")
        lines += [
            f"{key}: {state}" if state != QUEUED else f"queued: {key}"
            for key, state in sorted(keys.items())
            if state != TUNED
        ]
    return lines


def hooked(mode: str, summary: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which every interpreter that a program starts in an environment gets the drop-ins."""
    paths = [str(HOOK), environment.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "KTUNED_RUN_MODE": mode,
        "KTUNED_RUN_SUMMARY": summary,
    }


def run_program(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Run the program and return its status; signals are the program's.

    Raises:
        UsageError: it cannot be started.
    """
    program: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: object) -> None:
        # A terminal sends its own to the program, too.
        if program is not None and not (number in _TERMINALS and _is_in_foreground()):
            program.send_signal(number)

    # One that is ignored, as under nohup, is ignored by the program, too.
    forwarded = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in forwarded}
    try:
        with subprocess.Popen(command, env=environment) as program:
            status = program.wait()
    except OSError as error:
        raise UsageError(
            f"{command[0]} cannot be started: {error.strerror}", hint="a script begins with #! and its interpreter"
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _is_in_foreground() -> bool:
    """Return whether this process group is the one that its terminal's keys reach."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
