"""From a sealed artifact to a figure, or to the outcome that says why there is none."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from time import monotonic, time
from typing import Any

import anyio
import msgspec
import structlog

from ktuned.fleet import (
    DATA_CODE,
    Bench,
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
from ktuned.model import TrialResult, canonical, is_latency
from ktuned.store import Artifacts
from ktuned.tuning.batches import HOLD_GPU_S, LANE_S
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.deadlines import for_trial
from ktuned.tuning.prior_results import PriorResults
from ktuned.tuning.reference import Reference
from ktuned.tuning.trial_lifecycle import Attempt, TrialState
from ktuned.tuning.trial_machine import (
    ArtifactGone,
    Compile,
    ConfigMeasured,
    DeviceTried,
    End,
    EndJob,
    Instruction,
    LaneFacts,
    LaneLeft,
    LaneTook,
    Measure,
    TryDevice,
    TwinFound,
    ends_among,
)
from ktuned.tuning.work import Work

_log = structlog.get_logger()

Record = Callable[[Sequence[End]], Awaitable[None]]
"""Records the ends of trials, those that came together at once."""

Asked = tuple[requests.Request[replies.Measurement, Any], Mapping[str, float]]
"""A request to a lane's worker, and its deadlines."""

Ask = Callable[[Lane, Sequence[Attempt], int | None], Asked]
"""Returns what a lane is asked about trials that travel together; on a CPU it may have to find out their cores."""

BestUs = Callable[[], float | None]
"""Returns the latency (µs) of the best config so far."""


class _Arrived(msgspec.Struct, frozen=True):
    """A measurement, what was printed until it came, and when that was."""

    measured: replies.Measurement
    output: Output
    at: float


class MeasureStage:
    """Measures one job's configs, one at a time on each of its lanes; other lanes stand in for a sick one.

    What was measured before, in another state of the sources, is taken over from ``prior`` results.
    """

    def __init__(
        self,
        work: Work,
        lanes: Sequence[Lane],
        compiling: CompileStage,
        artifacts: Artifacts,
        prior: PriorResults | None = None,
    ) -> None:
        self.work = work
        self.prior = prior
        self.machine = work.trial_machine()
        self._lanes = lanes
        self._compiling = compiling
        self._artifacts = artifacts
        self._benches: dict[tuple[str, int, str], Bench] = {}
        self._incumbent: requests.Incumbent | None = None
        self.reference = Reference(work, compiling, artifacts)

    async def measure(self, lane: Lane, batch: Sequence[Attempt], best_us: BestUs, record: Record) -> None:
        """Measure compiled trials one after the other; each end is recorded as soon as it is there.

        Early stop and the deadlines follow from ``best_us``. Configs race against the fastest that this job has
        measured: figures of an earlier hour may be of other clocks. The default is the base of speed-ups: it is
        measured in full, however slow.

        Raises:
            CannotOpen: the problem's data cannot be made, so nothing of this job can be measured.
            RequestFailed: with code ``source_changed``.
        """

        def ask(lane: Lane, attempts: Sequence[Attempt], cores: int | None) -> Asked:
            return self._trial_request(lane, attempts, best_us(), cores)

        waiting = list(batch)
        while waiting:
            # Where one is sick another one stands in, or it is waited for.
            with suppress(LaneSick):
                waiting = await self._take_turn(self._stand_in(lane), waiting, ask, record)
            waiting = [attempt for attempt in waiting if attempt.outcome is None]

    async def measure_alone(
        self,
        choose_lane: Callable[[], Lane],
        attempt: Attempt,
        request: requests.Request[replies.Measurement, Any],
        deadlines: Mapping[str, float],
        seed: int = 0,
    ) -> TrialResult:
        """Measure a trial by a request of its own, on the inputs of a seed, until it has its end.

        Raises:
            CannotOpen: the problem's data cannot be made of this seed.
            LaneSick: the chosen lane's device does not work.
            RequestFailed: with code ``source_changed``.
        """
        ends: list[End] = []

        async def keep(found: Sequence[End]) -> None:
            ends.extend(found)

        while not ends:
            await self._take_turn(choose_lane(), [attempt], lambda *_: (request, deadlines), keep, seed)
        return ends[0].result

    async def _take_turn(
        self, lane: Lane, attempts: Sequence[Attempt], ask: Ask, record: Record, seed: int = 0
    ) -> list[Attempt]:
        """Hold a lane once to measure trials; return those that are still to end.

        Raises:
            CannotOpen, LaneSick: the lane cannot be opened.
            RequestFailed: with code ``source_changed``.
        """
        if ends := await self._recompile_lost(attempts):
            await record(ends)
        await self.reference.prepare()
        waiting = [attempt for attempt in attempts if attempt.outcome is None]
        turn = _LaneTurn(self, lane, waiting, ask, record, seed)
        try:
            await turn.run()
        except ReferenceUnusable as error:
            self.reference.replace(error)
        return turn.remaining

    async def _recompile_lost(self, attempts: Sequence[Attempt]) -> list[End]:
        """Have those compiled again whose artifacts are damaged or gone; return the ends of those that cannot be."""
        for attempt in attempts:
            if attempt.is_compiled and not self._artifacts.is_sealed(attempt.unit.key):
                self.machine.handle(ArtifactGone(attempt))
        lost = [attempt for attempt in attempts if attempt.state is TrialState.ASKED]
        for attempt in lost:
            self._artifacts.discard_artifact(attempt.unit.key)
        return await self._compiling.compile(lost) if lost else []

    def choose_well_lane(self) -> Lane:
        """Return a lane that works, or the first one where none does."""
        return next((lane for lane in self._lanes if not lane.health.is_sick), self._lanes[0])

    def _others(self, lane: Lane) -> list[Lane]:
        """Return the lanes besides this one that work."""
        return [other for other in self._lanes if other is not lane and not other.health.is_sick]

    def _stand_in(self, lane: Lane) -> Lane:
        """Return the lane itself, or one that works while it is sick and not yet to be tried again."""
        return next(iter(self._others(lane)), lane) if lane.health.pause_s else lane

    @asynccontextmanager
    async def holding(self, lane: Lane, seed: int = 0) -> AsyncIterator[None]:
        """Hold a lane that is ready to measure this job's trials, as :meth:`open`."""
        while True:
            await self.reference.prepare()
            async with lane.hold(self.work.job.id):
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
        has_stand_in = bool(self._others(lane))
        bench, deadlines = self.bench(lane, seed), self.work.deadlines
        await lane.open(bench, deadlines, waits=not has_stand_in, has_stand_in=has_stand_in)

    async def open_early(self, lane: Lane) -> None:
        """Have a lane ready before there is anything to measure, unless it is sick; the caller holds it.

        Raises:
            CannotOpen: the problem's data cannot be made.
            ReferenceUnusable: the :attr:`reference` is to be replaced.
        """
        with suppress(LaneSick):
            has_stand_in = bool(self._others(lane))
            await lane.open(self.bench(lane), self.work.deadlines, waits=False, has_stand_in=has_stand_in)

    def find_facts(self, lane: Lane) -> LaneFacts:
        """Return what the machine is to know of a lane."""
        return LaneFacts(lane.device.kind == "cpu", bool(self._others(lane)), lane.is_doubtful)

    async def try_device(self, lane: Lane, attempt: Attempt, seed: int) -> list[Instruction]:
        """Open a lane again on which a trial has failed; return what becomes of that."""
        is_sick = False
        try:
            await self.open(lane, seed)
        except LaneSick:
            is_sick = True
        except ReferenceUnusable as error:
            self.reference.replace(error)
        return self.machine.handle(DeviceTried(attempt, is_sick))

    def note_measured(self, measured: replies.Measurement) -> None:
        """Let later configs race against this one, if it is the fastest."""
        self._incumbent = requests.Incumbent.choose_lower(self._incumbent, measured, self.work.wanted_bits)

    def _trial_request(
        self, lane: Lane, attempts: Sequence[Attempt], best_us: float | None, cores: int | None
    ) -> tuple[requests.Trial, Mapping[str, float]]:
        """Return the request that measures trials together, and its deadlines."""
        work, applications, wanted_bits = self.work, lane.applications, self.work.wanted_bits
        if self.machine.is_default(attempts[0]):
            best_us = None
            # Those of an anchor are what all others are compared with.
            wanted_bits = None if wanted_bits is None else replace(wanted_bits, on_all_inputs=True)
        elif best_us is not None and self._incumbent is not None and is_latency(work.objective):
            # The bits of the fastest are not known on all inputs yet.
            best_us = min(best_us, self._incumbent.cost)
        request = requests.Trial(
            tuple(attempt.unit for attempt in attempts),
            work.preset,
            work.judge_contention and self.machine.may_be_disturbed(attempts[0], has_application=bool(applications)),
            # By other objectives a slow config may be a good one.
            best_us * work.job.plan.early_stop if best_us is not None and is_latency(work.objective) else None,
            None if best_us is None else self._incumbent,
            cores,
            applications,
            tuple(attempt.known_us for attempt in attempts) if work.needs_energy or work.wanted_bits else (),
            # On a CPU the daemon's work on a result would disturb the timing of the next one.
            LANE_S if lane.device.kind == "cpu" else HOLD_GPU_S,
            wanted_bits,
        )
        return request, for_trial(work.deadlines, work.preset, best_us)

    def bench(self, lane: Lane, seed: int = 0) -> Bench:
        """Return the problem that a worker must have opened before it can measure this job's trials on ``lane``."""
        unit = self.reference.unit
        key = lane.device.name, seed, "" if unit is None else unit.key
        if key not in self._benches:
            self._benches[key] = self._bench(lane, seed)
        return self._benches[key]

    def _bench(self, lane: Lane, seed: int) -> Bench:
        work = self.work
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


class _LaneTurn:
    """One hold of a lane, in which it measures what waits, request by request.

    It ends when nothing waits any more, or a trial is to be tried again after others may have had the lane. What then
    still has no end is ``remaining``.
    """

    def __init__(
        self, stage: MeasureStage, lane: Lane, attempts: Sequence[Attempt], ask: Ask, record: Record, seed: int
    ) -> None:
        self._stage = stage
        self._lane = lane
        self._ask = ask
        self._seed = seed
        self._record = record
        self._waiting = deque(attempts)
        self._in_request: deque[Attempt] = deque()
        self._items = 0
        self._later: list[Attempt] = []

    @property
    def remaining(self) -> list[Attempt]:
        """The trials without an end."""
        return [*self._in_request, *self._waiting, *self._later]

    async def run(self) -> None:
        """Measure.

        Raises:
            CannotOpen, LaneSick, ReferenceUnusable: the lane cannot be opened.
            RequestFailed: with code ``source_changed``.
        """
        async with self._lane.hold(self._stage.work.job.id):
            while self._waiting and not self._later:
                first = self._waiting[0]
                # Opening is the problem's cost, or the take-over's after another trial's failure; not this one's.
                began = monotonic()
                await self._stage.open(self._lane, self._seed)
                first.open_s += monotonic() - began
                if ends := self._carry_over():
                    await self._record(ends)
                    continue
                with structlog.contextvars.bound_contextvars(trial=first.trial):
                    await self._send_request()

    def _carry_over(self) -> list[End]:
        """Return the ends of those that wait whose figure is known: of equal bytes, called alike, on equal data."""
        ends: list[End] = []
        prior = self._stage.prior
        for attempt in list(self._waiting):
            if prior is None or not attempt.is_compiled or not attempt.files or self._seed or not self._lane.data:
                continue
            attempt.content = self._stage.work.measured_content(attempt.unit.build, attempt.files, self._lane.data)
            twin = prior.find_twin(attempt.content)
            if twin is not None:
                self._waiting.remove(attempt)
                ends += ends_among(self._stage.machine.handle(TwinFound(attempt, twin)))
        return ends

    async def _send_request(self) -> None:
        stage, lane, machine = self._stage, self._lane, self._stage.machine
        facts = stage.find_facts(lane)
        plan = machine.plan_request(self._waiting, facts)
        granted = await lane.use_cores(plan.cores)
        attempts = [self._waiting.popleft() for _ in range(plan.count)]
        self._in_request.extend(attempts)
        # Where there are fewer than it wants, nothing more can be found.
        request, deadlines = self._ask(lane, attempts, granted if plan.finds_cores and granted >= plan.cores else None)
        clock = _LaneClock(lane)
        machine.handle(LaneTook(attempts))
        error: WorkerDied | DeadlineExpired | RequestFailed | None = None
        try:
            await self._exchange(request, deadlines, facts, clock)
        except (WorkerDied, DeadlineExpired, RequestFailed) as raised:
            error = raised
            clock.spend_until(self._in_request[0], monotonic())
        silent = list(self._in_request)
        self._in_request.clear()
        ends = await self._carry_out(machine.handle(LaneLeft(silent, facts, error)))
        if ends:
            await self._record(ends)

    async def _exchange(
        self,
        request: requests.Request[replies.Measurement, Any],
        deadlines: Mapping[str, float],
        facts: LaneFacts,
        clock: _LaneClock,
    ) -> None:
        """Send a request, and take its measurements as they come: while the next one is measured, if there is one.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: as the worker's own exchange.
        """
        count, self._items = len(self._in_request), 0
        if count == 1:
            measured, output = await self._lane.exchange(request, deadlines)
            await self._take([_Arrived(measured, output, monotonic())], facts, clock)
            return
        send, receive = anyio.create_memory_object_stream[_Arrived](count)
        failures: list[WorkerDied | DeadlineExpired | RequestFailed] = []

        async def take_arrived() -> None:
            async for first in receive:
                arrived = [first]
                with suppress(anyio.WouldBlock, anyio.EndOfStream):
                    while True:
                        arrived.append(receive.receive_nowait())
                await self._take(arrived, facts, clock)

        def on_item(measured: replies.Measurement) -> None:
            # More than were asked for: the worker's code writes to files that it did not open.
            if self._items < count - 1:
                self._items += 1
                send.send_nowait(_Arrived(measured, self._lane.output(), monotonic()))

        async with receive, anyio.create_task_group() as items:
            items.start_soon(take_arrived)
            with send:
                try:
                    measured, output = await self._lane.exchange(request, deadlines, on_item=on_item)
                    send.send_nowait(_Arrived(measured, output, monotonic()))
                except (WorkerDied, DeadlineExpired, RequestFailed) as raised:
                    # Raised outside: what has arrived is taken first, and a group would wrap it.
                    failures.append(raised)
        for failure in failures:
            raise failure

    async def _take(self, arrived: Sequence[_Arrived], facts: LaneFacts, clock: _LaneClock) -> None:
        """Take in measurements of the request's first trials, in their order."""
        await self._lane.pace.step()
        ends: list[End] = []
        for one in arrived:
            attempt = self._in_request.popleft()
            if one.measured.seconds is None:
                clock.spend_until(attempt, one.at)
            else:
                clock.spend(attempt, one.measured.seconds)
            await self._stage.work.learn(one.measured.observed)
            if attempt.content and self._stage.prior is not None:
                attempt.read = await self._stage.prior.keep_read()
            anchor, measured = self._stage.work.anchor, one.measured
            if anchor is not None:
                measured = anchor.judge(attempt.config, measured)
            self._stage.note_measured(measured)
            report = ConfigMeasured(attempt, measured, one.output, facts)
            ends += await self._carry_out(self._stage.machine.handle(report))
        if ends:
            await self._record(ends)

    async def _carry_out(self, instructions: Sequence[Instruction]) -> list[End]:
        """Do what the machine says; return the ends that it has decided."""
        ends = ends_among(instructions)
        for instruction in instructions:
            match instruction:
                case Measure(attempts, at_once=True):
                    self._waiting.extendleft(reversed(attempts))
                case Measure(attempts) | Compile(attempts):
                    self._later.extend(attempts)
                case TryDevice(attempt):
                    ends += await self._carry_out(await self._stage.try_device(self._lane, attempt, self._seed))
                case EndJob(error):
                    raise error
                case End():
                    pass
        return ends


class _LaneClock:
    """Shares the time of one request among its trials, of which one is at work at a time."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._began, self._began_at, self._spent_s = monotonic(), time(), 0.0

    def spend(self, attempt: Attempt, seconds: float) -> None:
        """Charge the next so many seconds to a trial."""
        attempt.lane_s += seconds
        attempt.note_place("lane", self._lane.device.name, self._began_at + self._spent_s)
        self._spent_s += seconds

    def spend_until(self, attempt: Attempt, now: float) -> None:
        """Charge all that has not been charged yet to a trial; ``now`` by ``monotonic``."""
        self.spend(attempt, max(0.0, now - self._began - self._spent_s))
