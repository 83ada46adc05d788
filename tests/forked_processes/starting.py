"""The tests' side of forked processes: one parent for each role and set of variables, which ends with the tests."""

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
from tests.forked_processes.forker import (
    LENT_PARENTS_VARIABLE,
    ForkedDaemon,
    ForkedWorker,
    Forker,
    select_import_variables,
)
from tests.forked_processes.parent import DAEMON, LOG_VARIABLE, PARENT_LOG, TRITON_PROGRAM

_PARENT = Path(__file__).with_name("parent.py")
_PROGRAM = "import pathlib, sys; exec(compile(pathlib.Path(sys.argv[1]).read_text(), sys.argv[2], 'exec'))"
_SHOWN_FILE = Path(worker.__file__).with_name("__main__.py")
"""The file name of the parent's frames, which stay on a worker's stack: it is ktuned's, as in a real worker."""

_PADDING = "x" * 60_000
"""Room for a worker's environment."""


class _Parent:
    """A process that forks workers of one role."""

    def __init__(self, python: str, role: str, environment: Mapping[str, str]) -> None:
        own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.forker = Forker(own_end)
        with other_end:
            self._process = subprocess.Popen(
                [python, "-P", "-c", _PROGRAM, str(_PARENT), str(_SHOWN_FILE), str(other_end.fileno()), role],
                stdin=subprocess.DEVNULL,
                pass_fds=[other_end.fileno()],
                cwd="/",
                env={**environment, **_make_parent_log(environment), "PADDING": _PADDING},
            )
        leaks.exempt_process(self._process.pid, own_end.fileno())
        atexit.register(self._end)

    def _end(self) -> None:
        self.forker.connection.close()
        self._process.wait()

    def connect(self) -> socket.socket:
        """Return another connection, for another process."""
        own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other_end:
            self.forker.send_request({"connect": True}, [other_end.fileno()])
        return own_end


_parents: dict[tuple[str, str, frozenset[tuple[str, str]]], _Parent] = {}


def _make_parent_log(environment: Mapping[str, str]) -> dict[str, str]:
    """Create a log for the parent's observer and return its variable; forked workers switch to logs of their own."""
    if OBSERVER_NAME not in environment.get("LD_PRELOAD", ""):
        return {}
    directory = tempfile.mkdtemp(prefix="parent-of-workers-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    observer.Log.create(Path(directory, PARENT_LOG))
    return {LOG_VARIABLE: str(Path(directory, PARENT_LOG))}


def _get_parent(role: str, variables: Mapping[str, str]) -> _Parent:
    key = sys.executable, role, frozenset(variables.items())
    if key not in _parents:
        _parents[key] = _Parent(sys.executable, role, {**os.environ, **variables})
    return _parents[key]


def start_process(
    command: Sequence[str], *, cwd: str, env: Mapping[str, str], pass_fds: Sequence[int], **options: Any
) -> ForkedWorker | subprocess.Popen[bytes]:
    """Fork a worker; start it normally if it needs another interpreter or has no directory."""
    if command[0] != sys.executable or not os.path.isdir(cwd):
        return subprocess.Popen(command, cwd=cwd, env=env, pass_fds=pass_fds, **options)
    return ForkedWorker(_get_parent(command[4], select_import_variables(env)).forker, command, cwd, env, pass_fds)


def start_daemon(env: Mapping[str, str], log: int) -> ForkedDaemon:
    """Fork ``ktuned start --foreground`` with forked workers; its output goes to the file ``log``."""
    forker = _get_parent(DAEMON, select_import_variables(env)).forker
    command = [sys.executable, "-m", "ktuned", "start", "--foreground"]
    with _lend_parents(env) as (variables, descriptors):
        return ForkedDaemon(
            forker, forker.fork_process(command, os.getcwd(), {**env, **variables}, descriptors, (log, log))
        )


def start_triton_program(env: Mapping[str, str], words: Sequence[str], output: tuple[int, int]) -> ForkedDaemon:
    """Fork a program, of which torch and Triton are imported already; ``words`` are its file and its arguments."""
    forker = _get_parent(TRITON_PROGRAM, select_import_variables(env)).forker
    return ForkedDaemon(forker, forker.fork_process([sys.executable, *words], os.getcwd(), env, (), output))


@contextmanager
def _lend_parents(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Lend parents to a daemon: yield the variable that it needs, and the descriptors to pass."""
    with tempfile.TemporaryDirectory() as scratch:
        worker_variables = observer.make_worker_variables(Path(scratch), environment, [])
    variables = select_import_variables({**environment, **worker_variables})
    connections = {role: _get_parent(role, variables).connect() for role in Role}
    numbers = {role: connection.fileno() for role, connection in connections.items()}
    try:
        yield {LENT_PARENTS_VARIABLE: json.dumps({"roles": numbers, "deciding": variables})}, list(numbers.values())
    finally:
        for connection in connections.values():
            connection.close()
