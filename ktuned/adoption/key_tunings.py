"""The tunings of adopted functions' keys: requests them, and learns from them.

::

    a call comes ─▶ key choice ─▶ tuned now ─▶ ended: teaches what a neighbour's config loses ─▶ key choice
                       │                                                                           │
                       └─▶ waits ◀── chosen when the last choice's tunings have ended ◀────────────┤
                             ▼                                                     nothing is worth tuning
                   served by the nearest tuned key

If a function has few keys, all of them are tuned. Keys that are not worth a tuning of their own
(:mod:`~ktuned.adoption.key_choice`) are served by the winner of the nearest key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec
import structlog

from ktuned.adoption.key_choice import KeyChoice
from ktuned.answers import Knowledge
from ktuned.model import CallKey, Config, KernelInfo, KtunedError, Objective, Problem, canonical, is_exact
from ktuned.protocol import AnswersChanged, Job, PublishEvent
from ktuned.scheduling import GIVEN_UP, JobRequests, Jobs, TuningRequest
from ktuned.spool import CALL_KEY
from ktuned.store import Winner

MAX_CONFIGS = 1_000
"""Most measured configs of a key that are searched for its neighbour's config."""

_log = structlog.get_logger()


class KeyTunings(msgspec.Struct, eq=False):
    """The keys of all adopted functions."""

    known: Knowledge
    requests: JobRequests
    jobs: Jobs
    publish: PublishEvent
    _choices: dict[tuple[str, str, Objective], KeyChoice] = {}
    """The choices among a function's keys, by its name, the device model and the objective."""
    _job_of: dict[str, int] = {}

    @property
    def has_waiting(self) -> bool:
        """True if a key waits to be chosen."""
        return any(choice.has_waiting for choice in self._choices.values())

    def is_waiting(self, kernel: KernelInfo, key: CallKey) -> bool:
        """Return whether a key waits, and so is not tuned itself, at least for now."""
        choice = self._choices.get((kernel.name, key.device or "", key.objective))
        return choice is not None and choice.is_waiting(kernel.select_key_values(key.problem))

    def find_live_job(
        self, kernel: KernelInfo, problem: Problem, device: str | None, objective: Objective
    ) -> Job | None:
        """Return the live job of a key that may find a better config; others only try given configs."""
        return next(
            (job for job in self._list_live_jobs(kernel, problem, device, objective) if not job.plan.configs), None
        )

    def count_given_up(self, kernel: KernelInfo, problem: Problem, device: str | None, objective: Objective) -> int:
        """Return how many configs of a key were given up for time, and are compiled later."""
        jobs = self._list_live_jobs(kernel, problem, device, objective)
        return sum(len(job.plan.configs) for job in jobs if job.reason == GIVEN_UP)

    def _list_live_jobs(
        self, kernel: KernelInfo, problem: Problem, device: str | None, objective: Objective
    ) -> list[Job]:
        wanted = canonical(kernel.select_key_values(problem))
        return [
            job
            for job in self.jobs.list_live_jobs()
            if (job.kernel, job.objective) == (kernel.name, objective)
            and device in (None, job.device)
            and canonical(kernel.select_key_values(job.problem)) == wanted
        ]

    def find_last_job(self, kernel: KernelInfo, key: CallKey) -> Job | None:
        """Return the job that this daemon has last requested for a key."""
        number = self._job_of.get(_make_key_id(kernel, key.problem, key.objective))
        return None if number is None else self.jobs.get_job(number)

    def count_launches(self, kernel: KernelInfo, key: CallKey, launches: int) -> None:
        """Count launches of a key by applications."""
        if (choice := self._choices.get((kernel.name, key.device or "", key.objective))) is not None:
            choice.selection.add_problem(kernel.select_key_values(key.problem), float(launches))

    async def take_in_call(self, kernel: KernelInfo, key: CallKey, call: str, *, first: Config) -> None:
        """Take in the key of a recorded call, whose data is in the file ``call``. Request its tuning, unless it waits.

        Args:
            kernel: The function's kernel.
            key: The key.
            call: The file's name.
            first: The first config of the call, which the application launches.

        Raises:
            KtunedError: Its anchor or its job cannot be recorded.
        """
        await self._choose_anchor(kernel, key, first)
        device = key.device or ""
        choice = self._find_choice(kernel, device, key.objective)
        if choice.take_in_key(kernel.select_key_values(key.problem), call):
            await self._request_tuning(kernel, key.problem, call, device, key.objective)

    async def _choose_anchor(self, kernel: KernelInfo, key: CallKey, first: Config) -> None:
        """If a key's numerics are exact, make the call's first config the anchor."""
        if not is_exact(key.objective) or self.known.machine.arch:
            return
        device = self.known.machine.find_device(
            self.known.catalog.find_kernel_environment(kernel), kernel.backend, key.device
        )
        winner_key = kernel.make_winner_key(key.problem, device.model, key.objective)
        if self.known.store.anchors.find_anchor(winner_key) is None:
            await self.known.store.anchors.choose_anchor(winner_key, first)
            self.publish(AnswersChanged(kernel=kernel.name))

    async def tune_chosen_keys(self) -> None:
        """For each function with waiting keys whose last tunings have ended, request the next tuning."""
        for (name, device, objective), choice in list(self._choices.items()):
            if not choice.has_waiting:
                continue
            try:
                kernel = self.known.catalog.resolve_kernel(name)
                unlearned = choice.unlearned
                if any(self.find_live_job(kernel, problem, device or None, objective) for problem in unlearned):
                    continue
                for problem in unlearned:
                    choice.selection.record_tuning(problem)
                    self._learn_loss(self._list_winners(kernel, device, objective), choice, problem)
                if (chosen := choice.choose_next()) is not None:
                    await self._request_tuning(kernel, chosen.problem, chosen.call, device, objective)
            except KtunedError as error:
                # The function is gone, or the store cannot be written. Applications will leave the keys again.
                _log.warning("choose_keys_failed", kernel=name, reason=error.message)
                del self._choices[name, device, objective]

    def _find_choice(self, kernel: KernelInfo, device: str, objective: Objective) -> KeyChoice:
        """Return the choice among a function's keys. A new one knows the keys that have a winner."""
        choice = self._choices.get((kernel.name, device, objective))
        if choice is None:
            tuned = [json.loads(winner.key.problem) for winner in self._list_winners(kernel, device, objective)]
            choice = self._choices[kernel.name, device, objective] = KeyChoice(tuned)
        return choice

    async def _request_tuning(
        self, kernel: KernelInfo, problem: Problem, call: str, device: str, objective: Objective
    ) -> None:
        request = TuningRequest(
            problem={**problem, CALL_KEY: call},
            device=device or None,
            objective=objective,
            any_plan=True,
            reason="called by an application",
        )
        for job in await self.requests.request_jobs(kernel, request):
            self._job_of[_make_key_id(kernel, problem, objective)] = job.id

    def _learn_loss(self, known: Iterable[Winner], choice: KeyChoice, problem: Problem) -> None:
        """Have a choice learn from a tuned key's loss with the config of its nearest tuned neighbour."""
        winners = {str(winner.key.problem): winner for winner in known}
        own = winners.get(canonical(problem))
        if own is None:
            # The key's tuning has failed, or is about to be requested.
            return
        neighbour = choice.selection.find_neighbour(problem)
        other = None if neighbour is None else winners.get(canonical(neighbour))
        measured = [] if other is None else self.known.store.list_measured_configs(own.context, MAX_CONFIGS)
        theirs = next((known.figure for known in measured if other and known.text == canonical(other.config)), None)
        choice.record_loss(problem, None if theirs is None else theirs / own.latency_us - 1.0)

    def _list_winners(self, kernel: KernelInfo, device: str, objective: Objective) -> list[Winner]:
        return [
            winner
            for winner in self.known.store.list_winners(kernel.name)
            if winner.objective == objective and device in ("", winner.key.device)
        ]


def _make_key_id(kernel: KernelInfo, problem: Problem, objective: Objective) -> str:
    return f"{kernel.name} {objective} {canonical(kernel.select_key_values(problem))}"
