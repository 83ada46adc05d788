"""The tunings of adopted functions' keys: requests them, and learns from them.

::

    a call comes ─▶ key choice ─▶ tuned now ─▶ ended: teaches what a neighbour's config loses ─▶ key choice
                       │                                                                           │
                       └─▶ waits ◀── chosen when the last choice's tunings have ended ◀────────────┤
                             ▼                                                     nothing is worth tuning
                   served by the portfolio, or before there is one
                   by the nearest tuned key

If a function has few keys, all of them are tuned. Keys that are not worth a tuning of their own
(:mod:`~ktuned.adoption.key_choice`) are served by the function's portfolio (:mod:`ktuned.scheduling.portfolios`).
"""

from __future__ import annotations

import json
from typing import Final

import structlog

from ktuned.adoption.key_choice import KeyChoice
from ktuned.answers import Knowledge
from ktuned.model import KernelInfo, KtunedError, Problem, canonical, is_exact
from ktuned.protocol import AnswersChanged, Job, PublishEvent
from ktuned.scheduling import GIVEN_UP, JobRequests, Jobs, TuningRequest
from ktuned.spool import CALL_KEY, CallRecord
from ktuned.store import Winner

MAX_CONFIGS: Final = 1_000
"""Most measured configs of a key that are searched for its neighbour's config."""

_log = structlog.get_logger()


class KeyTunings:
    """The keys of all adopted functions."""

    def __init__(
        self,
        known: Knowledge,
        *,
        requests: JobRequests,
        jobs: Jobs,
        publish: PublishEvent,
    ) -> None:
        self._known = known
        self._publish = publish
        self._requests = requests
        self._jobs = jobs
        self._choices: dict[tuple[str, str], KeyChoice] = {}
        self._job_of: dict[str, int] = {}

    @property
    def has_waiting(self) -> bool:
        """True if a key waits to be chosen."""
        return any(choice.has_waiting for choice in self._choices.values())

    def is_waiting(self, kernel: KernelInfo, problem: Problem, device: str | None) -> bool:
        """Return whether a key waits, and so is not tuned itself, at least for now."""
        choice = self._choices.get((kernel.name, device or ""))
        return choice is not None and choice.is_waiting(kernel.select_key_values(problem))

    def find_live_job(self, kernel: KernelInfo, problem: Problem, device: str | None) -> Job | None:
        """Return the live job of a key that may find a better config; others only fill its function's portfolio."""
        return next((job for job in self._list_live_jobs(kernel, problem, device) if not job.plan.configs), None)

    def count_given_up(self, kernel: KernelInfo, problem: Problem, device: str | None) -> int:
        """Return how many configs of a key were given up for time, and are compiled later."""
        jobs = self._list_live_jobs(kernel, problem, device)
        return sum(len(job.plan.configs) for job in jobs if job.reason == GIVEN_UP)

    def _list_live_jobs(self, kernel: KernelInfo, problem: Problem, device: str | None) -> list[Job]:
        wanted = canonical(kernel.select_key_values(problem))
        return [
            job
            for job in self._jobs.list_live_jobs()
            if job.kernel == kernel.name
            and device in (None, job.device)
            and canonical(kernel.select_key_values(job.problem)) == wanted
        ]

    def find_last_job(self, kernel: KernelInfo, problem: Problem) -> Job | None:
        """Return the job that this daemon has last requested for a key."""
        number = self._job_of.get(_make_key_id(kernel, problem))
        return None if number is None else self._jobs.get_job(number)

    def count_launches(self, kernel: KernelInfo, problem: Problem, device: str, launches: int) -> None:
        """Count launches of a key by applications."""
        if (choice := self._choices.get((kernel.name, device))) is not None:
            choice.selection.add_problem(kernel.select_key_values(problem), float(launches))

    async def take_in_call(self, kernel: KernelInfo, record: CallRecord, call: str) -> None:
        """Take in the key of a recorded call, whose data is in the file ``call``. Request its tuning, unless it waits.

        Raises:
            KtunedError: Its anchor or its job cannot be recorded.
        """
        await self._choose_anchor(kernel, record)
        if self._find_choice(kernel, record.device).take_in_key(kernel.select_key_values(record.problem), call):
            await self._request_tuning(kernel, record.problem, call, record.device)

    async def _choose_anchor(self, kernel: KernelInfo, record: CallRecord) -> None:
        """If a key's numerics are exact, make the record's first config, which the application launches, the anchor."""
        objective = kernel.objective(None)
        if not is_exact(objective) or self._known.machine.arch:
            return
        device = self._known.machine.find_device(
            self._known.catalog.find_kernel_environment(kernel), kernel.backend, record.device or None
        )
        key = kernel.make_winner_key(record.problem, device.model, objective)
        if self._known.store.anchors.find_anchor(key) is None:
            await self._known.store.anchors.choose_anchor(key, record.configs[0])
            self._publish(AnswersChanged(kernel=kernel.name))

    async def tune_chosen_keys(self) -> None:
        """For each function with waiting keys whose last tunings have ended, request the next tuning."""
        for (name, device), choice in list(self._choices.items()):
            if not choice.has_waiting:
                continue
            try:
                kernel = self._known.catalog.resolve_kernel(name)
                unlearned = choice.unlearned
                if any(self.find_live_job(kernel, problem, device or None) is not None for problem in unlearned):
                    continue
                for problem in unlearned:
                    choice.selection.record_tuning(problem)
                    self._learn_loss(kernel, device, choice, problem)
                if (chosen := choice.choose_next()) is not None:
                    await self._request_tuning(kernel, chosen.problem, chosen.call, device)
            except KtunedError as error:
                # The function is gone, or the store cannot be written. Applications will leave the keys again.
                _log.warning("choose_keys_failed", kernel=name, reason=error.message)
                del self._choices[name, device]

    def _find_choice(self, kernel: KernelInfo, device: str) -> KeyChoice:
        """Return the choice among a function's keys on a device model. A new one knows the keys that have a winner."""
        choice = self._choices.get((kernel.name, device))
        if choice is None:
            tuned = [json.loads(winner.key.problem) for winner in self._list_winners(kernel, device)]
            choice = self._choices[kernel.name, device] = KeyChoice(tuned)
        return choice

    async def _request_tuning(self, kernel: KernelInfo, problem: Problem, call: str, device: str) -> None:
        request = TuningRequest(
            problem={**problem, CALL_KEY: call},
            device=device or None,
            any_plan=True,
            reason="called by an application",
        )
        for job in await self._requests.request_jobs(kernel, request):
            self._job_of[_make_key_id(kernel, problem)] = job.id

    def _learn_loss(self, kernel: KernelInfo, device: str, choice: KeyChoice, problem: Problem) -> None:
        """Have a choice learn from a tuned key's loss with the config of its nearest tuned neighbour."""
        winners = {str(winner.key.problem): winner for winner in self._list_winners(kernel, device)}
        own = winners.get(canonical(problem))
        if own is None:
            # The key's tuning has failed, or is about to be requested.
            return
        neighbour = choice.selection.find_neighbour(problem)
        other = None if neighbour is None else winners.get(canonical(neighbour))
        measured = [] if other is None else self._known.store.list_measured_configs(own.context, MAX_CONFIGS)
        theirs = next((known.figure for known in measured if other and known.text == canonical(other.config)), None)
        choice.record_loss(problem, None if theirs is None else theirs / own.latency_us - 1.0)

    def _list_winners(self, kernel: KernelInfo, device: str) -> list[Winner]:
        return [winner for winner in self._known.store.list_winners(kernel.name) if device in ("", winner.key.device)]


def _make_key_id(kernel: KernelInfo, problem: Problem) -> str:
    return f"{kernel.name} {canonical(kernel.select_key_values(problem))}"
