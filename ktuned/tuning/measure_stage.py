"""From a sealed artifact to a figure, or to the outcome that says why there is none."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import islice, takewhile
from time import monotonic, time

import anyio
import msgspec
import structlog

from ktuned.fleet import (
    DATA_CODE,
    Bench,
    CannotOpen,
    DeadlineExpired,
    KernelCode,
    Lane,
    LaneSick,
    Output,
    ReferenceUnusable,
    RequestFailed,
    WorkerDied,
)
from ktuned.ipc import replies, requests
from ktuned.model import LATENCY, Event, Outcome, Phase, TrialResult, canonical
from ktuned.store import Artifacts
from ktuned.tuning.attempt import Attempt, Compiled, Ended
from ktuned.tuning.batches import HOLD_GPU_S, LANE_S
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.deadlines import for_trial
from ktuned.tuning.reference import Reference
from ktuned.tuning.trial_detail import TrialDetail
from ktuned.tuning.work import Work

_log = structlog.get_logger()

CONTENDED_TRIES = 3
"""Times that a trial is measured while other programs use the device, before it ends as ``contended``.

Beside an application that its tuning is for, the last one counts as it is: that one may be at work for days, and all
configs are measured beside it.
"""

_EVENTS: Mapping[Outcome, Event] = {
    Outcome.MEASURED: Event.TIMED,
    Outcome.SLOWER: Event.STOPPED_EARLY,
    Outcome.MISMATCH: Event.WRONG,
    Outcome.LAUNCH_ERROR: Event.RAISED,
    Outcome.UNSUPPORTED: Event.CANNOT_RUN,
}

_FAILURES = (Outcome.MISMATCH, Outcome.LAUNCH_ERROR)
"""Outcomes of a measurement that a damaged worker may be the reason for."""


Done = Callable[[Sequence[tuple[Attempt, TrialResult]]], Awaitable[None]]
"""Takes attempts' results, those that came together at once."""


class _Arrived(msgspec.Struct, frozen=True):
    """A measurement, what was printed until it came, when that was, and whether it is the last of its request."""

    measured: replies.Measurement
    output: Output
    at: float
    is_last: bool = False


_Take = Callable[[Sequence[_Arrived]], Awaitable[None]]


class MeasureStage:
    """Measures one job's configs, one at a time on each of its lanes; other lanes stand in for a sick one."""

    def __init__(self, work: Work, lanes: Sequence[Lane], compiling: CompileStage, artifacts: Artifacts) -> None:
        self._work = work
        self._lanes = lanes
        self._compiling = compiling
        self._artifacts = artifacts
        self._benches: dict[tuple[str, int, str], Bench] = {}
        self._incumbent: requests.Incumbent | None = None
        self.reference = Reference(work, compiling, artifacts)

    async def measure(
        self, lane: Lane, batch: Sequence[Compiled], best_us: Callable[[], float | None], done: Done
    ) -> None:
        """Measure compiled attempts one after the other; each is ``done`` with its result as soon as that is there.

        Early stop and the deadlines follow from ``best_us``. Configs race against the fastest that this job has
        measured: figures of an earlier hour may be of other clocks. The default is the base of speed-ups: it is
        measured in full, however slow.

        Raises:
            CannotOpen: the problem's data cannot be made, so nothing of this job can be measured.
            RequestFailed: with code ``source_changed``.
        """
        left = deque(batch)
        while left:
            await self.reference.prepare()
            try:
                undecided = await self._measure_some(self._fit(lane), left, best_us, done)
            except ReferenceUnusable as error:
                self.reference.replace(error)
                continue
            except LaneSick:
                continue
            for compiled in undecided:
                # The device was contended or failed, or the worker was killed: another job may have the lane first. Or
                # the artifact was damaged.
                if not self._artifacts.holds(compiled.attempt.unit.key):
                    if compiled.attempt.life.is_compiled:
                        # It was removed since the lane had it.
                        compiled.attempt.life.tell(Event.ARTIFACT_DAMAGED)
                    (again,) = await self._compiling.compile([compiled.attempt])
                    if isinstance(again, Ended):
                        await done([(again.attempt, again.result)])
                        continue
                    compiled = again
                left.append(compiled)

    def _others(self, lane: Lane) -> list[Lane]:
        """Return the lanes besides this one that work."""
        return [other for other in self._lanes if other is not lane and not other.health.is_sick]

    def _fit(self, lane: Lane) -> Lane:
        """Return the lane itself, or one that works while it is sick and not yet to be tried again."""
        return next(iter(self._others(lane)), lane) if lane.health.pause_s else lane

    @asynccontextmanager
    async def holding(self, lane: Lane, seed: int = 0) -> AsyncIterator[None]:
        """Hold a lane that is ready to measure this job's trials, as :meth:`open`."""
        while True:
            await self.reference.prepare()
            async with lane.hold(self._work.job.id):
                try:
                    await self.open(lane, seed)
                except ReferenceUnusable as error:
                    self.reference.replace(error)
                    continue
                yield
                return

    async def open(self, lane: Lane, seed: int = 0) -> None:
        """Have a lane ready to measure this job's trials, on the inputs of a seed; the caller holds it. Where all are
        sick it waits.

        Raises:
            CannotOpen: the problem's data cannot be made.
            ReferenceUnusable: the :attr:`reference` is to be replaced.
            LaneSick: its device does not work, and another lane's does.
        """
        if self._others(lane):
            await self._open_now(lane, seed)
        else:
            await lane.open(self.bench(lane, seed), self._work.deadlines)

    async def open_early(self, lane: Lane) -> None:
        """Have a lane ready before there is anything to measure, unless it is sick; the caller holds it.

        Raises:
            CannotOpen: the problem's data cannot be made.
            ReferenceUnusable: the :attr:`reference` is to be replaced.
        """
        with suppress(LaneSick):
            await self._open_now(lane)

    async def _open_now(self, lane: Lane, seed: int = 0) -> None:
        bench, deadlines = self.bench(lane, seed), self._work.deadlines
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

    async def _measure_some(
        self, lane: Lane, left: deque[Compiled], best_us: Callable[[], float | None], done: Done
    ) -> list[Compiled]:
        """Measure what is ``left``, up to the first that is to be measured again; return that.

        Trials travel together where nothing is decided between them.
        """
        undecided: list[Compiled] = []
        async with lane.hold(self._work.job.id):
            while left and not undecided:
                # Opening is the problem's cost, or the take-over's after another trial's failure; not this one's.
                began = monotonic()
                await self.open(lane)
                left[0].attempt.open_s += monotonic() - began
                with structlog.contextvars.bound_contextvars(trial=left[0].attempt.trial):
                    await self._request(lane, left, best_us(), undecided, done)
        return undecided

    def _measured_together(self, lane: Lane, left: Sequence[Compiled]) -> int:
        """Return how many of the compiled configs are measured in one request to the lane: the default alone, and on a
        CPU those that are known to need as many cores.
        """
        first = left[0].attempt
        alike = list(takewhile(lambda one: not (one.attempt.alone or self._is_default(one.attempt)), left))
        if lane.device.kind == "cpu":
            wanted = first.cores, first.declares_cores
            alike = list(takewhile(lambda one: (one.attempt.cores, one.attempt.declares_cores) == wanted, alike))
        return max(1, len(alike))

    def _is_default(self, attempt: Attempt) -> bool:
        return attempt.config == self._work.kernel.default

    async def _request(
        self, lane: Lane, left: deque[Compiled], best_us: float | None, undecided: list[Compiled], done: Done
    ) -> None:
        """Have the lane's worker measure the first of ``left`` together, and take them out as their results come."""
        work, first = self._work, left[0].attempt
        if self._is_default(first):
            best_us = None
        wanted = first.cores or 1
        granted = await lane.use_cores(wanted)
        # What a damaged worker may be the reason for is tried in another one.
        is_doubtful, lane.is_doubtful = lane.is_doubtful, False
        count = 1 if is_doubtful or first.disturbed else self._measured_together(lane, left)
        # Of one that has what it declares, or all that there is, nothing more can be learned.
        cores = None if lane.device.kind != "cpu" or first.declares_cores or granted < wanted else granted
        request = self._trial(lane, list(islice(left, count)), best_us, cores)
        deadlines = for_trial(work.deadlines, work.preset, best_us)
        error: WorkerDied | DeadlineExpired | RequestFailed | None = None
        began, began_at, spent_s = monotonic(), time(), 0.0

        def spend(attempt: Attempt, seconds: float) -> None:
            nonlocal spent_s
            attempt.lane_s += seconds
            attempt.worked("lane", lane.device.name, began_at + spent_s)
            spent_s += seconds

        async def take(arrived: Sequence[_Arrived]) -> None:
            await lane.pace.step()
            results: list[tuple[Attempt, TrialResult]] = []
            for one in arrived:
                measured, compiled = one.measured, left.popleft()
                known_s = measured.seconds
                spend(compiled.attempt, one.at - began - spent_s if known_s is None else known_s)
                await work.learn(measured.observed)
                if measured.outcome in _FAILURES and compiled.attempt.doubt(is_doubtful=is_doubtful):
                    lane.drop()
                    undecided.append(compiled)
                    continue
                lane.is_doubtful = measured.is_guilty
                if measured.is_unsound:
                    lane.drop()
                result = await self._conclude(lane, compiled, measured, one.output, left, undecided)
                if result is not None:
                    results.append((compiled.attempt, result))
                if not one.is_last:
                    left[0].attempt.life.tell(Event.LANE_TAKEN)
            if results:
                await done(results)

        first.life.tell(Event.LANE_TAKEN)
        try:
            await self._exchange(lane, request, deadlines, take)
        except (WorkerDied, DeadlineExpired, RequestFailed) as raised:
            error = raised
        if error is not None:
            spend(left[0].attempt, max(0.0, monotonic() - began - spent_s))
            if error.phase is Phase.LOAD_NEXT and count > 1:
                if isinstance(error, DeadlineExpired):
                    # A load waits for the device, which this one's launch may keep: alone it is seen which one hangs.
                    first, following = left[0].attempt, left[1].attempt
                    first.alone = following.alone = True
                    first.life.tell(Event.DISTURBED)
                    undecided.append(left.popleft())
                    return
                # The config after it was being loaded, and is to blame.
                left[0].attempt.life.tell(Event.DISTURBED)
                left[1].attempt.life.tell(Event.LANE_TAKEN)
                undecided.append(left.popleft())
            compiled = left.popleft()
            await self._blame(lane, compiled, error, undecided, done, is_doubtful=is_doubtful)

    def _trial(self, lane: Lane, some: Sequence[Compiled], best_us: float | None, cores: int | None) -> requests.Trial:
        work, first = self._work, some[0].attempt
        applications = lane.applications
        is_last_try = bool(applications) and first.disturbed == CONTENDED_TRIES - 1
        return requests.Trial(
            tuple(compiled.attempt.unit for compiled in some),
            work.preset,
            work.judge_contention and not is_last_try,
            # By other objectives a slow config may be a good one.
            best_us * work.job.plan.early_stop if best_us is not None and work.objective == LATENCY else None,
            None if best_us is None else self._incumbent,
            cores,
            applications,
            tuple(compiled.attempt.known_us for compiled in some) if work.needs_energy else (),
            # On a CPU the daemon's work on a result would disturb the timing of the next one.
            LANE_S if lane.device.kind == "cpu" else HOLD_GPU_S,
        )

    async def expect(self, lane: Lane, coming: Sequence[Compiled], best_us: float | None) -> None:
        """Have a GPU's worker prepare for what its lane is to measure next, or begin with it: by what is known now."""
        some = coming[: self._measured_together(lane, coming)]
        best_us = None if self._is_default(some[0].attempt) else best_us
        request = self._trial(lane, some, best_us, None)
        await lane.expect(request, for_trial(self._work.deadlines, self._work.preset, best_us))

    async def _exchange(self, lane: Lane, request: requests.Trial, deadlines: Mapping[str, float], take: _Take) -> None:
        """Send a request, and ``take`` its measurements as they come: while the next one is measured, if there is one.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: as the worker's own exchange.
        """
        count = len(request.units)
        if count == 1:
            measured, output = await lane.exchange(request, deadlines)
            await take([_Arrived(measured, output, monotonic(), is_last=True)])
            return
        send, receive = anyio.create_memory_object_stream[_Arrived](count)
        failure: WorkerDied | DeadlineExpired | RequestFailed | None = None

        async def take_arrived() -> None:
            async for first in receive:
                arrived = [first]
                with suppress(anyio.WouldBlock, anyio.EndOfStream):
                    while True:
                        arrived.append(receive.receive_nowait())
                await take(arrived)

        def on_item(measured: replies.Measurement) -> None:
            # More than were asked for: the worker's code writes to files that it did not open.
            if send.statistics().current_buffer_used < count - 1:
                send.send_nowait(_Arrived(measured, lane.output(), monotonic()))

        async with receive, anyio.create_task_group() as items:
            items.start_soon(take_arrived)
            with send:
                try:
                    measured, output = await lane.exchange(request, deadlines, on_item=on_item)
                    send.send_nowait(_Arrived(measured, output, monotonic(), is_last=True))
                except (WorkerDied, DeadlineExpired, RequestFailed) as raised:
                    failure = raised
        if failure is not None:
            raise failure

    async def _blame(
        self,
        lane: Lane,
        compiled: Compiled,
        error: WorkerDied | DeadlineExpired | RequestFailed,
        undecided: list[Compiled],
        done: Done,
        *,
        is_doubtful: bool,
    ) -> None:
        """Give an attempt the outcome of a failed request, unless it is excused."""
        attempt = compiled.attempt
        if attempt.excuse_kill(error):
            undecided.append(compiled)
            return
        if not isinstance(error, DeadlineExpired) and attempt.doubt(is_doubtful=is_doubtful):
            lane.drop()
            undecided.append(compiled)
            return
        if await self._is_given_back(lane, attempt):
            undecided.append(compiled)
            return
        if isinstance(error, RequestFailed) and error.code == "source_changed":
            raise error
        failure = attempt.failure(error, expired=Event.EXPIRED, refused=Event.RAISED, detail=compiled.detail())
        await done([(attempt, failure)])

    async def _conclude(
        self,
        lane: Lane,
        compiled: Compiled,
        measured: replies.Measurement,
        output: Output,
        left: deque[Compiled],
        undecided: list[Compiled],
    ) -> TrialResult | None:
        """Take a measurement of an attempt; return its result, unless it is tried again."""
        attempt = compiled.attempt
        if measured.outcome is None and measured.cores is not None:
            attempt.cores = measured.cores
            attempt.life.tell(Event.NEEDS_CORES)
            left.appendleft(compiled)
            return None
        result = await self._judge(lane, compiled, measured, output)
        if result is None:
            undecided.append(compiled)
        return result

    async def _judge(
        self, lane: Lane, compiled: Compiled, measured: replies.Measurement, output: Output
    ) -> TrialResult | None:
        attempt = compiled.attempt
        self._incumbent = requests.Incumbent.after(self._incumbent, measured)
        if measured.cores is None:
            measured = replace(measured, cores=attempt.cores)
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

    def bench(self, lane: Lane, seed: int = 0) -> Bench:
        """Return the problem that a worker must have opened before it can measure this job's trials on ``lane``."""
        unit = self.reference.unit
        key = lane.device.name, seed, "" if unit is None else unit.key
        if key not in self._benches:
            self._benches[key] = self._bench(lane, seed)
        return self._benches[key]

    def _bench(self, lane: Lane, seed: int) -> Bench:
        work = self._work
        # All that decides a problem's data: kernels of one file may share their digest, but not their inputs.
        data = {
            "kernel": work.job.kernel,
            "digest": work.context.digest,
            "problem": dict(work.problem),
            "measuring": work.context.measuring_version,
            "device": work.context.device,
            "seed": seed,
        }
        if work.kernel.expects_default_outputs:
            data["toolchain"] = work.context.toolchain
        expected = hashlib.sha256(canonical(data).encode()).hexdigest()
        request = requests.Open(
            kernel=work.kernel_ref,
            problem=work.problem,
            target=work.target,
            device=lane.device,
            captured=work.captured,
            expected=expected,
            seed=seed,
            objective=work.objective,
            needs_energy=work.needs_energy,
            reference=self.reference.unit,
        )
        identity = canonical({**data, "stamps": dict(work.kernel.stamps), "objective": work.objective})
        code = DATA_CODE if work.kernel.is_data else KernelCode(work.kernel.file, work.kernel.code_digest)
        return Bench(work.environment_on(lane.device), work.kernel.backend, code, identity, request, work.learn)
