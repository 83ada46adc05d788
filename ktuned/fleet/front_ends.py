"""Front ends: workers that import what users wrote, and translate functions for compile workers, which import nothing.

A module of an application may import torch and a model library: 20 seconds and a GiB. One worker imports it for all
jobs that need it, one after the other in the order of their ranks. What is imported is a kernel file, or a library that
Builds name, whatever their kernel files.

A front end stays while a job has work for it, and ends after it has idled, like other workers. It is replaced
when it is worn, has died or has hung: then the unit that it worked on is to blame, and the next one goes on in another.
Where the import of a library itself fails or hangs, no unit is to blame: the jobs that need it end with that error, for
a while without another try, after pauses that grow. Other libraries have other workers, and are not held up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import structlog

from ktuned.fleet.executor import Environment, Worker
from ktuned.fleet.failures import (
    DeadlineExpired,
    HostLost,
    Output,
    RequestFailed,
    WorkerDied,
    is_outside_kill,
)
from ktuned.fleet.health import Health
from ktuned.fleet.priority_semaphore import NO_JOB, RankOf, Turns
from ktuned.fleet.quiet import COURTESY_S
from ktuned.ipc import replies, requests
from ktuned.model import Phase, Role, WorkerError, canonical

if TYPE_CHECKING:
    # A fleet has its front ends.
    from ktuned.fleet.fleet import Fleet

_log = structlog.get_logger()

R = TypeVar("R")

LIBRARY = "library"
"""The field of a Build that says, as plain data, what its function is found in; without one that is the kernel file."""

MAX_FRONT_ENDS = 4
"""Front ends that are kept at once, more only where jobs under way need them: each may hold a GiB."""

MOST_REQUESTS = 20_000
"""Requests after which one is replaced: a whole library has 2,000 configs, and to import it again takes long."""


class FrontEndKey(msgspec.Struct, frozen=True):
    """All that is the same for what one front end translates: where it runs, the backend, and what it has imported."""

    environment: Environment
    backend: str
    imported: str

    @classmethod
    def of(
        cls, environment: Environment, backend: str, kernel_file: str, library: Mapping[str, Any] | None
    ) -> FrontEndKey:
        """Return the key of a Build's front end; ``library`` is what the Build names, if it does."""
        return cls(environment, backend, canonical(library) if library else kernel_file)


class FrontEnds:
    """All front ends of a fleet."""

    def __init__(self, fleet: Fleet, rank_of: RankOf) -> None:
        self._fleet = fleet
        self._rank_of = rank_of
        self._known: dict[FrontEndKey, _FrontEnd] = {}

    def prepare(
        self, environment: Environment, backend: str, library: Mapping[str, Any], deadlines: Mapping[str, float]
    ) -> None:
        """Have a library imported before there is a job that needs it, in the background."""
        key = FrontEndKey.of(environment, backend, "", library)
        self._fleet.start_soon(self.open, key, requests.OpenFrontEnd(backend, library=library), NO_JOB, deadlines)

    async def open(
        self, key: FrontEndKey, opening: requests.OpenFrontEnd, job: int, deadlines: Mapping[str, float]
    ) -> None:
        """Have what a job needs imported before it has a unit; a failure is left to the first unit."""
        await self._of(key, job).open(opening, job, deadlines)

    async def lower(
        self,
        places: Sequence[tuple[FrontEndKey, requests.Lower]],
        opening: requests.OpenFrontEnd,
        job: int,
        deadlines: Mapping[str, float],
    ) -> replies.Lowered:
        """Translate a unit's function on the first machine that is there, by its request.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: as with other requests; the next unit gets another worker.
            HostLost: no machine is there.
            WorkerError: no worker can be started, or what is to be imported cannot be.
        """
        absent: WorkerError | None = None
        for key, request in places:
            try:
                return await self._of(key, job).lower(opening, request, job, deadlines)
            except HostLost as error:
                absent = error
        assert absent is not None
        raise absent

    def leave(self, job: int) -> None:
        """Take note that a job has no more work: what only it has used may end once it has idled."""
        for found in self._known.values():
            found.leave(job)

    def _of(self, key: FrontEndKey, job: int = NO_JOB) -> _FrontEnd:
        if key not in self._known:
            for surplus in self._idle()[: max(0, len(self._known) - MAX_FRONT_ENDS + 1)]:
                self._end(surplus)
            self._known[key] = _FrontEnd(key, self._fleet, self._rank_of)
        if job != NO_JOB:
            self._known[key].jobs.add(job)
        return self._known[key]

    def end_idle(self, idle_s: float) -> None:
        """End those that have idled for so long."""
        for one in self._idle():
            if monotonic() - one.used_at >= idle_s:
                self._end(one)

    def _idle(self) -> list[_FrontEnd]:
        """Return those that no job has work for, the longest idle first."""
        return sorted((one for one in self._known.values() if one.is_idle), key=lambda one: one.used_at)

    def _end(self, idle: _FrontEnd) -> None:
        idle.end()
        del self._known[idle.key]


class _FrontEnd:
    """One front end, with a worker or, between two of them, without."""

    def __init__(self, key: FrontEndKey, fleet: Fleet, rank_of: RankOf) -> None:
        self.key = key
        self.jobs: set[int] = set()
        self.used_at = monotonic()
        self._fleet = fleet
        self._turns = Turns(rank_of=rank_of)
        self._worker: Worker | None = None
        self._health = Health()
        self._opened_for: set[int] = set()
        """Jobs whose functions' own modules it has imported, too."""

    @property
    def is_idle(self) -> bool:
        """True if no job has work for it."""
        return not self.jobs and not self._turns.is_full

    def leave(self, job: int) -> None:
        """Have a job use it no more."""
        if job in self.jobs:
            self.jobs.remove(job)
            self._opened_for.discard(job)
            self.used_at = monotonic()

    async def open(self, opening: requests.OpenFrontEnd, job: int, deadlines: Mapping[str, float]) -> None:
        """Import what it is for, if that is not done; a failure is left to the first unit."""
        async with self._turns.hold(job):
            try:
                await self._opened(opening, job, deadlines)
            except WorkerError as error:
                _log.info("front_end_not_open", imports=self.key.imported, reason=error.message)
            self.used_at = monotonic()

    async def lower(
        self, opening: requests.OpenFrontEnd, request: requests.Lower, job: int, deadlines: Mapping[str, float]
    ) -> replies.Lowered:
        """Translate a unit's function, as :meth:`FrontEnds.lower`."""
        async with self._turns.hold(job):
            worker = await self._opened(opening, job, deadlines)
            # Not around the import: one that hangs would keep others from having quiet.
            async with self._compiling():
                lowered, _ = await self._exchange(worker, request, deadlines)
            self.used_at = monotonic()
            return lowered

    def _compiling(self) -> AbstractAsyncContextManager[None]:
        return self._fleet.gate_of(self.key.environment).compiling()

    async def _opened(self, opening: requests.OpenFrontEnd, job: int, deadlines: Mapping[str, float]) -> Worker:
        """Return the worker, which has imported what it is for, and what a job's first Build needs besides.

        Raises:
            WorkerError: it cannot; where that is the library itself, nothing is tried for a while.
        """
        if self._worker is not None and (
            not self._worker.is_alive or self._fleet.is_worn(self._worker, most_requests=MOST_REQUESTS)
        ):
            self.end()
        if self._worker is None:
            if self._health.pause_s:
                raise WorkerError(self._health.reason)
            self._worker = await self._fleet.acquire(Role.COMPILE, self.key.environment)
            try:
                await self._import(self._worker, replace(opening, build=None), deadlines)
            except WorkerError as error:
                self.end()
                if not isinstance(error, WorkerDied | DeadlineExpired):
                    self._health.failed(error.message)
                raise
            self._health.succeeded()
        if opening.build is not None and job not in self._opened_for:
            await self._import(self._worker, opening, deadlines)
            self._opened_for.add(job)
        return self._worker

    async def _import(self, worker: Worker, opening: requests.OpenFrontEnd, deadlines: Mapping[str, float]) -> None:
        # Of a kernel file that cannot be imported the unit's own request says so.
        with suppress(RequestFailed):
            async with self._fleet.gate_of(self.key.environment).computing(COURTESY_S):
                await self._exchange(worker, opening, deadlines)
        # Only what comes on top of what it has imported wears it out.
        worker.settle()

    async def _exchange(
        self, worker: Worker, request: requests.Request[R, Any], deadlines: Mapping[str, float]
    ) -> tuple[R, Output]:
        """Have a request done; a worker that did not answer it is not used again.

        Raises:
            WorkerError: the library cannot be imported, or what the request itself ended with.
        """
        try:
            return await worker.exchange(request, deadlines)
        except RequestFailed as error:
            self._raise_if_import(error)
            raise
        except (WorkerDied, DeadlineExpired) as error:
            self.end()
            self._raise_if_import(error)
            raise
        except BaseException:
            self.end()
            raise

    def _raise_if_import(self, error: WorkerDied | DeadlineExpired | RequestFailed) -> None:
        """Raise the error of a library that cannot be imported, which no unit is to blame for.

        Raises:
            WorkerError: it is one.
        """
        if error.phase is Phase.INSPECT and not isinstance(error, HostLost) and not is_outside_kill(error):
            _log.warning("library_not_imported", imports=self.key.imported, reason=error.message)
            raise WorkerError(error.message, hint=error.hint) from error

    def end(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        self._opened_for.clear()
