"""The asking side of a parent of forked processes: what a test's process, or a daemon's, needs to have one forked."""

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

LENT = "TEST_LENT_PARENTS"
"""The variable of a forked daemon that has the descriptors by role, and the environment that decides about imports."""

_DECIDING = ("PYTHON", "XDG_CACHE_HOME", "LD_", "FAKE_TENSORS")
"""Beginnings of variables that decide what an interpreter imports: a process and its parent have the same."""


def deciding(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a forked process and its parent must have in common."""
    return {name: value for name, value in environment.items() if name.startswith(_DECIDING)}


class Forker:
    """One connection to a parent: the processes forked over it end with it, as a daemon's workers end with the daemon.

    Args:
        connection: the connection, over which one request is answered at a time.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def ask(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> int:
        """Send a request and return the answer, a number."""
        socket.send_fds(self.connection, [msgpack.packb(message)], descriptors)
        answer: int = msgpack.unpackb(self.connection.recv(MAX_MESSAGE))
        return answer

    def fork(
        self,
        command: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        output: tuple[int, int],
    ) -> int:
        """Have a process forked with this command, directory, environment, descriptors and output; return its id."""
        message = {"command": list(command), "directory": cwd, "environment": dict(env), "numbers": list(pass_fds)}
        return self.ask(message, [*output, *pass_fds])


class ForkedWorker:
    """A forked worker, with what :class:`subprocess.Popen` has of one."""

    def __init__(self, forker: Forker, command: Sequence[str], cwd: str, env: Mapping[str, str], fds: Sequence[int]):
        self._forker = forker
        stdout, their_stdout = os.pipe()
        stderr, their_stderr = os.pipe()
        try:
            self.pid = forker.fork(command, cwd, env, fds, (their_stdout, their_stderr))
        finally:
            os.close(their_stdout)
            os.close(their_stderr)
        self.stdout: IO[bytes] | None = os.fdopen(stdout, "rb")
        self.stderr: IO[bytes] | None = os.fdopen(stderr, "rb")

    def wait(self) -> int:
        """Reap the process, which has ended, and return its exit code.

        Without the parent, the test run was killed. This daemon then ends, too: it would call this method for ever.
        """
        try:
            return self._forker.ask({"wait": self.pid})
        except (OSError, ValueError):
            os._exit(1)


class ForkedDaemon:
    """A forked daemon, with what tests use of :class:`subprocess.Popen`."""

    def __init__(self, forker: Forker, pid: int) -> None:
        self._forker = forker
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code if the process has ended."""
        if self.returncode is None and self._has_ended_after(0):
            self.returncode = self._forker.ask({"wait": self.pid})
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
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _has_ended_after(self, timeout: float | None) -> bool:
        descriptor = os.pidfd_open(self.pid)
        try:
            return bool(select.select([descriptor], [], [], timeout)[0])
        finally:
            os.close(descriptor)
