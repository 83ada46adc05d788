"""Starts a daemon that outlives the command, if none runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ktuned.cli import output, text
from ktuned.cli.output import COMPLAINT, Exit
from ktuned.model import KtunedError, SettingsError
from ktuned.user_directories import NO_HOME_HINT, NoHomeDirectory, find_user_directories
from ktuned_client import paths

if TYPE_CHECKING:
    from ktuned_client import Client

START_DEADLINE_S = 15.0
"""Deadline of a new daemon's first answer; usually it takes half a second, but longer from a cold disk."""

PROBE_INTERVAL_S = 0.02
CONNECT_S = 1.0
LOG_NAME = "serve.log"
LOG_TAIL_BYTES = 8192
LOG_BYTES = 1 << 20
"""A daemon starts with an empty log once the earlier ones have filled this much. It holds what they print: little."""

MAX_WORDS = 500
"""Most characters of a daemon's last message; many, because the remedy is at its end."""


class DaemonNotStarted(KtunedError):
    """The daemon that a command started died, or did not answer in time; the message contains its last line."""

    code = "not_started"


def state_directory() -> Path:
    """Return the daemon's state directory.

    Raises:
        SettingsError: There is no home directory.
    """
    try:
        return find_user_directories().state
    except NoHomeDirectory as error:
        raise SettingsError(str(error), hint=NO_HOME_HINT) from None


def ensure_daemon() -> int | None:
    """Start a daemon if none answers; return its pid then, else ``None``.

    Raises:
        DaemonNotStarted: it could not be started.
    """
    socket_path = paths.socket_path()
    return None if is_serving(socket_path) else start_daemon(socket_path, state_directory()) or None


def open_client() -> Client:
    """Return a client of the daemon. If none runs, start one and say so.

    Raises:
        DaemonNotStarted: it could not be started.
    """
    # Imported here, because a starting daemon needs no client.
    from ktuned_client import Client

    announce_daemon(ensure_daemon())
    return Client()


def announce_daemon(pid: int | None) -> None:
    """Print that a daemon was started, if one was."""
    if pid is not None:
        output.print_message(f"started a daemon (pid {pid}); `ktuned stop` ends it")


def is_serving(socket_path: str) -> bool:
    """Return whether a daemon of this user listens at ``socket_path``."""
    return paths.find_server(socket_path, CONNECT_S) is not None


def start_daemon(
    socket_path: str,
    state_directory: Path,
    deadline_s: float = START_DEADLINE_S,
    arguments: Sequence[str] = ("--auto-started",),
) -> int:
    """Start a daemon in a new session, wait until it answers, and return its pid.

    Its output goes to ``serve.log`` in the state directory. Commands that start a daemon at the same time share one:
    the daemon's lock decides (:mod:`ktuned.serve.lock`), and each command ends its own process if another one serves.
    Then the pid is 0.

    Raises:
        DaemonNotStarted: the daemon ended, or did not answer before the deadline.
        SettingsError: its settings are wrong.
    """
    log_path = state_directory / LOG_NAME
    try:
        state_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(log_path, "ab", opener=_open_private) as log:
            if log.tell() > LOG_BYTES:
                log.truncate(0)
                log.seek(0)
            offset = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "ktuned", "start", "--foreground", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_daemon_environment(socket_path),
                start_new_session=True,
            )
    except OSError as error:
        raise DaemonNotStarted(
            f"no daemon could be started: {error}", hint="set KTUNED_HOME to a directory that can be written"
        ) from error
    deadline = time.monotonic() + deadline_s
    while (server := paths.find_server(socket_path, CONNECT_S)) is None and time.monotonic() < deadline:
        try:
            process.wait(PROBE_INTERVAL_S)
        except subprocess.TimeoutExpired:
            continue
        # It may have ended because another daemon serves by now.
        server = paths.find_server(socket_path, CONNECT_S)
        break
    ended = process.poll() is not None
    if server is not None:
        if server != process.pid:
            # A process that still waits for the lock would become the daemon when somebody stops the one that serves.
            process.kill()
            process.wait()
            return 0
        # The daemon outlives this process on purpose, so dropping the handle must not warn.
        process.returncode = 0
        return server
    if not ended:
        process.kill()
        process.wait()
    words = text.first_line(_read_log_since(log_path, offset), limit=MAX_WORDS) or "its log is empty"
    if process.returncode == Exit.USAGE:
        raise SettingsError(words.removeprefix(COMPLAINT))
    what = f"ended with status {process.returncode}" if ended else f"did not answer within {deadline_s:g} s"
    raise DaemonNotStarted(f"the daemon {what}: {words}", hint=f"its log is {log_path}")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _daemon_environment(socket_path: str) -> dict[str, str]:
    """Return our environment with absolute paths, because the daemon has another working directory."""
    environment = {**os.environ, "KTUNED_SOCKET": socket_path}
    if environment.get("KTUNED_HOME"):
        environment["KTUNED_HOME"] = str(state_directory())
    return environment


def _read_log_since(log_path: Path, offset: int) -> str:
    """Return the last error that was logged from ``offset`` on, or the last line with text if there is no error.

    Another daemon with the same home, but another socket, may write to the same log.
    """
    with log_path.open("rb") as log:
        end = log.seek(0, os.SEEK_END)
        log.seek(max(offset, end - LOG_TAIL_BYTES))
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    complaints = [line.removeprefix(COMPLAINT) for line in lines if line.startswith(COMPLAINT)]
    return ([*lines, *complaints] or [""])[-1]
