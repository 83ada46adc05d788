"""Front ends: workers that import users' code and translate its functions for compile workers, which import nothing.

A module of an application may import torch and a model library, which takes 20 seconds and a GiB. One worker imports it
for all jobs that need it, and serves these jobs one after the other, by their ranks. It imports either a kernel file,
or a library that Builds name; Builds of several kernel files may share a library.

*Life.* A front end stays while a job has work for it. Like other workers, it ends after idling for some time. Its
worker is replaced when it is worn, has died or has hung.

*Blame.* If the worker dies or hangs while it translates a unit, that unit is to blame, and the next unit gets another
worker. If the import of the library itself fails or hangs, no unit is to blame: the jobs that need the library end with
the error, and the import is not tried again before a pause, which grows. Other libraries have workers of their own and
do not wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from ktuned.fleet.executor import Environment, Worker
from ktuned.fleet.failures import (
    DeadlineExpired,
    Health,
    HostLost,
    Output,
    RequestFailed,
    WorkerDied,
    is_outside_kill,
)
from ktuned.fleet.lane_machine import LaneMachine
from ktuned.fleet.priority_semaphore import NO_JOB, RankOf, Turns
from ktuned.fleet.quiet import COURTESY_S, QuietGate
from ktuned.ipc import replies, requests
from ktuned.model import FrozenStruct, Phase, Role, WorkerError, canonical

_log = structlog.get_logger()

R = TypeVar("R")

LIBRARY = "library"
"""The field of a Build that says, as plain data, where its function is found; without it, in the kernel file."""

MAX_FRONT_ENDS = 4
"""Front ends that are kept, as each may hold a GiB. Running jobs that need more get more."""

MOST_REQUESTS = 20_000
"""Requests after which a front end's worker is replaced. More than for other workers, because a whole library has 2,000
configs and importing it again takes long."""


AcquireWorker = Callable[[Role, Environment], Awaitable[Worker]]
"""Returns an idle worker, or a new one."""

GetGate = Callable[[Environment], QuietGate]
"""Returns the gate between compiles and timing on an environment's machine."""


class FrontEndKey(FrozenStruct):
    """Identifies a front end: where it runs, its backend, and the kernel file or library that it has imported."""

    environment: Environment
    backend: str
    imported: str

    @classmethod
    def for_build(
        cls, environment: Environment, backend: str, kernel_file: str, library: Mapping[str, Any] | None
    ) -> FrontEndKey:
        """Return the key of a Build's front end, by the ``library`` that the Build names or else by its kernel file."""
        return cls(environment, backend, canonical(library) if library else kernel_file)


class FrontEnds:
    """All front ends of a fleet, whose ``machine`` decides when a worker is worn."""

    def __init__(self, machine: LaneMachine, acquire_worker: AcquireWorker, get_gate: GetGate, rank_of: RankOf) -> None:
        self._machine = machine
        self._acquire_worker = acquire_worker
        self._get_gate = get_gate
        self._rank_of = rank_of
        self._known: dict[FrontEndKey, _FrontEnd] = {}

    async def import_library(
        self, environment: Environment, backend: str, library: Mapping[str, Any], deadlines: Mapping[str, float]
    ) -> None:
        """Import a library, before there is a job that needs it."""
        key = FrontEndKey.for_build(environment, backend, "", library)
        await self.open_front_end(key, requests.OpenFrontEnd(backend, library=library), NO_JOB, deadlines)

    async def open_front_end(
        self, key: FrontEndKey, opening: requests.OpenFrontEnd, job: int, deadlines: Mapping[str, float]
    ) -> None:
        """Import what a job needs before it has a unit to translate. If this fails, its first unit gets the error."""
        await self._get_front_end(key, job).import_for_job(opening, job, deadlines)

    async def lower_function(
        self,
        places: Sequence[tuple[FrontEndKey, requests.Lower]],
        opening: requests.OpenFrontEnd,
        job: int,
        deadlines: Mapping[str, float],
    ) -> replies.Lowered:
        """Translate a unit's function, on the first machine in ``places`` that is available.

        Args:
            places: The front end on each machine, and the request that it would get.
            opening: What the front end must have imported.
            job: The unit's job; its rank decides how long the unit waits.
            deadlines: Seconds for each phase, by its name.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: as with other requests; the next unit gets another worker.
            HostLost: no machine is available.
            WorkerError: no worker can be started, or an import fails.
        """
        absent: WorkerError | None = None
        for key, request in places:
            try:
                return await self._get_front_end(key, job).lower_function(opening, request, job, deadlines)
            except HostLost as error:
                absent = error
        assert absent is not None
        raise absent

    def forget_job(self, job: int) -> None:
        """Forget a job that has no more work. Front ends that no other job uses may then end after idling."""
        for found in self._known.values():
            found.forget_job(job)

    def _get_front_end(self, key: FrontEndKey, job: int = NO_JOB) -> _FrontEnd:
        if key not in self._known:
            for surplus in self._list_idle()[: max(0, len(self._known) - MAX_FRONT_ENDS + 1)]:
                self._end_front_end(surplus)
            self._known[key] = _FrontEnd(
                key, self._machine, self._acquire_worker, self._get_gate(key.environment), self._rank_of
            )
        if job != NO_JOB:
            self._known[key].jobs.add(job)
        return self._known[key]

    def end_idle(self, idle_s: float) -> None:
        """End the front ends that have idled for ``idle_s`` seconds."""
        for one in self._list_idle():
            if monotonic() - one.used_at >= idle_s:
                self._end_front_end(one)

    def _list_idle(self) -> list[_FrontEnd]:
        """Return the front ends that no job has work for, longest idle first."""
        return sorted((one for one in self._known.values() if one.is_idle), key=lambda one: one.used_at)

    def _end_front_end(self, idle: _FrontEnd) -> None:
        idle.end_worker()
        del self._known[idle.key]


class _FrontEnd:
    """One front end. It has no worker before its first use, and after its last worker has ended."""

    def __init__(
        self,
        key: FrontEndKey,
        machine: LaneMachine,
        acquire_worker: AcquireWorker,
        gate: QuietGate,
        rank_of: RankOf,
    ) -> None:
        self.key = key
        self.jobs: set[int] = set()
        self.used_at = monotonic()
        self._machine = machine
        self._acquire_worker = acquire_worker
        self._gate = gate
        self._turns = Turns(rank_of=rank_of)
        self._worker: Worker | None = None
        self._health = Health()
        self._opened_for: set[int] = set()
        """Jobs for which it has also imported the modules of their functions."""

    @property
    def is_idle(self) -> bool:
        """True if no job has work for it."""
        return not self.jobs and not self._turns.is_full

    def forget_job(self, job: int) -> None:
        """Forget a job that has no more work here."""
        if job in self.jobs:
            self.jobs.remove(job)
            self._opened_for.discard(job)
            self.used_at = monotonic()

    async def import_for_job(self, opening: requests.OpenFrontEnd, job: int, deadlines: Mapping[str, float]) -> None:
        """Import what a job needs, if not done yet. If this fails, the job's first unit gets the error."""
        async with self._turns.hold_turn(job):
            try:
                await self._get_opened_worker(opening, job, deadlines)
            except WorkerError as error:
                _log.info("open_front_end_failed", imports=self.key.imported, reason=error.message)
            self.used_at = monotonic()

    async def lower_function(
        self, opening: requests.OpenFrontEnd, request: requests.Lower, job: int, deadlines: Mapping[str, float]
    ) -> replies.Lowered:
        """Translate a unit's function, as :meth:`FrontEnds.lower_function`."""
        async with self._turns.hold_turn(job):
            worker = await self._get_opened_worker(opening, job, deadlines)
            # The gate is not held during the import: an import that hangs would keep finalists waiting for quiet.
            async with self._gate.hold_for_compile() as gate_pass:
                with gate_pass.allow_pause(worker):
                    lowered, _ = await self._send_request(worker, request, deadlines)
            self.used_at = monotonic()
            return replace(lowered, seconds=max(0.0, lowered.seconds - worker.paused_s))

    async def _get_opened_worker(
        self, opening: requests.OpenFrontEnd, job: int, deadlines: Mapping[str, float]
    ) -> Worker:
        """Return the worker after it has imported the front end's code and everything that a job's first Build needs.

        Raises:
            WorkerError: the code cannot be imported. If the library itself failed, it is not tried again for a while.
        """
        if self._worker is not None and (
            not self._worker.is_alive or self._machine.is_worn(self._worker, most_requests=MOST_REQUESTS)
        ):
            self.end_worker()
        if self._worker is None:
            if self._health.pause_s:
                raise WorkerError(self._health.reason)
            self._worker = await self._acquire_worker(Role.COMPILE, self.key.environment)
            try:
                await self._import_code(self._worker, replace(opening, build=None), deadlines)
            except WorkerError as error:
                self.end_worker()
                if not isinstance(error, WorkerDied | DeadlineExpired):
                    self._health.record_failure(error.message)
                raise
            self._health.record_success()
        if opening.build is not None and job not in self._opened_for:
            await self._import_code(self._worker, opening, deadlines)
            self._opened_for.add(job)
        return self._worker

    async def _import_code(
        self, worker: Worker, opening: requests.OpenFrontEnd, deadlines: Mapping[str, float]
    ) -> None:
        # An error in importing the kernel file is suppressed here: the unit's own request reports it.
        with suppress(RequestFailed):
            async with self._gate.hold_for_computing(COURTESY_S):
                await self._send_request(worker, opening, deadlines)
        # Imports do not wear a worker out; only memory beyond them counts as growth.
        worker.settle_memory()

    async def _send_request(
        self, worker: Worker, request: requests.Request[R, Any], deadlines: Mapping[str, float]
    ) -> tuple[R, Output]:
        """Send a request; a worker that did not answer is not used again.

        Raises:
            WorkerError: the library cannot be imported, or the request's own failure.
        """
        try:
            return await worker.send_request(request, deadlines)
        except RequestFailed as error:
            self._raise_if_import(error)
            raise
        except (WorkerDied, DeadlineExpired) as error:
            self.end_worker()
            self._raise_if_import(error)
            raise
        except BaseException:
            self.end_worker()
            raise

    def _raise_if_import(self, error: WorkerDied | DeadlineExpired | RequestFailed) -> None:
        """Turn a failure of the import into an error of the library, for which no unit is to blame.

        Raises:
            WorkerError: the import failed.
        """
        if error.phase is Phase.INSPECT and not isinstance(error, HostLost) and not is_outside_kill(error):
            _log.warning("import_library_failed", imports=self.key.imported, reason=error.message)
            raise WorkerError(error.message, hint=error.hint) from error

    def end_worker(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        self._opened_for.clear()
