"""``ktuned start`` and ``ktuned stop``."""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click
import msgspec
from click.core import ParameterSource

from ktuned.cli import output, spawn
from ktuned.cli.options import json_option
from ktuned.cli.output import Exit
from ktuned.protocol import HELLO, SHUTDOWN, call_method
from ktuned_client import DaemonError, paths

if TYPE_CHECKING:
    from ktuned_client import Client

STOP_DEADLINE_S = 10.0
"""Deadline for a daemon's end, in which it kills its workers and completes its last commit."""

OPEN_FILES = 4096
"""Limit of open files that is enough for a daemon's connections, workers and files. It is no higher because workers
inherit it."""

UNUSED = ("better_exceptions", "colorama", "greenlet", "rich", "twisted")
"""Libraries that structlog imports if they are installed, but that the daemon does not use. They would cost 2 MiB and a
sixth of the start."""


@click.command()
@click.option("--foreground", is_flag=True, help="Run the daemon here until it is stopped, for service managers.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The lowest level to log.",
)
@click.option("--auto-started", is_flag=True, hidden=True, help="Started by a command: exit when idle by default.")
@click.option("--json", "as_json", is_flag=True, help="Log as JSON, one event a line, on stderr.")
def start(
    foreground: bool,
    log_level: str,
    auto_started: bool,
    as_json: bool,
) -> int:
    """Start the daemon.

    The daemon runs in the background and logs to serve.log in the state directory. With --foreground it runs in this
    terminal. Under systemd it takes the socket of the socket unit, reports that it is ready and alive, and logs JSON to
    the journal.
    """
    if not foreground:
        return _start_in_background()
    with skip_unused_imports():
        from ktuned.daemon import load_settings, logs, run
        from ktuned.model import StoreDamaged

    _raise_open_files_limit()
    logs.configure_logging(log_level, logs.choose_format(os.environ, sys.stderr.fileno(), as_json=as_json))
    settings = load_settings()
    is_handed_over = "LISTEN_FDS" in os.environ
    try:
        return run(settings, starts_by_itself=auto_started)
    except StoreDamaged as error:
        if is_handed_over:
            # The handed-over socket would be lost with a second attempt; systemd, which owns it, starts a new daemon.
            raise
        output.print_error(error.message, "the daemon starts again, and moves the store aside")
        return run(settings, starts_by_itself=auto_started)


def _start_in_background() -> int:
    """Start this command with ``--foreground`` in a new session, unless a daemon answers already."""
    listen_at = paths.socket_path()
    if spawn.is_serving(listen_at):
        output.print_message(f"a daemon listens at {listen_at} already; `ktuned stop` ends it")
        return Exit.DONE
    context = click.get_current_context()
    words = []
    for param in context.command.params:
        value = context.params.get(param.name or "")
        if param.name == "foreground" or context.get_parameter_source(param.name or "") is ParameterSource.DEFAULT:
            continue
        words += [param.opts[0]] if value is True else [param.opts[0], str(value)]
    spawn.announce_daemon(spawn.start_daemon(listen_at, spawn.state_directory(), arguments=words) or None)
    return Exit.DONE


def _raise_open_files_limit() -> None:
    """Raise the limit of open files, whose default is low: a connection takes one file, a worker six."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def skip_unused_imports() -> Iterator[None]:
    """Import the daemon's parts without :data:`UNUSED`, and without garbage collection: imports make no garbage."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    # None makes an import fail at once (importlib, "The module cache").
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        for name in hidden:
            del sys.modules[name]


@click.command()
@json_option
def stop(as_json: bool) -> int:
    """Stop the daemon.

    Waits until its process has ended. Interrupted jobs continue at the next start.
    """
    from ktuned_client import Client

    with Client() as client:
        pid = _find_daemon_pid(client)
        # Opened before the request, because afterwards the pid may belong to another process.
        process = os.pidfd_open(pid)
        try:
            try:
                call_method(client, SHUTDOWN)
            except DaemonError:
                # A daemon of another protocol that lacks this method still handles the signal.
                signal.pidfd_send_signal(process, signal.SIGTERM)
            ended, _, _ = select.select([process], [], [], STOP_DEADLINE_S)
        finally:
            os.close(process)
    if not ended:
        output.print_error(f"the daemon (pid {pid}) has not ended after {STOP_DEADLINE_S:g} s", f"kill -9 {pid}")
        return Exit.NOT_REACHED
    output.emit_answer({"pid": pid}, as_json, f"stopped (pid {pid})")
    return Exit.DONE


def _find_daemon_pid(client: Client) -> int:
    """Return the pid in the daemon's ``hello``, or else the pid of the socket's peer."""
    with suppress(DaemonError, msgspec.ValidationError):
        if (pid := call_method(client, HELLO).pid) is not None:
            return pid
    with paths.connect(client.socket, STOP_DEADLINE_S) as connection:
        return paths.check_peer(connection)
