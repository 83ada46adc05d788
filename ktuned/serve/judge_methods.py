"""The method ``judge``: has candidates judged, waits for their verdicts, and compares them with other configs.

A request makes one judged job for each problem. Their trials are published with their verdicts, which are kept here
while a request waits: the store may have newer trials of the same configs by the time that the last job has ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import msgspec
from msgspec.structs import asdict, replace

from ktuned.answers import Knowledge
from ktuned.catalog import complete_config
from ktuned.model import (
    MAX_ERRORS,
    Config,
    FrozenStruct,
    Judgement,
    JudgeVerdict,
    KernelFileError,
    KernelInfo,
    KtunedError,
    NotFound,
    Outcome,
    UsageError,
    canonical,
    compute_factor,
    compute_shares,
    find_compiler_errors,
    find_worst,
    list_distinct,
    read_judgement,
)
from ktuned.protocol import (
    JUDGE,
    SCHEMA,
    WINNER,
    Candidate,
    Event,
    Factors,
    Job,
    JobDone,
    JobQueued,
    JobState,
    JudgeAnswer,
    JudgedProblem,
    JudgeParams,
    Priority,
    Trial,
    TrialDone,
)
from ktuned.scheduling import Intake, Jobs, TuningRequest, find_judged_trial
from ktuned.serve.job_methods import parse_configs, submit_request
from ktuned.serve.method import Handler, Peer
from ktuned.tuning import QUICK

REGISTERS = frozenset({"registers"})
SPILLS = frozenset({"spill_store_bytes", "spill_bytes"})
"""Facts of backends about a compiled config."""

CANCEL_S = 5.0
"""Seconds for cancelling the jobs of a client that has left."""

_NOT_IN_SPACE = "the space does not hold this config for this problem"


class JudgeMethods(msgspec.Struct, eq=False):
    """Judges candidates, and keeps the verdicts of judged jobs while a request waits for them."""

    known: Knowledge
    intake: Intake
    jobs: Jobs
    _requests: int = 0
    _trials: dict[int, dict[str, Trial]] = {}
    """The judged trials of each job by the canonical text of their config."""
    _ended: dict[int, Job] = {}
    _changed: anyio.Event = msgspec.field(default_factory=anyio.Event)

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the method with its handler."""
        return [Handler(JUDGE, self.handle_judge, ends_with_peer=True)]

    def handle_event(self, event: Event) -> None:
        """Keep verdicts, and the ends of judged jobs."""
        if not self._requests:
            return
        match event:
            case JobQueued(job=job, job_state=state) if state.plan.is_judged:
                self._trials.setdefault(job, {})
            case TrialDone(job=job, trial=Trial() as trial) if job in self._trials:
                self._trials[job][canonical(trial.config)] = trial
            case JobDone(job=job, job_state=state) if state.plan.is_judged:
                self._ended[job] = state
                self._changed.set()
                self._changed = anyio.Event()

    async def handle_judge(self, params: JudgeParams, peer: Peer) -> JudgeAnswer:
        """Judge the candidates on their problems.

        Raises:
            UsageError: The request names nothing to judge, or a config that is not the kernel's.
            KernelFileError: The kernel file has an error.
        """
        against = params.against
        file = against if isinstance(against, str) and against != WINNER else None
        if file is not None and not os.path.isabs(file):
            raise UsageError(f"against is {file!r}", hint="give winner, a config, or a file's absolute path")
        request = TuningRequest(
            problem=params.problem,
            device=params.device,
            preset=QUICK if params.quick else None,
            configs=parse_configs(params.configs),
            priority=Priority.WAITED_FOR,
            is_fixed=True,
            reason="judge",
            is_judged=True,
            against=None if file is not None else against,
        )
        with self._keep_verdicts():
            jobs, others = await self._submit_jobs(params, request), list[Job]()
            try:
                if file is not None:
                    other = JudgeParams(path=file, python=params.python)
                    others = await self._submit_jobs(other, replace(request, configs=(), against=WINNER))
                while not all(job.id in self._ended for job in (*jobs, *others)):
                    await self._changed.wait()
            except anyio.get_cancelled_exc_class():
                await self._cancel_jobs([*jobs, *others])
                raise
            others_us = {canonical(job.problem): self._find_least_us(job) for job in others}
            return self._make_answer(params, jobs, others_us if file is not None else None)

    async def _cancel_jobs(self, jobs: Sequence[Job]) -> None:
        """Cancel the jobs of a request whose client is gone. Bounded."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(CANCEL_S):
            for job in jobs:
                # It may have ended meanwhile.
                with suppress(NotFound):
                    await self.jobs.cancel_job(job.id, "its client has left")

    @contextmanager
    def _keep_verdicts(self) -> Iterator[None]:
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._trials.clear()
                self._ended.clear()

    async def _submit_jobs(self, params: JudgeParams, request: TuningRequest) -> list[Job]:
        """Submit a judged job for each problem of one kernel.

        Raises:
            UsageError, NotFound, AmbiguousName: The kernel is not named, or there is none or more than one.
            KernelFileError: Its file has an error.
        """
        jobs, errors = await submit_request(self.intake, params, request)
        if not jobs and errors:
            raise KernelFileError(errors[0].message, hint=errors[0].hint)
        self._ended |= {job.id: job for job in jobs if job.is_ended}
        return jobs

    def _make_answer(
        self, params: JudgeParams, jobs: Sequence[Job], others_us: Mapping[str, float | None] | None
    ) -> JudgeAnswer:
        """Return the verdicts of ended jobs, with ``others_us``, the latencies of another kernel by problem."""
        kernel = self.known.catalog.resolve_kernel(jobs[0].kernel)
        configs = {canonical(config): config for config in parse_configs(params.configs)}
        if not configs and kernel.default is not None:
            configs[canonical(kernel.default)] = kernel.default
        found: dict[str, list[_Judged]] = {text: [] for text in configs}
        for job in (self._ended[job.id] for job in jobs):
            trials = self._trials.get(job.id, {})
            bases = self._find_bases(kernel, job, params)
            if others_us is not None:
                bases = replace(bases, against=others_us.get(canonical(job.problem)))
            # Without a candidate's name, the job has judged the first config of the space.
            for text in configs or trials:
                trial = trials.get(text)
                judged = _judge_trial(job, trial)
                problem = self._describe_problem(kernel, job, trial, judged, bases)
                found.setdefault(text, []).append(_Judged(problem, trial, judged))
        return JudgeAnswer(
            judge=SCHEMA,
            kernel=kernel.name,
            file=kernel.file,
            device=jobs[0].device,
            candidates=tuple(
                _describe_candidate(kernel.order_config(json.loads(text)), judged) for text, judged in found.items()
            ),
        )

    def _find_bases(self, kernel: KernelInfo, job: Job, params: JudgeParams) -> Factors:
        """Return the latencies in µs with which a job's candidates are compared."""

        def find_us(config: Config | None) -> float | None:
            trial = None if config is None else self._trials.get(job.id, {}).get(canonical(config))
            if trial is None and config is not None and job.device:
                # The default is judged once for all requests. A device that is gone has no context.
                with suppress(KtunedError):
                    trial = find_judged_trial(self.known, kernel, job.problem, job.device, config)
            return None if trial is None else _read_latency_us(trial)

        winner = self.known.store.get_winner(kernel.make_winner_key(job.problem, job.device, kernel.objective(None)))
        # The figure of a judged trial is better, because candidates are measured in the same way.
        winner_us = None if winner is None else find_us(complete_config(kernel, winner.config)) or winner.latency_us
        against_us = winner_us if params.against == WINNER else None
        if isinstance(params.against, Mapping):
            against_us = find_us(params.against)
        return Factors(job.reference_us, find_us(kernel.default), winner_us, against_us)

    def _find_least_us(self, job: Job) -> float | None:
        return min(filter(None, map(_read_latency_us, self._trials.get(job.id, {}).values())), default=None)

    def _describe_problem(
        self, kernel: KernelInfo, job: Job, trial: Trial | None, judged: Judgement, bases: Factors
    ) -> JudgedProblem:
        latency_us = None if trial is None else _read_latency_us(trial)
        described = JudgedProblem(
            kernel.order_problem(job.problem),
            JudgeVerdict(judged.verdict),
            judged.reason,
            trial=None if trial is None else trial.id,
        )
        if trial is None or latency_us is None:
            return described
        peaks = self.known.store.load_peaks().get(job.device)
        share = next(iter(compute_shares(trial.metrics, peaks)), None) if peaks is not None else None
        return replace(
            described,
            latency_us=latency_us,
            spread_us=trial.spread_us,
            factor_over=Factors(**{name: compute_factor(us, latency_us) for name, us in asdict(bases).items()}),
            limit=None if share is None else share.of,
            limit_share=None if share is None else share.share,
        )


class _Judged(FrozenStruct):
    """A candidate on one problem: as it is described, and what that rests on."""

    described: JudgedProblem
    trial: Trial | None
    judgement: Judgement


def _judge_trial(job: Job, trial: Trial | None) -> Judgement:
    """Return the judgement on a trial of an ended job; without a trial, its job failed or did not try the config."""
    if trial is not None:
        return read_judgement(trial.result)
    failed = job.message.partition("\n")[0] or f"the job was {job.state}"
    return Judgement(JudgeVerdict.REFUSED, _NOT_IN_SPACE if job.state is JobState.DONE else failed)


def _read_latency_us(trial: Trial) -> float | None:
    """Return a trial's latency in µs, if it is right."""
    return trial.latency_us if read_judgement(trial.result).verdict == JudgeVerdict.RIGHT else None


def _describe_candidate(config: Config, judged: Sequence[_Judged]) -> Candidate:
    worst = find_worst(one.judgement for one in judged)
    trials = [one.trial for one in judged if one.trial is not None]
    facts = [trial.detail.compiled.facts for trial in trials]
    errors = (find_compiler_errors(trial.message) for trial in trials if trial.outcome is not Outcome.MEASURED)
    return Candidate(
        config=config,
        verdict=JudgeVerdict(worst.verdict),
        reason=worst.reason,
        problems=tuple(one.described for one in judged),
        registers=_find_most(facts, REGISTERS),
        spills=_find_most(facts, SPILLS),
        errors=list_distinct(errors)[:MAX_ERRORS],
        checked=list_distinct(one.judgement.checked for one in judged),
        not_enforced=list_distinct(one.judgement.not_enforced for one in judged),
    )


def _find_most(facts: Iterable[Mapping[str, Any]], names: Collection[str]) -> int | None:
    """Return the greatest of some facts; None if no compiler has stated one."""
    values = (value for known in facts for name, value in known.items() if name in names)
    return max((value for value in values if isinstance(value, int)), default=None)
