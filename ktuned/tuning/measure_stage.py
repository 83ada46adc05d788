"""The measure stage: measures each compiled config of a job, or records why it could not be measured.

*Turns.* A lane belongs to one holder at a time. In one *turn* (:class:`_LaneTurn`) a job holds the lane, opens the
problem on it if necessary, and measures a batch: one request after the other, with as many configs in each as the trial
machine allows. The turn ends when no trial waits, or when one must be tried again after others may have had the lane.
Trials that have no outcome by then take another turn.

*Before a launch* three things are checked. Artifacts that are damaged or gone are compiled again. A config takes over
the outcome of its *twin*, if it has one: a trial of an equal artifact, called alike on equal data. If a lane's device
is sick, another lane of the job stands in, if there is one.

*In a request* the worker measures one config after the other and reports each; a GPU's worker loads the next config
meanwhile. Reports are taken in while the worker measures on. :mod:`~ktuned.tuning.trial_machine` decides what a failure
says about the configs.

*The reference* of the problem may be the output of a config. It must be compiled before a lane opens the problem, and
never while a lane is held: compiling waits for other jobs, which may wait for the lane.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic, time
from typing import Any

import anyio
import msgspec
import structlog
from msgspec.structs import replace

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
from ktuned.model import TrialResult, canonical, needs_metric
from ktuned.store import Artifacts
from ktuned.tuning.batches import HOLD_GPU_S, LANE_S
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.deadlines import shorten_for_trial
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.prior_results import PriorResults
from ktuned.tuning.reference import Reference
from ktuned.tuning.stages import receive_waiting
from ktuned.tuning.trial_lifecycle import Attempt, TrialState
from ktuned.tuning.trial_machine import (
    ArtifactGone,
    Compile,
    ConfigMeasured,
    DeviceTried,
    End,
    EndJob,
    Failure,
    Instruction,
    LaneFacts,
    LaneLeft,
    LaneTook,
    Measure,
    TryDevice,
    TwinFound,
    select_ends,
)

RecordEnds = Callable[[Sequence[End]], Awaitable[None]]
"""Records the ends of trials that came together."""

RequestWithDeadlines = tuple[requests.Request[replies.Measurement, Any], Mapping[str, float]]
"""A request to a lane's worker, and its deadlines."""

MakeRequest = Callable[[Lane, Sequence[Attempt], int | None], RequestWithDeadlines]
"""Returns one request for these trials. The number is the granted cores, if the launch must find out whether they are
enough, and otherwise ``None``."""

FindBest = Callable[[], tuple[float | None, float | None]]
"""Returns the latency of the best config so far, in µs."""


class _Arrived(msgspec.Struct, frozen=True):
    """A measurement as it arrived.

    Attributes:
        measured: The worker's report.
        output: The output that the config had printed by then.
        at: When it arrived, by ``monotonic``.
    """

    measured: replies.Measurement
    output: Output
    at: float


class MeasureStage:
    """Measures one job's configs, one at a time on each of its lanes; other lanes stand in for a sick one.

    Args:
        prior: Finds trials of equal artifacts, whose outcomes are taken over; with ``None`` everything is measured.
    """

    def __init__(
        self,
        brief: JobBrief,
        lanes: Sequence[Lane],
        compiling: CompileStage,
        artifacts: Artifacts,
        prior: PriorResults | None = None,
    ) -> None:
        self.brief = brief
        self.prior = prior
        self.machine = brief.make_trial_machine()
        self._lanes = lanes
        self._compiling = compiling
        self._artifacts = artifacts
        self._benches: dict[tuple[str, int, str], Bench] = {}
        self._incumbent: replies.CostRange | None = None
        self.reference = Reference(brief, compiling, artifacts)

    async def measure_batch(
        self, lane: Lane, batch: Sequence[Attempt], find_best: FindBest, record: RecordEnds
    ) -> None:
        """Measure compiled trials one after the other; each end is recorded as soon as it is known.

        Early stop and the deadlines follow from the best config so far. Configs race against the fastest config that
        *this job* has measured, because an earlier job may have met other clocks. The default is measured in full,
        however slow it is: speed-ups are relative to it.

        Raises:
            CannotOpen: The problem's data cannot be made, so nothing of this job can be measured.
            RequestFailed: With code ``source_changed``.
        """

        def make_request(lane: Lane, attempts: Sequence[Attempt], cores: int | None) -> RequestWithDeadlines:
            return self._make_trial_request(lane, attempts, *find_best(), cores)

        waiting = list(batch)
        while waiting:
            # If another lane can stand in for a sick one, this raises at once; otherwise it waits until the lane works.
            with suppress(LaneSick):
                waiting = await self._take_turn(self._choose_stand_in(lane), waiting, make_request, record)
            waiting = [attempt for attempt in waiting if attempt.outcome is None]

    async def measure_alone(
        self,
        choose_lane: Callable[[], Lane],
        attempt: Attempt,
        request: requests.Request[replies.Measurement, Any],
        deadlines: Mapping[str, float],
        seed: int = 0,
    ) -> TrialResult:
        """Measure a trial by a request of its own, on the inputs of ``seed``, until it has its end.

        Raises:
            CannotOpen: The problem's data cannot be made from this seed.
            LaneSick: The chosen lane's device does not work.
            RequestFailed: With code ``source_changed``.
        """
        ends: list[End] = []

        async def keep_ends(found: Sequence[End]) -> None:
            ends.extend(found)

        while not ends:
            await self._take_turn(choose_lane(), [attempt], lambda *_: (request, deadlines), keep_ends, seed)
        return ends[0].result

    async def _take_turn(
        self, lane: Lane, attempts: Sequence[Attempt], make_request: MakeRequest, record: RecordEnds, seed: int = 0
    ) -> list[Attempt]:
        """Hold a lane once to measure trials; return those that still have no end.

        Raises:
            CannotOpen, LaneSick: The lane cannot be opened.
            RequestFailed: With code ``source_changed``.
        """
        if ends := await self._recompile_lost_artifacts(attempts):
            await record(ends)
        await self.reference.prepare_artifact()
        waiting = [attempt for attempt in attempts if attempt.outcome is None]
        turn = _LaneTurn(self, lane, waiting, make_request, record, seed)
        try:
            await turn.run()
        except ReferenceUnusable as error:
            self.reference.replace_unusable(error)
        return turn.remaining

    async def _recompile_lost_artifacts(self, attempts: Sequence[Attempt]) -> list[End]:
        """Compile damaged or missing artifacts again; return the ends of the trials for which that failed."""
        for attempt in attempts:
            if attempt.is_compiled and not self._artifacts.is_sealed(attempt.unit.key):
                self.machine.handle_report(ArtifactGone(attempt))
        lost = [attempt for attempt in attempts if attempt.state is TrialState.ASKED]
        for attempt in lost:
            self._artifacts.discard_artifact(attempt.unit.key)
        return await self._compiling.compile_attempts(lost) if lost else []

    def choose_well_lane(self) -> Lane:
        """Return the first lane that works, or the first of all if none does."""
        return next((lane for lane in self._lanes if not lane.health.is_sick), self._lanes[0])

    def _find_other_lanes(self, lane: Lane) -> list[Lane]:
        """Return the other lanes that work."""
        return [other for other in self._lanes if other is not lane and not other.health.is_sick]

    def _choose_stand_in(self, lane: Lane) -> Lane:
        """Return another lane that works while this one is sick and not due for a new try; otherwise this one."""
        return next(iter(self._find_other_lanes(lane)), lane) if lane.health.pause_s else lane

    @asynccontextmanager
    async def hold_open_lane(self, lane: Lane, seed: int = 0) -> AsyncIterator[None]:
        """Hold a lane on which :meth:`open_lane` has succeeded."""
        while True:
            await self.reference.prepare_artifact()
            async with lane.hold(self.brief.job.id):
                try:
                    await self.open_lane(lane, seed)
                except ReferenceUnusable as error:
                    self.reference.replace_unusable(error)
                    continue
                yield
                return

    async def open_lane(self, lane: Lane, seed: int = 0, *, is_early: bool = False) -> None:
        """Open the problem on a held lane, with the inputs of ``seed``.

        If all lanes are sick, wait until this one works, unless there is nothing to measure yet (``is_early``).

        Raises:
            CannotOpen: The problem's data cannot be made.
            ReferenceUnusable: The :attr:`reference` must be replaced.
            LaneSick: The lane's device does not work, and another lane's does or ``is_early`` is set.
        """
        has_stand_in = bool(self._find_other_lanes(lane))
        waits = not has_stand_in and not is_early
        await lane.open_problem(
            self.find_bench(lane, seed), self.brief.deadlines, waits=waits, has_stand_in=has_stand_in
        )

    def find_lane_facts(self, lane: Lane) -> LaneFacts:
        """Return the facts about a lane that the trial machine needs."""
        return LaneFacts(lane.device.kind == "cpu", bool(self._find_other_lanes(lane)), lane.is_doubtful)

    async def try_device(self, lane: Lane, attempt: Attempt, seed: int) -> list[Instruction]:
        """Open a lane again after a trial failed on it; return the instructions for the trial."""
        is_sick = False
        try:
            await self.open_lane(lane, seed)
        except LaneSick:
            is_sick = True
        except ReferenceUnusable as error:
            self.reference.replace_unusable(error)
        return self.machine.handle_report(DeviceTried(attempt, is_sick))

    def record_measurement(self, measured: replies.Measurement) -> None:
        """Let later configs race against this one, if it is the fastest."""
        self._incumbent = requests.choose_incumbent(self._incumbent, measured, self.brief.wanted_bits)

    def _make_trial_request(
        self,
        lane: Lane,
        attempts: Sequence[Attempt],
        best_us: float | None,
        best_launch_s: float | None,
        cores: int | None,
    ) -> tuple[requests.Trial, Mapping[str, float]]:
        """Return the request that measures trials together, and its deadlines in s by phase."""
        brief, applications, wanted_bits = self.brief, lane.applications, self.brief.wanted_bits
        if self.machine.is_default(attempts[0]):
            best_us = best_launch_s = None
            # All other configs are compared with an anchor's bits.
            wanted_bits = None if wanted_bits is None else replace(wanted_bits, on_all_inputs=True)
        elif best_us is not None and self._incumbent is not None and not needs_metric(brief.search_objective):
            # The fastest config may not be the best yet: its bits are not known on all inputs.
            best_us = min(best_us, self._incumbent.cost)
        request = requests.Trial(
            tuple(attempt.unit for attempt in attempts),
            brief.preset,
            brief.judge_contention and self.machine.may_be_disturbed(attempts[0], has_application=bool(applications)),
            # By another objective than the latency a slow config may be the best.
            None if best_us is None or needs_metric(brief.search_objective) else best_us * brief.job.plan.early_stop,
            None if best_us is None else self._incumbent,
            cores,
            applications,
            tuple(attempt.known_us for attempt in attempts) if brief.wanted_bits else (),
            # On a CPU the daemon's work on a result would disturb the timing of the next one.
            LANE_S if lane.device.kind == "cpu" else HOLD_GPU_S,
            wanted_bits,
        )
        return request, shorten_for_trial(brief.deadlines, brief.preset, best_launch_s)

    def find_bench(self, lane: Lane, seed: int = 0) -> Bench:
        """Return the problem that a worker on ``lane`` must have open to measure this job's trials."""
        unit = self.reference.unit
        key = lane.device.name, seed, "" if unit is None else unit.key
        if key not in self._benches:
            self._benches[key] = self._make_bench(lane, seed)
        return self._benches[key]

    def _make_bench(self, lane: Lane, seed: int) -> Bench:
        brief = self.brief
        # Everything that decides a problem's data. Kernels of one file may share a digest, but have different inputs.
        data = {
            "kernel": brief.job.kernel,
            "digest": brief.context.digest,
            "problem": dict(brief.problem),
            "measuring": brief.context.measuring_version,
            "device": brief.context.device,
            "seed": seed,
        }
        if brief.kernel.expects_default_outputs:
            data["toolchain"] = brief.context.toolchain
        expected = hashlib.sha256(canonical(data).encode()).hexdigest()
        request = requests.Open(
            kernel=brief.kernel_ref,
            problem=brief.problem,
            target=brief.target,
            device=lane.device,
            expected=expected,
            seed=seed,
            objective=brief.objective,
            reference=self.reference.unit,
        )
        identity = canonical({**data, "stamps": dict(brief.kernel.stamps), "objective": brief.objective})
        code = DATA_CODE if brief.kernel.is_data else KernelCode(brief.kernel.file, brief.kernel.code_digest)
        return Bench(
            brief.find_environment(lane.device), brief.kernel.backend, code, identity, request, brief.learn_names
        )


class _LaneTurn:
    """One hold of a lane, in which a batch is measured, request by request.

    Each trial without an end is in one of three lists: ``_waiting``; ``_in_request`` until it is reported on; or
    ``_later`` if it needs another turn, or must be compiled again first. The turn ends as soon as ``_later`` is not
    empty, so that others may have the lane.
    """

    def __init__(
        self,
        stage: MeasureStage,
        lane: Lane,
        attempts: Sequence[Attempt],
        make_request: MakeRequest,
        record: RecordEnds,
        seed: int,
    ) -> None:
        self._stage = stage
        self._lane = lane
        self._make_request = make_request
        self._seed = seed
        self._record = record
        self._waiting = deque(attempts)
        self._in_request: deque[Attempt] = deque()
        self._items = 0
        self._later: list[Attempt] = []

    @property
    def remaining(self) -> list[Attempt]:
        """The trials without an end, in their order."""
        return [*self._in_request, *self._waiting, *self._later]

    async def run(self) -> None:
        """Measure until nothing waits, or something must wait for another turn.

        Raises:
            CannotOpen, LaneSick, ReferenceUnusable: The lane cannot be opened.
            RequestFailed: With code ``source_changed``.
        """
        async with self._lane.hold(self._stage.brief.job.id):
            while self._waiting and not self._later:
                first = self._waiting[0]
                # A failed trial may have cost the lane its worker, so the lane is opened for each request. That time
                # is recorded apart: it is not a cost of the trial that comes next.
                began = monotonic()
                await self._stage.open_lane(self._lane, self._seed)
                first.open_s += monotonic() - began
                if ends := self._end_known_twins():
                    await self._record(ends)
                    continue
                with structlog.contextvars.bound_contextvars(trial=first.trial):
                    await self._send_request()

    def _end_known_twins(self) -> list[End]:
        """Return the ends of waiting trials that have a twin: equal bytes, called alike, on equal data."""
        ends: list[End] = []
        prior = self._stage.prior
        for attempt in list(self._waiting):
            if prior is None or not attempt.is_compiled or not attempt.files or self._seed or not self._lane.data:
                continue
            attempt.content = self._stage.brief.identify_measurement(attempt.unit.build, attempt.files, self._lane.data)
            twin = prior.find_twin(attempt.content)
            if twin is not None:
                self._waiting.remove(attempt)
                ends += select_ends(self._stage.machine.handle_report(TwinFound(attempt, twin)))
        return ends

    async def _send_request(self) -> None:
        # The machine decides how many of the waiting trials go, and on how many cores.
        stage, lane, machine = self._stage, self._lane, self._stage.machine
        facts = stage.find_lane_facts(lane)
        plan = machine.plan_request(self._waiting, facts)
        granted = await lane.reserve_cores(plan.cores)
        attempts = [self._waiting.popleft() for _ in range(plan.count)]
        self._in_request.extend(attempts)
        # If fewer cores were granted than planned, the launch cannot show whether the planned ones are enough.
        request, deadlines = self._make_request(
            lane, attempts, granted if plan.finds_cores and granted >= plan.cores else None
        )
        # The worker reports on the trials one by one. Afterwards the machine decides about those without a report.
        clock = _LaneClock(lane)
        machine.handle_report(LaneTook(attempts))
        error: Failure | None = None
        try:
            await self._exchange_request(request, deadlines, facts, clock)
        except (WorkerDied, DeadlineExpired, RequestFailed) as raised:
            error = raised
            clock.charge_until(self._in_request[0], monotonic())
        silent = list(self._in_request)
        self._in_request.clear()
        ends = await self._carry_out_instructions(machine.handle_report(LaneLeft(silent, facts, error)))
        if ends:
            await self._record(ends)

    async def _exchange_request(
        self,
        request: requests.Request[replies.Measurement, Any],
        deadlines: Mapping[str, float],
        facts: LaneFacts,
        clock: _LaneClock,
    ) -> None:
        """Send a request, and take its measurements in as they come, while the worker measures on.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: The request failed; what had arrived was taken in.
        """
        count, self._items = len(self._in_request), 0
        if count == 1:
            measured, output = await self._lane.send_request(request, deadlines)
            await self._take_in_measurements([_Arrived(measured, output, monotonic())], facts, clock)
            return
        send, receive = anyio.create_memory_object_stream[_Arrived](count)
        failures: list[Failure] = []

        async def take_in_arrived() -> None:
            async for first in receive:
                await self._take_in_measurements(receive_waiting(first, receive), facts, clock)

        def on_item(measured: replies.Measurement) -> None:
            # Ignore excess reports: user code in the worker may write to pipes that it did not open.
            if self._items < count - 1:
                self._items += 1
                send.send_nowait(_Arrived(measured, self._lane.take_output(), monotonic()))

        async with receive, anyio.create_task_group() as items:
            items.start_soon(take_in_arrived)
            with send:
                try:
                    measured, output = await self._lane.send_request(request, deadlines, on_item=on_item)
                    send.send_nowait(_Arrived(measured, output, monotonic()))
                except (WorkerDied, DeadlineExpired, RequestFailed) as raised:
                    # Raised below: reports that have arrived must be taken in first, and the task group would wrap it.
                    failures.append(raised)
        for failure in failures:
            raise failure

    async def _take_in_measurements(self, arrived: Sequence[_Arrived], facts: LaneFacts, clock: _LaneClock) -> None:
        """Take in the request's next measurements, in order; record the ends that follow from them."""
        await self._lane.pace.wait_for_step()
        ends: list[End] = []
        for one in arrived:
            attempt = self._in_request.popleft()
            if one.measured.seconds is None:
                clock.charge_until(attempt, one.at)
            else:
                clock.charge_seconds(attempt, one.measured.seconds)
            await self._stage.brief.learn_names(one.measured.observed)
            if attempt.content and self._stage.prior is not None:
                attempt.read = await self._stage.prior.store_read_digest()
            anchor, measured = self._stage.brief.anchor, one.measured
            if anchor is not None:
                measured = replace(measured, result=anchor.judge_bits(attempt.config, measured.result))
            self._stage.record_measurement(measured)
            report = ConfigMeasured(attempt, measured.result, one.output, facts)
            ends += await self._carry_out_instructions(self._stage.machine.handle_report(report))
        if ends:
            await self._record(ends)

    async def _carry_out_instructions(self, instructions: Sequence[Instruction]) -> list[End]:
        """Put trials into the lists as the machine says; return the ends that it has decided."""
        ends = select_ends(instructions)
        for instruction in instructions:
            match instruction:
                case Measure(attempts, at_once=True):
                    self._waiting.extendleft(reversed(attempts))
                case Measure(attempts) | Compile(attempts):
                    self._later.extend(attempts)
                case TryDevice(attempt):
                    ends += await self._carry_out_instructions(
                        await self._stage.try_device(self._lane, attempt, self._seed)
                    )
                case EndJob(error):
                    raise error
                case End():
                    pass
        return ends


class _LaneClock:
    """Charges the time of one request to its trials, which are measured one after the other."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._began, self._began_at, self._spent_s = monotonic(), time(), 0.0

    def charge_seconds(self, attempt: Attempt, seconds: float) -> None:
        """Charge the next ``seconds`` to a trial."""
        attempt.lane_s += seconds
        attempt.record_place("lane", self._lane.device.name, self._began_at + self._spent_s)
        self._spent_s += seconds

    def charge_until(self, attempt: Attempt, now: float) -> None:
        """Charge a trial with all time of the request up to ``now`` (``monotonic``) that is not charged yet."""
        self.charge_seconds(attempt, max(0.0, now - self._began - self._spent_s))
