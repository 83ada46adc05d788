"""Lookups: the best config known now, from memory, within microseconds.

A lookup runs on the event loop and never waits. It takes these steps:

1. Find the kernel.
2. Compute the best answer from the kernel's state (:mod:`ktuned.answers`). This changes nothing, and the table of
   winners is filled in the same way.
3. Queue the work that would improve the answer: a tuning, a worker's verdict on a config.
4. Publish the answer in the table of winners.

Two cases differ. A request for a settled answer waits for a worker's verdict (:meth:`Lookups.settle_answer`). And a
client that finds the answer in the table of winners does not send a request at all.

The tuning that follows a lookup is requested at most once for each state of the kernel. If it has just failed for these
very files, it is not requested, and the answer's message is the failure.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import anyio
from msgspec.structs import replace

from ktuned.answers import Admits, KernelStates, Lookup
from ktuned.catalog import Catalog, read_problem
from ktuned.lookup.follow_ups import FollowUps
from ktuned.lookup.publication import Publication
from ktuned.lookup.winner_table import WinnerTable
from ktuned.model import KernelInfo, KtunedError, NotFound, Objective, Problem
from ktuned.protocol import Answer, AnswersChanged, Event, JobDone, Status
from ktuned.scheduling import Jobs

SETTLE_S = 5.0
"""Longest time that a lookup waits for a worker to start and to run a kernel file's constraints."""

MAX_SETTLED = 4
"""How often one lookup asks a worker. Once is enough unless the file changes, because all configs are asked together.
"""


class Lookups:
    """Answers lookups; :meth:`run_until_cancelled` carries out their follow-ups.

    Attributes:
        answered: The number of lookups answered since the start.
        publication: Writes the table of winners.
        table: The table of winners, for clients.
    """

    def __init__(
        self, table: WinnerTable, catalog: Catalog, states: KernelStates, follow_ups: FollowUps, jobs: Jobs
    ) -> None:
        self.answered = 0
        self.publication = Publication(table, catalog, states, follow_ups)
        self.table = table
        self._catalog = catalog
        self._states = states
        self._follow_ups = follow_ups
        self._jobs = jobs

    def handle_event(self, event: Event) -> None:
        """Publish the winner of a job that has ended; drop what must not be given any more."""
        match event:
            case JobDone():
                self.publication.publish_tuned(event.job_state)
            case AnswersChanged(kernel=str(kernel), is_revoked=True):
                self._follow_ups.forget_tunings(kernel)
                self.publication.revoke_answers(kernel)

    def look_up(
        self,
        name: str,
        problem: Problem,
        device: str | None,
        *,
        tune: bool,
        directory: str | None = None,
        objective: str | None = None,
        admits: Admits | None = None,
        repeats: int = 0,
    ) -> Lookup:
        """Return the answer for one problem.

        Args:
            name: The kernel's full or short name.
            problem: The problem.
            device: The name or the model of a device; None for the first one.
            tune: Whether to queue a tuning that would improve the answer.
            directory: Decides which project a short name means.
            objective: The objective; None for the kernel's own.
            admits: Replaces the check against the kernel's space, if only the caller knows which configs it may launch.
            repeats: How many equal lookups were answered with the last answer to this one.

        Raises:
            AmbiguousName: several kernels have this short name.
            UsageError: the kernel has no such problem, or no such objective.
        """
        self.answered += 1
        try:
            kernel = self._catalog.resolve_kernel(name, directory)
        except NotFound as error:
            return Lookup(
                Answer(
                    kernel=name,
                    problem=problem,
                    device=device,
                    status=Status.UNKNOWN,
                    config=None,
                    latency_us=None,
                    artifact=None,
                    age_s=None,
                    decided=None,
                    file=None,
                    message=f"{error.message}; {error.hint}",
                    generation=self.table.generation(name),
                )
            )
        self.table.note_use(kernel.name)
        problem = read_problem(kernel, problem)
        found = self._find_and_improve_answer(
            kernel, problem, device, kernel.objective(objective), tune=tune, admits=admits, repeats=repeats
        )
        self.publication.publish_answered(kernel, name, directory, problem, found, tune=tune)
        return found

    def _find_and_improve_answer(
        self,
        kernel: KernelInfo,
        problem: Problem,
        device: str | None,
        objective: Objective,
        *,
        tune: bool,
        admits: Admits | None,
        repeats: int,
    ) -> Lookup:
        """Return the best answer, and queue the work that would improve it."""
        found = self._states.find_answer(kernel, problem, device, objective, tune=tune, admits=admits)
        if found.undecided:
            self._follow_ups.queue_check(kernel, problem, found.undecided)
        if tune and found.tuning is not None:
            self._follow_ups.queue_tuning(found.tuning)
            self._jobs.count_lookups(found.tuning.key, 1 + repeats)
        return replace(found, answer=replace(found.answer, generation=self.table.generation(kernel.name)))

    async def settle_answer(self, found: Lookup, look_up: Callable[[], Lookup], ends_at: float) -> Lookup:
        """Return ``found``, or the answer of ``look_up`` after a worker has said which configs the space has.

        Only the kernel file's own code may know whether the winner of the nearest size is valid for this one. At
        ``ends_at`` (by ``monotonic``) the best answer so far is returned; all lookups of one request share that end.
        """
        with anyio.move_on_after(max(0.0, ends_at - monotonic())), suppress(KtunedError):
            for _ in range(MAX_SETTLED):
                if not found.undecided:
                    break
                kernel = self._catalog.resolve_kernel(found.answer.kernel)
                await self._follow_ups.await_check(kernel, found.answer.problem, found.undecided)
                found = look_up()
        return found

    async def run_until_cancelled(self) -> None:
        """Carry out the follow-ups of lookups, and keep the table of winners up to date, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_ups.run_until_cancelled)
            tasks.start_soon(self.publication.run_until_cancelled)
