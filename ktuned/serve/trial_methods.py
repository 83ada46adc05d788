"""The methods ``results`` and ``forget``: list a kernel's trials, and delete them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import structs

from ktuned.answers import KernelStates, Knowledge
from ktuned.catalog import read_problem
from ktuned.model import FrozenStruct, KernelInfo, NotFound, Objective, UsageError, canonical
from ktuned.protocol import (
    FORGET,
    RESULTS,
    AnswersChanged,
    ForgetAnswer,
    ForgetParams,
    ListedTrial,
    NumericsReport,
    PublishEvent,
    ResultsAnswer,
    ResultsParams,
    Trial,
)
from ktuned.scheduling import Jobs
from ktuned.serve.method import MAX_ROWS, Handler, Peer, bound_limit
from ktuned.store import BitClasses, Winner

MAX_DETAILED_ROWS = 200
"""Trials with their details in one answer, because a message has a size limit."""

_Place = tuple[str, str, str]
"""The problem, the device and the digest, which identify a trial's context among those of its kernel."""


class TrialMethods(FrozenStruct, kw_only=True):
    """Lists trials, and forgets them."""

    known: Knowledge
    states: KernelStates
    jobs: Jobs
    publish: PublishEvent

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(RESULTS, self.handle_results), Handler(FORGET, self.handle_forget)]

    def handle_results(self, params: ResultsParams, peer: Peer) -> ResultsAnswer:
        """List trials; details are included for a single trial, or if they are requested."""
        if params.trial is not None:
            return self._find_trial(params.trial)
        if params.kernel is None:
            raise UsageError("results needs a kernel or a trial")
        if params.before is not None and params.order != "newest":
            raise UsageError("before works only with the order newest", hint="give order='newest', too")
        kernel = self.known.catalog.resolve_kernel(params.kernel, params.directory)
        # Which trials?
        problem = None
        if params.problem is not None:
            problem = canonical(kernel.select_key_values(read_problem(kernel, params.problem)))
        device = None if params.device is None else self._resolve_model(kernel, params.device)
        digest = kernel.digest if params.current else None
        limit = min(bound_limit(params.limit), MAX_DETAILED_ROWS if params.details else MAX_ROWS)
        chosen = partial(
            self.known.store.list_trials,
            kernel=kernel.name,
            problem=problem,
            device=device,
            outcome=params.outcome,
            job=params.job,
            digest=digest,
            judged=params.judged,
            before=params.before,
        )
        trials = chosen(limit=limit, order=params.order)
        if params.order == "fastest" and len(trials) < limit:
            # Trials without a latency come after those with one.
            trials += [trial for trial in chosen(limit=limit) if trial.latency_us is None]
        trials = trials[:limit]
        # What else is known about them?
        winners = self.states.find_state(kernel).winners.values()
        classes = self._load_bit_classes(trials)
        numerics = [
            NumericsReport(json.loads(problem), device, tuple(found.describe_classes()))
            for (problem, device, _), found in classes.items()
        ]
        total: int | msgspec.UnsetType = msgspec.UNSET
        if params.count:
            total = self.known.store.count_trials(
                kernel.name, problem, device, params.outcome, params.job, digest, judged=params.judged
            )
        listed = _list_trials(trials, kernel, winners, classes, with_details=params.details)
        return ResultsAnswer(listed, tuple(numerics), total)

    def _find_trial(self, number: int) -> ResultsAnswer:
        trial = self.known.store.get_trial(number)
        if trial is None:
            raise NotFound(f"there is no trial {number}", hint="`ktuned results KERNEL` lists them")
        kernel, winners = None, self.known.store.list_winners(trial.kernel)
        with suppress(NotFound):
            kernel = self.known.catalog.resolve_kernel(trial.kernel)
        return ResultsAnswer(_list_trials([trial], kernel, winners, self._load_bit_classes([trial])))

    def _load_bit_classes(self, trials: Sequence[Trial]) -> dict[_Place, BitClasses]:
        """Return the classes of equal bits in each of the trials' contexts in which bits were compared."""
        compared = {
            _identify_context(trial): trial.kernel
            for trial in trials
            if trial.detail.numerics.bits or trial.detail.numerics.nondeterministic
        }
        found = {}
        for (problem, device, digest), kernel in compared.items():
            known = partial(self.known.store.list_trials, kernel=kernel, problem=problem, device=device, digest=digest)
            found[problem, device, digest] = BitClasses.from_trials(known(limit=MAX_ROWS, order="fastest"))
        return found

    def _resolve_model(self, kernel: KernelInfo, device: str) -> str:
        """Return the model of a device given by its name here (``cuda:1``); any other text is taken for a model."""
        here = self.known.machine.list_devices(self.known.catalog.find_kernel_environment(kernel), kernel.backend)
        return next((found.model for found in here if found.name == device), device)

    async def handle_forget(self, params: ForgetParams, peer: Peer) -> ForgetAnswer:
        """Delete a kernel's trials, or only those of a problem or an outcome: their configs may be tried again.

        Trials of equal checkouts are the kernel's, too.
        """
        kernel = self.known.catalog.resolve_kernel(params.kernel, params.directory)
        name, problem = kernel.name, None
        if params.problem is not None:
            problem = kernel.make_key_problem(read_problem(kernel, params.problem))
        if params.outcome is None:
            await self.jobs.cancel_jobs_of_kernel(name, problem)
        trials, winners = await self.known.store.forget_trials(name, params.outcome, problem, digest=kernel.digest)
        for one in (kernel, *self.known.catalog.find_namesakes(kernel)):
            self.jobs.forget_failures(one.name)
            self.publish(AnswersChanged(kernel=one.name, is_revoked=True))
        return ForgetAnswer(name, trials, winners)


def _list_trials(
    trials: Iterable[Trial],
    kernel: KernelInfo | None,
    winners: Iterable[Winner],
    classes: Mapping[_Place, BitClasses],
    *,
    with_details: bool = True,
) -> tuple[ListedTrial, ...]:
    """Return trials for a list: with the objectives that they win by, their bit class, and values in declared order."""
    won_by: dict[int, list[Objective]] = {}
    for winner in winners:
        won_by.setdefault(winner.trial, []).append(winner.objective)
    listed = []
    for trial in trials:
        found, objectives = classes.get(_identify_context(trial)), tuple(won_by.get(trial.id, ()))
        facts = trial.detail.compiled.facts.items()
        known: dict[str, Any] = {
            **structs.asdict(trial),
            "winner": bool(objectives),
            "objectives": objectives,
            "facts": {name: value for name, value in facts if type(value) in (int, float)},
            "bit_class": "" if found is None else found.name_class(trial.detail.numerics),
        }
        if kernel is not None:
            known["config"] = kernel.order_config(trial.config)
            known["problem"] = kernel.order_problem(trial.problem)
        listed.append(ListedTrial(**known))
    return tuple(listed if with_details else [one.without_detail() for one in listed])


def _identify_context(trial: Trial) -> _Place:
    return canonical(trial.problem), trial.device, trial.digest
