"""``ktuned start --foreground`` whose workers are forked by the tests' parents and end with the daemon.

A variable holds the connections to the parents. A worker in another environment than theirs is started normally.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ktuned.cli import main
from ktuned.cli.commands.start import skip_unused_imports
from ktuned.observer import library
from tests.forked_processes.forker import LENT_PARENTS_VARIABLE, ForkedWorker, Forker, select_import_variables

with skip_unused_imports():
    from ktuned import daemon
    from ktuned.daemon.assembly import Replacements
    from ktuned.daemon.process import run


class ForkersByRole:
    """The parents of a daemon's workers, by role."""

    def __init__(self, parents: Mapping[str, Any]) -> None:
        self._deciding = parents["deciding"]
        self._by_role = {role: Forker(_take_connection(number)) for role, number in parents["roles"].items()}

    def start_worker(
        self, command: Sequence[str], *, cwd: str, env: Mapping[str, str], pass_fds: Sequence[int], **options: Any
    ) -> ForkedWorker | subprocess.Popen[bytes]:
        """Fork a worker if its parent has the same environment, otherwise start it."""
        forker = self._by_role.get(command[4])
        if (
            forker is None
            or command[0] != sys.executable
            or not os.path.isdir(cwd)
            or select_import_variables(env) != self._deciding
        ):
            return subprocess.Popen(command, cwd=cwd, env=env, pass_fds=pass_fds, **options)
        return ForkedWorker(forker, command, cwd, env, pass_fds)


def _take_connection(number: int) -> socket.socket:
    os.set_inheritable(number, False)
    return socket.socket(fileno=number)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command with forked workers; return its exit status."""
    parents = json.loads(os.environ.pop(LENT_PARENTS_VARIABLE))
    forkers = ForkersByRole(parents)
    # The parents have loaded this library. With one from its own cache, a daemon would start all workers normally.
    if preloaded := parents["deciding"].get("LD_PRELOAD"):
        library.build_library = lambda: Path(preloaded.partition(":")[0])  # type: ignore[assignment]
    daemon.run = functools.partial(run, replacements=Replacements(start_process=forkers.start_worker))
    return main(arguments)
