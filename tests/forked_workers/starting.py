"""The tests' side of forked workers: one parent for each role and way of importing, which ends with the tests."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgpack

from ktuned import worker
from tests import leaks
from tests.forked_workers.parent import MAX_MESSAGE

_PARENT = Path(__file__).with_name("parent.py")
_PROGRAM = "import pathlib, sys; exec(compile(pathlib.Path(sys.argv[1]).read_text(), sys.argv[2], 'exec'))"
_SHOWN = Path(worker.__file__).with_name("__main__.py")
"""The file that the parent's frames name, which stay on a worker's stack: ktuned's own, as a worker's are."""

_PADDING = "x" * 60_000
"""Room for a worker's environment."""

_DECIDING = ("PYTHON", "XDG_CACHE_HOME", "LD_")
"""Beginnings of variables that decide how an interpreter imports: a worker and its parent have the same."""


class ForkedWorker:
    """A forked process, with what :class:`subprocess.Popen` has of one."""

    def __init__(self, parent: _Parent, pid: int, stdout: int, stderr: int) -> None:
        self._parent = parent
        self.pid = pid
        self.stdout: IO[bytes] | None = os.fdopen(stdout, "rb")
        self.stderr: IO[bytes] | None = os.fdopen(stderr, "rb")

    def wait(self) -> int:
        """Reap the process, which has ended, and return its exit code."""
        return self._parent.ask({"wait": self.pid})


class _Parent:
    """A process that forks workers of one role."""

    def __init__(self, python: str, role: str, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [python, "-P", "-c", _PROGRAM, str(_PARENT), str(_SHOWN), str(theirs.fileno()), role],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={**environment, "PADDING": _PADDING},
            )
        leaks.keep(self._process.pid, self._socket.fileno())
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def ask(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> int:
        """Send a request and return the answer, a number."""
        socket.send_fds(self._socket, [msgpack.packb(message)], descriptors)
        answer: int = msgpack.unpackb(self._socket.recv(MAX_MESSAGE))
        return answer


_parents: dict[tuple[str, str, frozenset[tuple[str, str]]], _Parent] = {}


def start_process(
    command: Sequence[str], *, cwd: str, env: Mapping[str, str], pass_fds: Sequence[int], **options: Any
) -> ForkedWorker | subprocess.Popen[bytes]:
    """Fork a worker, or start it as the daemon does where it is to have another interpreter, or no directory."""
    if command[0] != sys.executable or not os.path.isdir(cwd):
        return subprocess.Popen(command, cwd=cwd, env=env, pass_fds=pass_fds, **options)
    role = command[4]
    deciding = {name: value for name, value in env.items() if name.startswith(_DECIDING)}
    key = command[0], role, frozenset(deciding.items())
    if key not in _parents:
        _parents[key] = _Parent(command[0], role, {**os.environ, **deciding})
    stdout, their_stdout = os.pipe()
    stderr, their_stderr = os.pipe()
    message = {"command": list(command), "directory": cwd, "environment": dict(env), "numbers": list(pass_fds)}
    try:
        pid = _parents[key].ask(message, [their_stdout, their_stderr, *pass_fds])
    finally:
        os.close(their_stdout)
        os.close(their_stderr)
    return ForkedWorker(_parents[key], pid, stdout, stderr)
