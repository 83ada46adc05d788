"""The daemon's side of the warden: keeps one running for as long as there may be workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import structlog

from ktuned.fleet import warden
from ktuned.model import WorkerError

_log = structlog.get_logger()

_REAP_S: Final = 5.0
"""Time for a warden to sweep and end, once its daemon has no worker any more."""


class Guard:
    """The warden: kills whatever bears ``mark`` (``NAME=value``) and removes ``scratch`` when this process is gone."""

    def __init__(self, mark: str, scratch: Path) -> None:
        self._mark = mark
        self._scratch = scratch
        self._process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """The warden's process."""
        return self._process.pid

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[None]:
        """Run a warden for the length of the block.

        Raises:
            WorkerError: no process can be started.
        """
        self._process = self._start()
        try:
            yield
        finally:
            self._let_go()
            with anyio.CancelScope(shield=True), anyio.move_on_after(_REAP_S):
                await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    def keep(self) -> None:
        """Start the warden again if it was killed: it ends the workers if the daemon is killed next."""
        if self._process.poll() is None:
            return
        self._let_go()
        try:
            self._process = self._start()
        except WorkerError as error:
            _log.error("no_warden", reason=error.message)
        else:
            _log.warning("warden_restarted", pid=self.pid)

    def _start(self) -> subprocess.Popen[bytes]:
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

    def _let_go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
