"""A job's one worker that imports its kernel file, and translates functions for compile workers, which import nothing.

An application's module may import torch and a model library: seconds and hundreds of MiB, once instead of in each
compile worker.
"""

from __future__ import annotations

from contextlib import suppress

import anyio

from ktuned.fleet import Fleet, NodeAbsent, NodeLost, RequestFailed, Worker
from ktuned.ipc import replies, requests
from ktuned.model import Role, WorkerError
from ktuned.tuning.work import Compiler, Work


class FrontEnd:
    """Holds the worker from the first unit to :meth:`close`; one unit at a time."""

    def __init__(self, work: Work, fleet: Fleet) -> None:
        self._work = work
        self._fleet = fleet
        self._turn = anyio.Lock()
        self._worker: Worker | None = None
        self._compiler = work.compilers[0]
        self._is_opening = False

    @property
    def is_opening(self) -> bool:
        """True during all imports, which the first unit waits for."""
        return self._is_opening

    async def open(self) -> None:
        """Have a worker import what it needs before there is a unit; a failure is left to the first unit."""
        async with self._turn:
            if self._worker is not None:
                return
            work = self._work
            self._is_opening = True
            try:
                self._worker = await self._fleet.acquire(Role.COMPILE, self._compiler.environment)
                with suppress(RequestFailed):
                    await self._worker.exchange(requests.OpenFrontEnd(work.kernel_ref, work.target), work.deadlines)
            except WorkerError:
                self._drop()
            except BaseException:
                self._drop()
                raise
            finally:
                self._is_opening = False

    async def lower(self, unit: requests.UnitRef, compiler: Compiler) -> replies.Lowered:
        """Translate a unit's function, on the machine of ``compiler`` if there is no worker yet.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: as with other requests; the next unit gets another worker.
            WorkerError: no worker can be started.
        """
        async with self._turn:
            if self._worker is not None and self._fleet.is_worn(self._worker):
                self.close()
            node = compiler.environment.node
            while True:
                try:
                    return await self._exchange(unit, compiler)
                except (NodeAbsent, NodeLost):
                    if self._compiler.environment.node == node:
                        raise

    async def _exchange(self, unit: requests.UnitRef, compiler: Compiler) -> replies.Lowered:
        work = self._work
        self._is_opening = self._worker is None
        try:
            if self._worker is None:
                self._compiler = compiler
                self._worker = await self._fleet.acquire(Role.COMPILE, compiler.environment)
            request = requests.Lower(work.kernel_ref, work.target, unit, self._compiler.toolchain)
            lowered, _ = await self._worker.exchange(request, work.deadlines)
        except BaseException:
            self._drop()
            raise
        finally:
            self._is_opening = False
        return lowered

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def close(self) -> None:
        """Give the worker back."""
        if self._worker is not None:
            self._fleet.release(self._worker)
            self._worker = None
