"""From a sealed artifact to a figure, or to the outcome that says why there is none."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import structlog

from ktuned.fleet import Bench, CannotOpen, DeadlineExpired, Lane, LaneSick, Output, RequestFailed, WorkerDied
from ktuned.model import Event, Outcome, TrialResult, canonical
from ktuned.store import Artifacts
from ktuned.tuning.attempt import Attempt, Work
from ktuned.tuning.compile_stage import Compiling
from ktuned.tuning.deadlines import for_trial

_log = structlog.get_logger()

CONTENDED_TRIES = 3
"""How often a trial is measured again when others used the device meanwhile."""

_EVENTS: Mapping[Outcome, Event] = {
    Outcome.MEASURED: Event.TIMED,
    Outcome.SLOWER: Event.STOPPED_EARLY,
    Outcome.MISMATCH: Event.WRONG,
    Outcome.LAUNCH_ERROR: Event.RAISED,
    Outcome.UNSUPPORTED: Event.CANNOT_RUN,
}
_PUBLIC = ("outcome", "message")


class Measuring:
    """Measures one job's configs, one at a time on each of its lanes; what a sick one cannot measure another does."""

    def __init__(self, work: Work, lanes: Sequence[Lane], compiling: Compiling, artifacts: Artifacts) -> None:
        self._work = work
        self._lanes = lanes
        self._compiling = compiling
        self._artifacts = artifacts
        self._preset = dataclasses.asdict(work.preset)
        self._benches: dict[str, Bench] = {}

    async def measure(self, lane: Lane, attempt: Attempt, best_us: float | None) -> TrialResult:
        """Measure a compiled attempt; ``best_us`` is what early stop and the deadlines are told by.

        Raises:
            CannotOpen: the problem's data cannot be made, so nothing of this job can be measured.
            RequestFailed: with code ``source_changed``.
        """
        while True:
            try:
                result = await self._measure_once(self._fit(lane), attempt, best_us)
            except LaneSick:
                continue
            if result is not None:
                return result
            # Others used the device, or killed the worker, and somebody else may have the seat first; or the
            # device failed, or the artifact was damaged.
            if attempt.life.outcome is None and self._artifacts.find(attempt.key) is None:
                ((_, failed),) = await self._compiling.compile([attempt])
                if failed is not None:
                    return failed

    def _others(self, lane: Lane) -> list[Lane]:
        """Return the lanes besides this one that work."""
        return [other for other in self._lanes if other is not lane and not other.health.is_sick]

    def _fit(self, lane: Lane) -> Lane:
        """Return the lane itself, or one that works while it is sick and not yet to be tried again."""
        return next(iter(self._others(lane)), lane) if lane.health.pause_s else lane

    async def open(self, lane: Lane) -> None:
        """Have a lane ready for this job's trials; the caller holds its seat. Where all are sick it waits.

        Raises:
            CannotOpen: the problem's data cannot be made.
            LaneSick: its device does not work, and another lane's does.
        """
        if self._others(lane):
            await self._open_now(lane)
        else:
            await lane.open(self.bench(lane), self._work.deadlines)

    async def open_early(self, lane: Lane) -> None:
        """Have a lane ready before there is anything to measure, unless it is sick; the caller holds its seat.

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
        """Tell whether not a failed attempt but its device is to blame, and leave it to another lane then.

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

    async def _measure_once(self, lane: Lane, attempt: Attempt, best_us: float | None) -> TrialResult | None:
        work = self._work
        deadlines = for_trial(work.deadlines, work.preset, best_us)
        stop_above_us = None if best_us is None else best_us * work.job.plan.early_stop
        async with lane.seat(work.job.id):
            # Opening is the problem's cost, or the take-over's after another trial's failure; not this one's.
            began = monotonic()
            await self.open(lane)
            attempt.open_s += monotonic() - began
            attempt.life.tell(Event.LANE_TAKEN)
            began = monotonic()
            try:
                answer, output = await lane.ask(
                    self.request("trial", lane, attempt, stop_above_us=stop_above_us), deadlines
                )
            except (WorkerDied, DeadlineExpired, RequestFailed) as error:
                attempt.lane_s += monotonic() - began
                is_excused = attempt.excuse_kill(error) or await self._is_given_back(lane, attempt)
                if is_excused:
                    return None
                if isinstance(error, RequestFailed) and error.code == "source_changed":
                    raise
                return attempt.failure(error, expired=Event.EXPIRED, refused=Event.RAISED)
            attempt.lane_s += monotonic() - began
            return await self._judge(lane, attempt, answer, output)

    async def _judge(self, lane: Lane, attempt: Attempt, answer: dict[str, Any], output: Output) -> TrialResult | None:
        if answer["outcome"] is None:
            attempt.life.tell(Event.ARTIFACT_DAMAGED)
            _log.debug("artifact_damaged", artifact=attempt.key, reason=answer["message"])
            self._artifacts.discard(attempt.key)
            return None
        outcome = Outcome(answer["outcome"])
        detail = {key: value for key, value in answer.items() if key not in _PUBLIC}
        if outcome is Outcome.CONTENDED:
            attempt.disturbed += 1
            if attempt.disturbed < CONTENDED_TRIES:
                attempt.life.tell(Event.DISTURBED)
                return None
            return attempt.result(Event.DISTURBED_AGAIN, answer["message"], output=output, **detail)
        if outcome is Outcome.LAUNCH_ERROR:
            # What raised may have left the process, or the device's context, in any state.
            lane.drop()
            if await self._is_given_back(lane, attempt):
                return None
        return attempt.result(_EVENTS[outcome], answer["message"], output=output, **detail)

    def bench(self, lane: Lane) -> Bench:
        """Return what a worker must have opened before it can measure this job's trials on ``lane``."""
        if lane.device.name not in self._benches:
            self._benches[lane.device.name] = self._bench(lane)
        return self._benches[lane.device.name]

    def _bench(self, lane: Lane) -> Bench:
        work = self._work
        data = {
            "digest": work.context.digest,
            "problem": dict(work.problem),
            "measuring": work.context.measuring_version,
            "device": work.context.device,
        }
        expected = hashlib.sha256(canonical(data).encode()).hexdigest()
        request = {
            "op": "open",
            **work.kernel_request(),
            "device": lane.device.to_wire(),
            "captured": work.captured,
            "expected": str(work.scratch / "expected" / f"{expected}.safetensors"),
        }
        identity = canonical({**data, "kernel": work.kernel.name, "stamps": dict(work.kernel.stamps)})
        return Bench(work.environment, work.kernel.backend, identity, request)

    def request(self, op: str, lane: Lane, attempt: Attempt, **more: Any) -> dict[str, Any]:
        """Return a request for a trial, or for timing a finalist again."""
        work = self._work
        return {
            "op": op,
            **work.kernel_request(),
            "unit": attempt.unit(),
            "artifact": str(self._artifacts.place(attempt.key)),
            "preset": self._preset,
            "judge_contention": work.judge_contention,
            **more,
        }
