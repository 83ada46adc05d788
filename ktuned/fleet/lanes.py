"""Lanes: one device's measuring seat each, on which at most one trial is measured at any time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import anyio

from ktuned.errors import WorkerError
from ktuned.fleet.pool import Fleet
from ktuned.fleet.process import Environment, Output, RequestFailed, WorkerProcess
from ktuned.model import Device


@dataclass(frozen=True, slots=True)
class Bench:
    """What a bench worker must have opened before it can measure: whose code, which kernel, problem and data."""

    environment: Environment
    backend: str
    identity: str
    request: Mapping[str, Any]


class CannotOpen(WorkerError):
    """A problem's inputs or reference cannot be made: no trial of it can be measured."""

    code = "cannot_open"


class Lane:
    """One device; who measures on it holds :meth:`seat`."""

    def __init__(self, device: Device, fleet: Fleet) -> None:
        self.device = device
        self.busy_s = 0.0
        self.job: int | None = None
        self._fleet = fleet
        self._lock = anyio.Lock()
        self._worker: WorkerProcess | None = None
        self._bench: Bench | None = None

    @property
    def state(self) -> str:
        """``ready`` or ``busy``."""
        return "busy" if self._lock.locked() else "ready"

    @property
    def worker_pid(self) -> int | None:
        """The process that measures here, if one is up."""
        return self._worker.pid if self._worker is not None and self._worker.is_alive else None

    @asynccontextmanager
    async def seat(self, job: int) -> AsyncIterator[None]:
        """Hold the device for one job's next request."""
        async with self._lock:
            self.job = job
            began = monotonic()
            try:
                yield
            finally:
                self.busy_s += monotonic() - began
                self.job = None

    async def open(self, bench: Bench, deadlines: Mapping[str, float]) -> None:
        """Have a worker ready that has opened ``bench``; the caller holds the seat.

        Raises:
            CannotOpen: the kernel file, its inputs or its reference fail, hang or crash.
        """
        if self._worker is not None and self._worker.is_alive and self._bench is not None:
            if self._bench.environment != bench.environment:
                self.drop()
            elif self._bench.identity == bench.identity:
                return
        try:
            if self._worker is None or not self._worker.is_alive:
                self._bench = None
                self._worker = await self._fleet.acquire("bench", bench.environment)
            self._fleet.prepare_spare("bench", bench.environment, bench.backend)
            await self._worker.call(bench.request, deadlines, first_phase="inspect")
            self._bench = bench
        except BaseException as error:
            self.drop()
            if isinstance(error, RequestFailed) and error.code == "source_changed":
                raise
            if isinstance(error, WorkerError):
                raise CannotOpen(error.message, hint=error.hint) from error
            raise

    async def ask(self, request: Mapping[str, Any], deadlines: Mapping[str, float]) -> tuple[dict[str, Any], Output]:
        """Ask the opened worker for a trial or a timing; the caller holds the seat.

        Raises:
            WorkerDied, DeadlineExpired: the worker is gone; the next :meth:`open` takes the spare.
        """
        assert self._worker is not None
        try:
            return await self._worker.call(request, deadlines, first_phase="load")
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Kill the lane's worker: after a failure that may have left it, or its device, in an unknown state."""
        if self._worker is not None:
            self._worker.kill()
        self._worker = None
        self._bench = None

    def rest(self) -> None:
        """Give the worker back when there is nothing to measure, so that it can be let go."""
        if self._worker is not None and self._bench is not None:
            self._fleet.release(self._bench.environment, self._worker)
        self._worker = None
        self._bench = None

    def describe(self) -> dict[str, Any]:
        """Return the lane for a status."""
        return {
            "device": self.device.name,
            "model": self.device.model,
            "state": self.state,
            "reason": "",
            "job": self.job,
            "worker_pid": self.worker_pid,
            "busy_s": round(self.busy_s, 3),
        }
