"""The side of a parent's connection that asks for forked processes: a test's process or a daemon."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

import msgpack

from tests.forked_processes.parent import MAX_MESSAGE

LENT_PARENTS_VARIABLE = "TEST_LENT_PARENTS"
"""A forked daemon's variable with its descriptors by role, and with the variables that affect imports."""

_IMPORT_PREFIXES = ("PYTHON", "XDG_CACHE_HOME", "LD_", "FAKE_TENSORS")
"""Prefixes of variables that affect imports: a process and its parent must have equal values."""


def select_import_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a forked process and its parent must have in common."""
    return {name: value for name, value in environment.items() if name.startswith(_IMPORT_PREFIXES)}


class Forker:
    """A connection to a parent. The processes forked over it end with it, as workers end with their daemon.

    Args:
    connection: answers one request at a time.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send_request(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> int:
        """Send a request and return the answer, a number."""
        socket.send_fds(self.connection, [msgpack.packb(message)], descriptors)
        answer: int = msgpack.unpackb(self.connection.recv(MAX_MESSAGE))
        return answer

    def fork_process(
        self,
        command: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        output: tuple[int, int],
    ) -> int:
        """Have a process forked with this command, directory, environment, descriptors and output; return its id."""
        message = {"command": list(command), "directory": cwd, "environment": dict(env), "numbers": list(pass_fds)}
        return self.send_request(message, [*output, *pass_fds])


class ForkedWorker:
    """A forked worker with the attributes of :class:`subprocess.Popen` that a daemon uses."""

    def __init__(self, forker: Forker, command: Sequence[str], cwd: str, env: Mapping[str, str], fds: Sequence[int]):
        self._forker = forker
        stdout, their_stdout = os.pipe()
        stderr, their_stderr = os.pipe()
        try:
            self.pid = forker.fork_process(command, cwd, env, fds, (their_stdout, their_stderr))
        finally:
            os.close(their_stdout)
            os.close(their_stderr)
        self.stdout: IO[bytes] | None = os.fdopen(stdout, "rb")
        self.stderr: IO[bytes] | None = os.fdopen(stderr, "rb")

    def wait(self) -> int:
        """Reap the ended process and return its exit code.
        If the parent is gone, the test run was killed. This daemon exits then: it would call this method for ever.
        """
        try:
            return self._forker.send_request({"wait": self.pid})
        except (OSError, ValueError):
            os._exit(1)


class ForkedDaemon:
    """A forked daemon with the attributes of :class:`subprocess.Popen` that tests use."""

    def __init__(self, forker: Forker, pid: int) -> None:
        self._forker = forker
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code if the process has ended."""
        if self.returncode is None and self._has_ended_after(0):
            self.returncode = self._forker.send_request({"wait": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process's end and return its exit code."""
        if self.returncode is None and not self._has_ended_after(timeout):
            raise subprocess.TimeoutExpired("daemon", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _has_ended_after(self, timeout: float | None) -> bool:
        descriptor = os.pidfd_open(self.pid)
        try:
            return bool(select.select([descriptor], [], [], timeout)[0])
        finally:
            os.close(descriptor)
