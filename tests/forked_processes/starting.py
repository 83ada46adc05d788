"""The tests' side of forked processes: one parent for each role and way of importing, which ends with the tests."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ktuned import observer, worker
from ktuned.backends.variables import OBSERVER_NAME
from ktuned.model import Role
from tests import leaks
from tests.forked_processes.forker import LENT, ForkedDaemon, ForkedWorker, Forker, deciding
from tests.forked_processes.parent import DAEMON, PARENT_LOG, VARIABLE

_PARENT = Path(__file__).with_name("parent.py")
_PROGRAM = "import pathlib, sys; exec(compile(pathlib.Path(sys.argv[1]).read_text(), sys.argv[2], 'exec'))"
_SHOWN = Path(worker.__file__).with_name("__main__.py")
"""The file that the parent's frames name, which stay on a worker's stack: ktuned's own, as a worker's are."""

_PADDING = "x" * 60_000
"""Room for a worker's environment."""


class _Parent:
    """A process that forks workers of one role."""

    def __init__(self, python: str, role: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.forker = Forker(ours)
        with theirs:
            self._process = subprocess.Popen(
                [python, "-P", "-c", _PROGRAM, str(_PARENT), str(_SHOWN), str(theirs.fileno()), role],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={**environment, **_log_of_parent(environment), "PADDING": _PADDING},
            )
        leaks.exempt_process(self._process.pid, ours.fileno())
        atexit.register(self._end)

    def _end(self) -> None:
        self.forker.connection.close()
        self._process.wait()

    def connect(self) -> socket.socket:
        """Return another connection, for another process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.forker.ask({"connect": True}, [theirs.fileno()])
        return ours


_parents: dict[tuple[str, str, frozenset[tuple[str, str]]], _Parent] = {}


def _log_of_parent(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable of a log, for an observer that writes to its workers' logs once they are forked."""
    if OBSERVER_NAME not in environment.get("LD_PRELOAD", ""):
        return {}
    directory = tempfile.mkdtemp(prefix="parent-of-workers-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    observer.Log.create(Path(directory, PARENT_LOG))
    return {VARIABLE: str(Path(directory, PARENT_LOG))}


def _parent(role: str, variables: Mapping[str, str]) -> _Parent:
    key = sys.executable, role, frozenset(variables.items())
    if key not in _parents:
        _parents[key] = _Parent(sys.executable, role, {**os.environ, **variables})
    return _parents[key]


def start_process(
    command: Sequence[str], *, cwd: str, env: Mapping[str, str], pass_fds: Sequence[int], **options: Any
) -> ForkedWorker | subprocess.Popen[bytes]:
    """Fork a worker, or start it as the daemon does where it is to have another interpreter, or no directory."""
    if command[0] != sys.executable or not os.path.isdir(cwd):
        return subprocess.Popen(command, cwd=cwd, env=env, pass_fds=pass_fds, **options)
    return ForkedWorker(_parent(command[4], deciding(env)).forker, command, cwd, env, pass_fds)


def start_daemon(env: Mapping[str, str], log: int) -> ForkedDaemon:
    """Fork ``ktuned start --foreground``, whose workers are forked too, and which writes to an open file."""
    forker = _parent(DAEMON, deciding(env)).forker
    command = [sys.executable, "-m", "ktuned", "start", "--foreground"]
    with _lend_parents(env) as (variables, descriptors):
        return ForkedDaemon(forker, forker.fork(command, os.getcwd(), {**env, **variables}, descriptors, (log, log)))


@contextmanager
def _lend_parents(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Lend parents to a daemon of this environment: yield the variable that it needs, and descriptors to pass."""
    with tempfile.TemporaryDirectory() as scratch:
        observed = observer.make_worker_variables(Path(scratch), environment, [])
    variables = deciding({**environment, **observed})
    connections = {role: _parent(role, variables).connect() for role in Role}
    numbers = {role: connection.fileno() for role, connection in connections.items()}
    try:
        yield {LENT: json.dumps({"roles": numbers, "deciding": variables})}, list(numbers.values())
    finally:
        for connection in connections.values():
            connection.close()
