"""The live screen's connection to the daemon: it folds events into the board, and sends the requests of keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import structs
from msgspec.structs import replace

from ktuned.backends import read_ticks
from ktuned.cli.progress import concerns_project
from ktuned.cli.watch.board import Board, BoardRow, add_answers, add_estimates, catch_up, fold_event, keep_kernels
from ktuned.cli.watch.load import Load, Sample, compute_load, sample_load
from ktuned.cli.watch.trial_log import MAX_TRIALS, TrialLog, follow_event, is_outdated, open_log
from ktuned.model import Outcome
from ktuned.protocol import (
    CANCEL,
    JOBS,
    KERNELS,
    LOOKUP_MANY,
    MAX_PRIORITY,
    PAUSE,
    PEAKS,
    RESULTS,
    RESUME,
    STATUS,
    TUNE,
    Answer,
    CancelParams,
    Event,
    JobQueued,
    JobsParams,
    JobStarted,
    KernelsParams,
    KernelsReloaded,
    ListedTrial,
    LookupManyParams,
    LookupParams,
    PauseParams,
    Priority,
    ResultsParams,
    StreamGap,
    TuneParams,
    call_method_async,
    read_event,
)
from ktuned_client import AsyncClient, DaemonError
from ktuned_client.answers import TUNE_DEADLINE_S

ESTIMATE_S = 2.0
"""Interval of requests for load and remaining time while there are jobs."""

REST_S = 10.0
"""The same interval without jobs; longer, because a screen that is left open must not keep an idle daemon busy."""

MAX_CASES = 500
"""Most cases that are looked up when the screen opens; no screen has room for more."""


class Session:
    """The state of one screen, for one ``project`` or for all, and only for kernels below ``path`` if that is given.

    ``board``, ``load`` and ``notices`` are current as of the newest event or request; ``log`` has the trials of the row
    that is open. ``on_change`` is called after each change.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        path: str | None,
        project: str | None,
        since: tuple[int, int] | None,
    ) -> None:
        self.board = Board()
        self.load = Load()
        self.notices: tuple[str, ...] = ()
        self.log: TrialLog | None = None
        self.on_change: Callable[[], None] = lambda: None
        self._client = client
        self._path = path
        self._project = project
        self._since = since
        self._sample: Sample | None = None
        self._stirred = asyncio.Event()

    async def follow_events(self) -> None:
        """Fold events into the board until cancelled.

        Raises:
            DaemonUnavailable: the daemon is gone.
        """
        async with await self._client.events(since=self._since) as events:
            await self._catch_up()
            self.on_change()
            async for received in events:
                event = read_event(received)
                if isinstance(event, StreamGap | KernelsReloaded):
                    await self._catch_up()
                elif event is not None and concerns_project(event.kernel, self._project):
                    await self._take_event(event)
                self.on_change()

    async def _take_event(self, event: Event) -> None:
        self.board = fold_event(self.board, event, time.time())
        if self.log is not None:
            row = self.board.rows.get(self.log.row.case, self.log.row)
            self.log = follow_event(replace(self.log, row=row), event)
            if is_outdated(self.log, event):
                await self.open_row(row)
        if isinstance(event, JobQueued | JobStarted):
            self._stirred.set()

    async def observe_load(self) -> None:
        """Request the load and the remaining time of open jobs until cancelled, less often if there are no jobs."""
        while True:
            status = await call_method_async(self._client, STATUS)
            now = sample_load(status, read_ticks(), time.monotonic())
            self.load = compute_load(self._sample, now, status)
            self._sample = now
            open_jobs = [view.job.id for view in self.board.view.active]
            if open_jobs:
                answer = await call_method_async(self._client, JOBS, JobsParams(ids=open_jobs))
                self.board = add_estimates(self.board, answer.jobs)
            self.notices = status.notices
            self.on_change()
            self._stirred.clear()
            await asyncio.sleep(ESTIMATE_S)
            if not open_jobs:
                with suppress(TimeoutError):
                    async with asyncio.timeout(REST_S - ESTIMATE_S):
                        await self._stirred.wait()

    async def _catch_up(self) -> None:
        """Request the current state."""
        known = await call_method_async(self._client, KERNELS, KernelsParams(path=self._path))
        cases = [(kernel.name, problem) for kernel in known.kernels for problem in kernel.problems][:MAX_CASES]
        lookups = LookupManyParams([LookupParams(name, problem, tune=False) for name, problem in cases])
        answers: list[Answer] = []
        # If one of the kernels has been removed meanwhile, its event follows.
        with suppress(DaemonError):
            answers = (await call_method_async(self._client, LOOKUP_MANY, lookups)).read_answers()
        known_jobs = (await call_method_async(self._client, JOBS)).jobs
        jobs = [job for job in known_jobs if concerns_project(job.kernel, self._project)]
        status = await call_method_async(self._client, STATUS)
        limits = (await call_method_async(self._client, PEAKS)).by_device
        board = replace(self.board, view=replace(self.board.view, limits=limits))
        board = keep_kernels(add_answers(catch_up(board, jobs), answers), known)
        self.board = replace(board, paused=frozenset(status.paused))

    async def _load_trials(self, row: BoardRow, wanted: ResultsParams) -> Sequence[ListedTrial]:
        asked = structs.replace(
            wanted, kernel=row.kernel, problem=dict(row.problem) or None, device=row.device or None, order="newest"
        )
        try:
            return (await call_method_async(self._client, RESULTS, asked)).trials
        except DaemonError:
            # The kernel was removed meanwhile.
            return ()

    async def open_row(self, row: BoardRow) -> None:
        """Request the trials of a row, for ``log``."""
        current = await self._load_trials(row, ResultsParams(current=True, limit=MAX_TRIALS))
        measured = await self._load_trials(row, ResultsParams(outcome=Outcome.MEASURED, limit=MAX_TRIALS))
        self.log = open_log(row, current, measured)
        self.on_change()

    async def load_trial(self, number: int) -> ListedTrial | None:
        """Return everything about one trial."""
        found = (await call_method_async(self._client, RESULTS, ResultsParams(trial=number))).trials
        return found[0] if found else None

    async def tune_row(self, row: BoardRow) -> str:
        """Request a tuning of a row with priority over all else; return the message to show."""
        wanted = TuneParams(
            kernel=row.kernel,
            problem=dict(row.problem),
            objective=row.objective,
            device=row.device or None,
            # Above all jobs that other clients wait for, because the user is watching the screen.
            priority=min(MAX_PRIORITY, Priority.WAITED_FOR + 1),
        )
        answer = await call_method_async(self._client, TUNE, wanted, deadline_s=TUNE_DEADLINE_S)
        return f"job {answer.jobs[0].id} tunes {row.kernel} now"

    async def toggle_pause(self, row: BoardRow) -> str:
        """Pause or resume a row's job; return the message to show."""
        if row.job is None or not row.is_open:
            return f"{row.kernel} has no job to pause"
        method = RESUME if row.state == "paused" else PAUSE
        await call_method_async(self._client, method, PauseParams(job=row.job.id))
        return f"{method.name}d job {row.job.id}"

    async def toggle_pause_of_all(self) -> str:
        """Pause or resume all tuning; return the message to show."""
        method = RESUME if self.board.paused_everything else PAUSE
        await call_method_async(self._client, method)
        return f"{method.name}d all tuning"

    async def cancel_job_of_row(self, row: BoardRow) -> str:
        """Cancel a row's job; return the message to show."""
        if row.job is None or not row.is_open:
            return f"{row.kernel} has no job to cancel"
        await call_method_async(self._client, CANCEL, CancelParams(job=row.job.id))
        return f"cancelled job {row.job.id}"
