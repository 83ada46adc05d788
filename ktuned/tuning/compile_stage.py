"""From Builds to sealed artifacts, or to the outcomes that say why there are none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream

from ktuned.fleet import DeadlineExpired, Fleet, RequestFailed, WorkerDied, is_outside_kill
from ktuned.model import Event, Outcome, TrialResult, WorkerError
from ktuned.store import DISK_ERRORS, Artifacts, file_fault
from ktuned.tuning.attempt import Attempt, Work
from ktuned.tuning.compile_groups import GroupSize

_log = structlog.get_logger()

Compiled = tuple[Attempt, TrialResult | None]
"""An attempt, and its outcome if it ended here; ``None`` says that it has its artifact."""


class Compiling:
    """Compiles one job's configs; how many groups at once the fleet says, how large :meth:`group`."""

    def __init__(self, work: Work, fleet: Fleet, artifacts: Artifacts) -> None:
        self._work = work
        self._fleet = fleet
        self._artifacts = artifacts
        self._group_size = GroupSize(work.group_size)
        self._directories: list[Path] = []
        self._made = 0

    def group(
        self, first: Attempt, channel: MemoryObjectReceiveStream[Attempt], *, lanes_starve: bool
    ) -> list[Attempt]:
        """Return ``first`` and as many of those that wait in the channel as are to be compiled with it."""
        group = [first]
        for _ in range(self._group_size.next(lanes_starve=lanes_starve) - 1):
            try:
                group.append(channel.receive_nowait())
            except (anyio.WouldBlock, anyio.EndOfStream):
                break
        return group

    async def compile(self, attempts: Sequence[Attempt]) -> list[Compiled]:
        """Bring each attempt to ``compiled``, or to its outcome.

        Raises:
            WorkerError: the backend cannot be loaded at all; or, with code ``source_changed``, the job works from files
                that are no more.
            StoreError: an artifact cannot be kept.
        """
        done: list[Compiled] = []
        missing = []
        for attempt in attempts:
            if self._artifacts.find(attempt.key) is None:
                _log.debug("artifact_missing", artifact=attempt.key, target=self._work.target)
                missing.append(attempt)
            else:
                attempt.life.tell(Event.ARTIFACT_FOUND)
                attempt.facts = self._artifacts.facts(attempt.key)
                done.append((attempt, None))
        if missing:
            # The slot first: who waits for one does not compile, and keeps nobody from having quiet.
            async with self._fleet.compile_slots.hold(self._work.job.id), self._fleet.gate.compiling():
                for attempt in missing:
                    attempt.life.tell(Event.COMPILE_STARTED)
                done += await self._compile_group(missing)
        return done

    async def _compile_group(self, group: list[Attempt]) -> list[Compiled]:
        """Compile a group in one request; one that fails as a whole is halved until it is known who is to blame."""
        items: dict[str, dict[str, Any]] = {}
        done: list[Compiled] = []
        failure: WorkerDied | DeadlineExpired | RequestFailed | None = None
        with self._staged() as into:
            try:
                await self._ask(group, into, items)
            except (WorkerDied, DeadlineExpired, RequestFailed) as error:
                if error.phase == "load" and not is_outside_kill(error):
                    # No config is to blame for a backend that cannot be imported.
                    raise WorkerError(
                        f"the backend {self._work.kernel.backend!r} cannot be loaded: {error.message}",
                        hint=error.hint or "`ktuned doctor` says more",
                    ) from error
                if isinstance(error, RequestFailed):
                    if error.code == "source_changed":
                        raise
                    if error.errno in DISK_ERRORS:
                        fault = OSError(error.errno, error.message)
                        raise file_fault(fault, f"{self._work.job.kernel} cannot be compiled") from error
                failure = error
            for attempt in group:
                if attempt.key in items:
                    done.append((attempt, self._take(attempt, items[attempt.key])))
        rest = [attempt for attempt in group if attempt.key not in items]
        if failure is None:
            silent = "the backend said nothing of this config"
            return done + [(attempt, attempt.result(Event.COMPILE_FAILED, silent, phase="compile")) for attempt in rest]
        excused = [attempt for attempt in rest if attempt.excuse_kill(failure)]
        if excused:
            for attempt in excused:
                attempt.life.tell(Event.COMPILE_STARTED)
            blamed = [(attempt, self._failed(attempt, failure)) for attempt in rest if attempt not in excused]
            return [*done, *blamed, *await self._compile_group(excused)]
        if len(rest) == 1:
            return [*done, (rest[0], self._failed(rest[0], failure))]
        half = len(rest) // 2
        return done + await self._compile_group(rest[:half]) + await self._compile_group(rest[half:])

    async def _ask(self, group: list[Attempt], into: Path, items: dict[str, dict[str, Any]]) -> None:
        work = self._work
        request = {
            "op": "compile",
            **work.kernel_request(),
            "into": str(into),
            "units": [
                {**attempt.unit(), "place": str(self._artifacts.place(attempt.key))}
                for attempt in {attempt.key: attempt for attempt in group}.values()
            ],
        }
        deadlines = {**work.deadlines, "compile": work.deadlines["compile"] * len(group)}

        def note(item: dict[str, Any]) -> None:
            items[item["key"]] = item

        async with self._fleet.lend("compile", work.environment) as worker:
            await worker.call(request, deadlines, first_phase="load", on_item=note)
        if items and all(item["outcome"] is None for item in items.values()):
            self._group_size.took(len(items), sum(item["seconds"] for item in items.values()))

    def _failed(self, attempt: Attempt, error: WorkerDied | DeadlineExpired | RequestFailed) -> TrialResult:
        if isinstance(error, DeadlineExpired):
            attempt.compile_s += error.deadline_s
        return attempt.failure(error, expired=Event.COMPILE_EXPIRED, refused=Event.COMPILE_FAILED)

    def _take(self, attempt: Attempt, item: dict[str, Any]) -> TrialResult | None:
        attempt.compile_s += item["seconds"]
        if item["outcome"] is not None:
            event = Event.CANNOT_RUN if item["outcome"] == Outcome.UNSUPPORTED else Event.COMPILE_FAILED
            return attempt.result(event, item["message"], phase="compile", facts=dict(item["facts"]))
        attempt.facts, attempt.files = item["facts"], item["content"]
        self._artifacts.note_added(item["bytes"])
        attempt.life.tell(Event.COMPILE_DONE)
        return None

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """Lend a directory to one group; the next group uses it again, several at once have one each."""
        if self._directories:
            directory = self._directories.pop()
        else:
            self._made += 1
            directory = self._artifacts.stage(f"job{self._work.job.id}-{self._made}")
        try:
            yield directory
        finally:
            self._directories.append(directory)

    def close(self) -> None:
        """Remove the directories; the job is over."""
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
