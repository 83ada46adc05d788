"""From a Build to a sealed artifact, or to the outcome that says why there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ktuned.errors import WorkerError
from ktuned.fleet.pool import Fleet
from ktuned.fleet.process import DeadlineExpired, RequestFailed, WorkerDied
from ktuned.lifecycle import Event, State
from ktuned.model import Outcome, TrialResult
from ktuned.store import Artifacts
from ktuned.tuning.trying import Attempt, Work


class Compiling:
    """Compiles one job's configs; how many at once is the fleet's to say."""

    def __init__(self, work: Work, fleet: Fleet, artifacts: Artifacts) -> None:
        self._work = work
        self._fleet = fleet
        self._artifacts = artifacts

    async def compile(self, attempt: Attempt) -> TrialResult | None:
        """Bring an attempt to ``compiled`` and return ``None``, or return its outcome.

        Raises:
            WorkerError: the backend cannot be loaded at all; or, with code ``source_changed``, the job works from files
                that are no more.
            StoreError: the artifact cannot be kept.
        """
        if self._artifacts.find(attempt.key) is not None:
            attempt.life.tell(Event.ARTIFACT_FOUND)
            return None
        while True:
            failed = await self._compile_once(attempt)
            if attempt.life.place is not State.ASKED:
                return failed

    async def _compile_once(self, attempt: Attempt) -> TrialResult | None:
        work = self._work
        items: list[dict[str, Any]] = []
        async with self._fleet.gate.compiling(), self._fleet.compile_slots:
            attempt.life.tell(Event.COMPILE_STARTED)
            with self._staged() as into:
                request = {"op": "compile", **work.kernel_request(), "into": str(into), "units": [attempt.unit()]}
                try:
                    async with self._fleet.lend("compile", work.environment) as worker:
                        await worker.call(request, work.deadlines, first_phase="load", on_item=items.append)
                except (WorkerDied, DeadlineExpired, RequestFailed) as error:
                    if attempt.excuse_kill(error):
                        return None
                    if error.phase == "load":
                        # No config is to blame for a backend that cannot be imported.
                        raise WorkerError(
                            f"the backend {work.kernel.backend!r} cannot be loaded: {error.message}",
                            hint=error.hint or "`ktuned doctor` says more",
                        ) from error
                    return self._failed(attempt, error)
                (item,) = items
                attempt.compile_s += item["seconds"]
                if item["outcome"] is not None:
                    refused = item["outcome"] == Outcome.UNSUPPORTED
                    event = Event.CANNOT_RUN if refused else Event.COMPILE_FAILED
                    return attempt.result(event, item["message"], phase="compile")
                await self._artifacts.seal(
                    into / attempt.key,
                    key=attempt.key,
                    backend=work.kernel.backend,
                    facts=item["facts"],
                    required=item["required"],
                )
        attempt.life.tell(Event.COMPILE_DONE)
        return None

    def _failed(self, attempt: Attempt, error: WorkerDied | DeadlineExpired | RequestFailed) -> TrialResult:
        if isinstance(error, WorkerDied):
            return attempt.result(
                Event.DIED, error.message, phase=error.phase, signal=error.signal, output=error.output
            )
        if isinstance(error, DeadlineExpired):
            attempt.compile_s += error.deadline_s
            return attempt.result(
                Event.COMPILE_EXPIRED, error.message, phase=error.phase, after_s=error.deadline_s, output=error.output
            )
        if error.code == "source_changed":
            raise error
        return attempt.result(Event.COMPILE_FAILED, error.message, phase=error.phase, output=error.output)

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        directory = self._artifacts.stage(f"job{self._work.job.id}")
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
