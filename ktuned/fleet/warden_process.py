"""The daemon's side of the warden (:mod:`~ktuned.fleet.warden`): keeps it running as long as there may be workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from ktuned.fleet import warden
from ktuned.model import WorkerError

_log = structlog.get_logger()

_REAP_S = 5.0
"""Time that a dismissed warden gets to end."""


class WardenProcess:
    """The warden: when this process is gone, it kills every process with ``mark`` and removes ``scratch``."""

    def __init__(self, mark: str, scratch: Path) -> None:
        self._mark = mark
        self._scratch = scratch
        self._process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """The warden's process id."""
        return self._process.pid

    @asynccontextmanager
    async def keep_running(self) -> AsyncIterator[None]:
        """Run a warden for the length of the block.

        Raises:
            WorkerError: no process can be started.
        """
        self._process = self._start_process()
        try:
            yield
        finally:
            self._dismiss_process()
            with anyio.CancelScope(shield=True), anyio.move_on_after(_REAP_S):
                await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    def restart_if_killed(self) -> None:
        """Start the warden again if it was killed. Without it, workers would outlive a daemon that is killed."""
        if self._process.poll() is None:
            return
        self._dismiss_process()
        try:
            self._process = self._start_process()
        except WorkerError as error:
            _log.error("start_warden_failed", reason=error.message)
        else:
            _log.warning("warden_restarted", pid=self.pid)

    def _start_process(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", warden.__file__, self._mark, str(self._scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise WorkerError(
                f"cannot start any process: {error.strerror}", hint="raise its limits of open files and processes"
            ) from error

    def _dismiss_process(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
