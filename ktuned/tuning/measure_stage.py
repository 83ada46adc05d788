"""From a sealed artifact to a figure, or to the outcome that says why there is none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic

import structlog

from ktuned.fleet import (
    Bench,
    CannotOpen,
    DeadlineExpired,
    KernelCode,
    Lane,
    LaneSick,
    Output,
    RequestFailed,
    WorkerDied,
)
from ktuned.ipc import replies, requests
from ktuned.model import Event, Outcome, TrialResult, canonical
from ktuned.store import Artifacts
from ktuned.tuning.attempt import Attempt, Compiled, Ended, Work
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.deadlines import for_trial
from ktuned.tuning.trial_detail import TrialDetail

_log = structlog.get_logger()

CONTENDED_TRIES = 3
"""Times that a trial is measured while other programs use the device, before it ends as ``contended``."""

_EVENTS: Mapping[Outcome, Event] = {
    Outcome.MEASURED: Event.TIMED,
    Outcome.SLOWER: Event.STOPPED_EARLY,
    Outcome.MISMATCH: Event.WRONG,
    Outcome.LAUNCH_ERROR: Event.RAISED,
    Outcome.UNSUPPORTED: Event.CANNOT_RUN,
}

_FAILURES = (Outcome.MISMATCH, Outcome.LAUNCH_ERROR)
"""Outcomes of a measurement that a damaged worker may be the reason for."""


class MeasureStage:
    """Measures one job's configs, one at a time on each of its lanes; other lanes stand in for a sick one."""

    def __init__(self, work: Work, lanes: Sequence[Lane], compiling: CompileStage, artifacts: Artifacts) -> None:
        self._work = work
        self._lanes = lanes
        self._compiling = compiling
        self._artifacts = artifacts
        self._benches: dict[str, Bench] = {}
        self._incumbent: requests.Incumbent | None = None

    async def measure(self, lane: Lane, compiled: Compiled, best_us: float | None) -> TrialResult:
        """Measure a compiled attempt; early stop and the deadlines follow from ``best_us``.

        It races against the fastest that this job has measured: figures of an earlier hour may be of other clocks. A
        config without ``best_us`` is measured in full.

        Raises:
            CannotOpen: the problem's data cannot be made, so nothing of this job can be measured.
            RequestFailed: with code ``source_changed``.
        """
        while True:
            try:
                result = await self._measure_once(self._fit(lane), compiled, best_us)
            except LaneSick:
                continue
            if result is not None:
                return result
            # The device was contended or failed, or the worker was killed: another job may have the lane first. Or
            # the artifact was damaged.
            if self._artifacts.find(compiled.attempt.unit.key) is None:
                (again,) = await self._compiling.compile([compiled.attempt])
                if isinstance(again, Ended):
                    return again.result
                compiled = again

    def _others(self, lane: Lane) -> list[Lane]:
        """Return the lanes besides this one that work."""
        return [other for other in self._lanes if other is not lane and not other.health.is_sick]

    def _fit(self, lane: Lane) -> Lane:
        """Return the lane itself, or one that works while it is sick and not yet to be tried again."""
        return next(iter(self._others(lane)), lane) if lane.health.pause_s else lane

    async def open(self, lane: Lane) -> None:
        """Have a lane ready for this job's trials; the caller holds it. Where all are sick it waits.

        Raises:
            CannotOpen: the problem's data cannot be made.
            LaneSick: its device does not work, and another lane's does.
        """
        if self._others(lane):
            await self._open_now(lane)
        else:
            await lane.open(self.bench(lane), self._work.deadlines)

    async def open_early(self, lane: Lane) -> None:
        """Have a lane ready before there is anything to measure, unless it is sick; the caller holds it.

        Raises:
            CannotOpen: the problem's data cannot be made.
        """
        with suppress(LaneSick):
            await self._open_now(lane)

    async def _open_now(self, lane: Lane) -> None:
        bench, deadlines = self.bench(lane), self._work.deadlines
        try:
            await lane.open_now(bench, deadlines)
        except CannotOpen:
            if lane.device.kind == "cpu" or not self._others(lane):
                raise
            # Perhaps it is the device that fails, not the problem: now a canary must pass first.
            await lane.open_now(bench, deadlines)

    async def _is_given_back(self, lane: Lane, attempt: Attempt) -> bool:
        """Leave a failed attempt to another lane if its device is to blame; return whether it is.

        Once only: a config after which each device fails is believed to be the reason.
        """
        if lane.device.kind == "cpu" or attempt.given_back or not self._others(lane):
            return False
        try:
            await self.open(lane)
        except LaneSick:
            attempt.given_back = True
            attempt.life.tell(Event.GIVEN_BACK)
            return True
        return False

    async def _measure_once(self, lane: Lane, compiled: Compiled, best_us: float | None) -> TrialResult | None:
        """Measure on one lane; return ``None`` if that decided nothing, and is to be done again."""
        work, attempt = self._work, compiled.attempt
        deadlines = for_trial(work.deadlines, work.preset, best_us)
        stop_above_us = None if best_us is None else best_us * work.job.plan.early_stop
        async with lane.hold(work.job.id):
            # Opening is the problem's cost, or the take-over's after another trial's failure; not this one's.
            began = monotonic()
            await self.open(lane)
            attempt.open_s += monotonic() - began
            attempt.life.tell(Event.LANE_TAKEN)
            is_doubtful, lane.is_doubtful = lane.is_doubtful, False
            began = monotonic()
            try:
                incumbent = None if best_us is None else self._incumbent
                request = requests.Trial((attempt.unit,), work.preset, work.judge_contention, stop_above_us, incumbent)
                measured, output = await lane.exchange(request, deadlines)
                await work.learn(measured.observed)
            except (WorkerDied, DeadlineExpired, RequestFailed) as error:
                attempt.lane_s += monotonic() - began
                if attempt.excuse_kill(error):
                    return None
                if not isinstance(error, DeadlineExpired) and attempt.doubt(is_doubtful=is_doubtful):
                    lane.drop()
                    return None
                if await self._is_given_back(lane, attempt):
                    return None
                if isinstance(error, RequestFailed) and error.code == "source_changed":
                    raise
                return attempt.failure(error, expired=Event.EXPIRED, refused=Event.RAISED, detail=compiled.detail())
            attempt.lane_s += monotonic() - began
            if measured.outcome in _FAILURES and attempt.doubt(is_doubtful=is_doubtful):
                lane.drop()
                return None
            lane.is_doubtful = measured.is_guilty
            if measured.is_unsound:
                lane.drop()
            return await self._judge(lane, compiled, measured, output)

    async def _judge(
        self, lane: Lane, compiled: Compiled, measured: replies.Measurement, output: Output
    ) -> TrialResult | None:
        attempt = compiled.attempt
        self._incumbent = requests.Incumbent.after(self._incumbent, measured)
        if measured.outcome is None:
            attempt.life.tell(Event.ARTIFACT_DAMAGED)
            _log.debug("artifact_damaged", artifact=attempt.unit.key, reason=measured.message)
            self._artifacts.discard(attempt.unit.key)
            return None
        event = _EVENTS.get(measured.outcome, Event.DISTURBED_AGAIN)
        if measured.outcome is Outcome.CONTENDED:
            attempt.disturbed += 1
            if attempt.disturbed < CONTENDED_TRIES:
                attempt.life.tell(Event.DISTURBED)
                return None
        if measured.outcome is Outcome.LAUNCH_ERROR:
            # It may have left the process, or the device's context, in any state.
            lane.drop()
            if await self._is_given_back(lane, attempt):
                return None
        return attempt.result(
            event,
            measured.message,
            latency_us=measured.latency_us,
            spread_us=measured.spread_us,
            detail=compiled.detail(TrialDetail.of(measured)),
            output=output,
        )

    def bench(self, lane: Lane) -> Bench:
        """Return the problem that a worker must have opened before it can measure this job's trials on ``lane``."""
        if lane.device.name not in self._benches:
            self._benches[lane.device.name] = self._bench(lane)
        return self._benches[lane.device.name]

    def _bench(self, lane: Lane) -> Bench:
        work = self._work
        # All that decides a problem's data: kernels of one file may share their digest, but not their inputs.
        data = {
            "kernel": work.job.kernel,
            "digest": work.context.digest,
            "problem": dict(work.problem),
            "measuring": work.context.measuring_version,
            "device": work.context.device,
        }
        expected = hashlib.sha256(canonical(data).encode()).hexdigest()
        request = requests.Open(
            kernel=work.kernel_ref,
            problem=work.problem,
            target=work.target,
            device=lane.device,
            captured=work.captured,
            expected=expected,
        )
        identity = canonical({**data, "stamps": dict(work.kernel.stamps)})
        code = KernelCode(work.kernel.file, work.kernel.code_digest)
        return Bench(work.environment, work.kernel.backend, code, identity, request, work.learn)
