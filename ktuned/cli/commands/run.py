"""``ktuned run``: an unmodified program whose autotuned functions the daemon tunes, and a summary at its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

from ktuned.cli import output, run_hook, spawn, text
from ktuned.dropin import ANSWERED, FIXED, RECORDED, TUNED, Account, WinnersFile
from ktuned.model import NUMERICS, TOLERANCE, UsageError
from ktuned.protocol import BACKENDS, call_method
from ktuned_client import Client, DaemonError, DaemonUnavailable
from ktuned_client.winners import WinnersError

HOOK = Path(run_hook.__file__).parent

_TERMINALS = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal's keys send."""

_FORWARDED = (*_TERMINALS, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--wait", "waits", is_flag=True, help="Make the first call of each tuning key wait for its winner.")
@click.option(
    "--numerics",
    type=click.Choice(NUMERICS),
    default=TOLERANCE,
    help="exact: launch only configs with equal output bits.",
)
@click.option(
    "--winners",
    metavar="PATH",
    help="Launch the winners in files that `ktuned export` wrote: no daemon, no tuning.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(waits: bool, numerics: str, winners: str | None, command: tuple[str, ...]) -> int:
    """Run a program; the daemon tunes its autotuned kernels.

    ktuned takes over the functions of all libraries whose tuner derives from Triton's or TileLang's autotuner, and with
    ktuned-inductor the max-autotune of torch.compile.

    COMMAND is run unchanged: `python app.py`, `python -m package`, `torchrun …`, a script. The interpreters that
    COMMAND starts need ktuned-triton or ktuned-tilelang. A daemon is started if none runs. Exits with the program's
    status.

    With --winners each tuning key launches its config from the files, in every process and on every start. A key that
    the files lack launches its first config. The summary lists these keys.
    """
    if waits and winners is not None:
        raise click.UsageError("--wait does not go with --winners: nothing is tuned")
    if shutil.which(command[0]) is None:
        raise UsageError(f"there is no program {command[0]!r}", hint="give a command, as in `ktuned run python app.py`")
    fixed = None if winners is None else _read_winners(winners)
    if fixed is None:
        spawn.announce_daemon(spawn.ensure_daemon())
    with tempfile.TemporaryDirectory(prefix="ktuned-run-") as summary:
        hook = hook_environment("wait" if waits else "background", numerics, summary, os.environ)
        if fixed is not None:
            # All processes read this copy, so that a file that is replaced during the run changes nothing.
            hook["KTUNED_RUN_WINNERS"] = str(Path(summary) / "winners.json")
            fixed.write_snapshot(hook["KTUNED_RUN_WINNERS"])
        status = run_program(command, {**os.environ, **hook})
        account = Account.from_directory(Path(summary))
        lines = summarise_account(account, has_device=_has_gpu()) if fixed is None else summarise_fixed(account, fixed)
        for line in lines:
            output.print_message(line)
    return status


def _read_winners(path: str) -> WinnersFile:
    """Read the files of ``--winners``.

    Raises:
        UsageError: one cannot be read, or is no file of winners.
    """
    try:
        return WinnersFile.read(path)
    except WinnersError as error:
        raise UsageError(str(error), hint="`ktuned export` writes files of winners") from error


def summarise_account(account: Account, *, has_device: bool = True) -> list[str]:
    """Return the lines of a summary: what was adopted, tuned before, recorded now and left alone, and what to do next.

    Args:
        account: the merged account of the program's processes.
        has_device: whether the daemon has found a GPU that it can measure on.
    """
    states = list(account.keys.values())
    tuned, recorded = states.count(TUNED), states.count(RECORDED)
    answered = f", {states.count(ANSWERED)} {ANSWERED}" if ANSWERED in states else ""
    lines = _list_functions_and_keys(account, f"{tuned} tuned, {recorded} recorded now{answered}")
    if not has_device and (recorded or set(states) - {TUNED, ANSWERED} or account.left_alone):
        lines.append("no GPU is found here, so nothing is measured: the recorded calls wait until a daemon finds one")
    elif recorded:
        lines.append("next: `ktuned watch` shows the tuning; run the program again when it is over to have the winners")
    return lines


def summarise_fixed(account: Account, winners: WinnersFile) -> list[str]:
    """Return the lines of a summary of a run with ``--winners``: each key that lacks a winner, or has one of other
    source, and the files of which nothing was launched.
    """
    fixed = list(account.keys.values()).count(FIXED)
    lines = _list_functions_and_keys(account, f"{fixed} as in {winners.path}")
    unused = [path for path, _ in winners.documents if path not in account.winners_files]
    if unused:
        more = f", … ({len(unused)})" if len(unused) > MAX_NAMED else ""
        lines.append(f"no call launched a winner of {', '.join(unused[:MAX_NAMED])}{more}")
    return lines


def _list_functions_and_keys(account: Account, states: str) -> list[str]:
    """Return the lines that every summary has; ``states`` says how many keys have which state."""
    lines = list(account.notes)
    if account.adopted:
        count = text.format_count(len(account.adopted), "function")
        lines.append(f"adopted {count}: {', '.join(_group_by_library(account.adopted))}")
    if account.keys:
        lines.append(f"{text.format_count(len(account.keys), 'tuning key')}: {states}")
    if account.given_up:
        late, total = map(sum, zip(*account.given_up.values(), strict=True))
        lines.append(f"{total - late} of {total} configs; {late} {'is' if late == 1 else 'are'} compiled later")
    usual = TUNED, RECORDED, FIXED, ANSWERED
    lines += [f"{key}: {state}" for key, state in sorted(account.keys.items()) if state not in usual]
    lines += [f"left alone: {name}: {reason}" for name, reason in sorted(account.left_alone.items())]
    if not account.drop_ins:
        lines.append(NO_DROP_IN)
    elif not account.adopted and not account.left_alone and not account.notes:
        lines.append("no autotuned function was called")
    return lines


NO_DROP_IN = (
    "no interpreter of the program has ktuned-triton or ktuned-tilelang: install one into the program's environment, "
    "as `pip install 'ktuned[triton]'` does there"
)
"""The summary if no interpreter of the program has a drop-in."""

MAX_NAMED = 3
"""Most functions of a library that a summary names; `ktuned kernels` lists all."""


def _group_by_library(functions: Iterable[str]) -> Iterator[str]:
    """Yield a short line with the functions of each library."""
    libraries: dict[str, list[str]] = {}
    for name in sorted(functions):
        library, _, rest = name.partition(".")
        libraries.setdefault(library, []).append(rest.rpartition(".")[2])
    for library, names in libraries.items():
        more = f", … ({len(names)})" if len(names) > MAX_NAMED else ""
        yield f"{library}: {', '.join(names[:MAX_NAMED])}{more}"


def _has_gpu() -> bool:
    """Return whether the daemon has found a GPU; true if that is not known."""
    try:
        with Client() as client:
            reports = call_method(client, BACKENDS, deadline_s=_LOOK_S).environments
    except (DaemonError, DaemonUnavailable):
        return True
    return any(
        device.kind == "cuda"
        for report in reports
        for backend in report.backends.values()
        for device in backend.devices
    )


_LOOK_S = 10.0
"""Deadline for asking the daemon which devices it has; after it, the summary assumes a GPU."""


def hook_environment(mode: str, numerics: str, summary: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that give the drop-ins to every interpreter that a program starts."""
    paths = [str(HOOK), environment.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "KTUNED_RUN_MODE": mode,
        "KTUNED_RUN_NUMERICS": numerics,
        "KTUNED_RUN_SUMMARY": summary,
    }


def run_program(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Run the program, forward signals to it, and return its status.

    Raises:
        UsageError: the program cannot be started.
    """
    program: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: object) -> None:
        # A terminal sends the signals of its keys to the program itself, too.
        if program is not None and not (number in _TERMINALS and _is_in_foreground()):
            program.send_signal(number)

    # A signal that is ignored here (under nohup) is ignored by the program, too, so it is not forwarded.
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
    """Return whether the terminal's keys send their signals to this process group."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
