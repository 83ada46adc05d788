"""The service manager's protocol: sockets that it hands over, and the daemon's reports to it.

The formats are documented in sd_listen_fds(3), sd_notify(3) and sd_watchdog_enabled(3). No other part of systemd is
needed, and without a service manager this module does nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from types import TracebackType
from typing import Self

from ktuned.model import FrozenStruct, SettingsError

FIRST_DESCRIPTOR = 3
"""The first descriptor that is handed over, after stdin, stdout and stderr (SD_LISTEN_FDS_START)."""

SOCKET_NAMES = frozenset({"ktuned", "ktuned.socket"})
"""Names by which our socket is found among several: that of ``FileDescriptorName=``, or by default the unit's."""

_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Handover(FrozenStruct):
    """What the service manager hands over to this process.

    Attributes:
        descriptor: A listening socket, if there is one.
        notify_path: The manager's socket for reports; empty if there is none.
        watchdog_s: How often the manager expects a sign of life, in seconds; 0 is never.
    """

    descriptor: int | None = None
    notify_path: str = ""
    watchdog_s: float = 0.0

    @classmethod
    def take_from_environ(cls, environ: MutableMapping[str, str], pid: int) -> Self:
        """Read the manager's variables for the process ``pid``, and remove them, so that children do not use them.

        Raises:
            SettingsError: a value or a descriptor that was handed over cannot be used; names the variable.
        """
        given = {name: environ.pop(name, "") for name in _VARIABLES}
        return cls(
            _find_listening_socket(given["LISTEN_PID"], given["LISTEN_FDS"], given["LISTEN_FDNAMES"], pid),
            given["NOTIFY_SOCKET"],
            _parse_watchdog_s(given["WATCHDOG_PID"], given["WATCHDOG_USEC"], pid),
        )


class Notifier:
    """Reports the daemon's state to the service manager; without a manager, nothing is sent.

    A report that cannot be sent at once is dropped, so that a manager that is gone or does not read never blocks the
    daemon.

    Args:
        path: The manager's socket for reports; empty if there is none.
        watchdog_s: How often the manager expects a sign of life, in seconds; 0 is never.
    """

    def __init__(self, path: str = "", watchdog_s: float = 0.0) -> None:
        self.watchdog_s = watchdog_s if path else 0.0
        # "@" stands for the zero byte that begins an abstract address.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._socket: socket.socket | None = None
        if path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def has_service_manager(self) -> bool:
        """``True`` if a service manager listens."""
        return self._socket is not None

    def report_ready(self, status: str) -> None:
        """Report that the daemon is ready."""
        self._send_lines("READY=1", f"STATUS={_join_lines(status)}")

    def report_stopping(self) -> None:
        """Report that the daemon is ending."""
        self._send_lines("STOPPING=1", "STATUS=stopping")

    def report_alive(self) -> None:
        """Report that the event loop still runs."""
        self._send_lines("WATCHDOG=1")

    def report_status(self, status: str) -> None:
        """Report the daemon's activity in one line."""
        self._send_lines(f"STATUS={_join_lines(status)}")

    def _send_lines(self, *lines: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)
        except OSError:
            return


def _find_listening_socket(pid_word: str, count_word: str, names_word: str, pid: int) -> int | None:
    """Return the descriptor of the one listening Unix stream socket that was handed to ``pid``, if any was."""
    if not count_word or pid_word != str(pid):
        return None
    if not (count_word.isascii() and count_word.isdigit()) or not 1 <= int(count_word) <= 1024:
        raise SettingsError(f"LISTEN_FDS is {count_word!r}", hint="start the daemon by its socket unit, or by hand")
    descriptors = range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count_word))
    for descriptor in descriptors:
        try:
            os.set_inheritable(descriptor, False)
        except OSError as error:
            raise SettingsError(
                f"descriptor {descriptor}, which LISTEN_FDS promises, is not there: {error.strerror}",
                hint="start the daemon by its socket unit, or by hand",
            ) from error
    names = names_word.split(":")
    named = [descriptor for descriptor, name in zip(descriptors, names, strict=False) if name in SOCKET_NAMES]
    chosen = list(descriptors) if len(descriptors) == 1 else named
    if len(chosen) != 1:
        raise SettingsError(
            f"{len(descriptors)} sockets were handed over, {len(named)} of them named ktuned",
            hint="hand over one, or name it with FileDescriptorName=ktuned",
        )
    (descriptor,) = chosen
    if not _is_listening(descriptor):
        raise SettingsError(
            f"descriptor {descriptor} is not a listening Unix stream socket",
            hint="ktuned.socket needs ListenStream=PATH",
        )
    return descriptor


def _is_listening(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as handed:
            return (
                handed.family == socket.AF_UNIX
                and handed.type == socket.SOCK_STREAM
                and bool(handed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            )
    except OSError:
        return False


def _parse_watchdog_s(pid_word: str, period_word: str, pid: int) -> float:
    """Return how often the manager expects a sign of life, in seconds; 0 is never."""
    if not period_word or pid_word not in ("", str(pid)):
        return 0.0
    if not (period_word.isascii() and period_word.isdigit()) or int(period_word) == 0:
        raise SettingsError(f"WATCHDOG_USEC is {period_word!r}", hint="WatchdogSec= takes a time span above 0")
    return int(period_word) / 1e6


def _join_lines(status: str) -> str:
    return " ".join(status.split())
