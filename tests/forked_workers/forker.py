"""The asking side of a parent of workers: what a daemon's process needs to have its workers forked."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import IO, Any

import msgpack

from tests.forked_workers.parent import MAX_MESSAGE

_DECIDING = ("PYTHON", "XDG_CACHE_HOME", "LD_")
"""Beginnings of variables that decide how an interpreter imports: a worker and its parent have the same."""


def deciding(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a worker and its parent must have in common."""
    return {name: value for name, value in environment.items() if name.startswith(_DECIDING)}


class ForkedWorker:
    """A forked process, with what :class:`subprocess.Popen` has of one."""

    def __init__(self, forker: Forker, pid: int, stdout: int, stderr: int) -> None:
        self._forker = forker
        self.pid = pid
        self.stdout: IO[bytes] | None = os.fdopen(stdout, "rb")
        self.stderr: IO[bytes] | None = os.fdopen(stderr, "rb")

    def wait(self) -> int:
        """Reap the process, which has ended, and return its exit code."""
        return self._forker.ask({"wait": self.pid})


class Forker:
    """One connection to a parent: its workers end with it, as a daemon's end with the daemon."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def ask(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> int:
        """Send a request and return the answer, a number."""
        socket.send_fds(self.connection, [msgpack.packb(message)], descriptors)
        answer: int = msgpack.unpackb(self.connection.recv(MAX_MESSAGE))
        return answer

    def fork(self, command: Sequence[str], cwd: str, env: Mapping[str, str], pass_fds: Sequence[int]) -> ForkedWorker:
        """Have a worker forked, which has this command, directory, environment and descriptors."""
        stdout, their_stdout = os.pipe()
        stderr, their_stderr = os.pipe()
        message = {"command": list(command), "directory": cwd, "environment": dict(env), "numbers": list(pass_fds)}
        try:
            pid = self.ask(message, [their_stdout, their_stderr, *pass_fds])
        finally:
            os.close(their_stdout)
            os.close(their_stderr)
        return ForkedWorker(self, pid, stdout, stderr)
