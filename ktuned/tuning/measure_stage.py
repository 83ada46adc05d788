"""The measure stage: measures each compiled config of a job, or records why it could not be measured.

*Turns.* A lane belongs to one holder at a time. In one *turn* (:class:`_Turn`) a job holds the lane, opens the problem
on it if necessary, and measures a batch: one request after the other, with as many configs in each as the trial machine
allows. The turn ends when no trial waits, or when one must be tried again after others may have had the lane. Trials
that have no outcome by then take another turn.

*Before a launch* three things are checked. Artifacts that are damaged or gone are compiled again. A config takes over
the outcome of its *twin*, if it has one: a trial of an equal artifact, called alike on equal data. If a lane's device
is sick, another lane of the job stands in, if there is one.

*In a request* the worker measures one config after the other and reports each; a GPU's worker loads the next config
meanwhile. Reports are taken in while the worker measures on. :mod:`~ktuned.tuning.trial_machine` decides what a failure
says about the configs.

*The reference* of the problem may be the output of a config (``reference="default"``). It is compiled like every other
config, before a lane opens the problem, and never while a lane is held: compiling waits for other jobs, which may wait
for the lane. The candidates are the declared default, or without a default the first configs of the space. The first
candidate that compiles, and that the device can load, is the reference. If a lane cannot load a candidate, the next
takes its place. A damaged artifact is compiled again, a few times.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic, time
from typing import Any, assert_never

import anyio
import msgspec
import structlog
from msgspec.structs import replace

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
from ktuned.model import FrozenStruct, Outcome, TrialResult, canonical, needs_metric
from ktuned.protocol import Trial
from ktuned.store import Artifacts
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.limits import HOLD_GPU_S, LANE_S, receive_waiting, shorten_for_trial
from ktuned.tuning.prior_results import PriorResults
from ktuned.tuning.trial_machine import (
    ArtifactGone,
    Attempt,
    Compile,
    ConfigMeasured,
    DeviceTried,
    End,
    EndJob,
    Event,
    Failure,
    LaneFacts,
    LaneLeft,
    LaneTook,
    Measure,
    TryDevice,
    TwinFound,
    select_ends,
)

_log = structlog.get_logger()

RecordEnds = Callable[[Sequence[End]], Awaitable[None]]
"""Records the ends of trials that came together."""

RequestWithDeadlines = tuple[requests.Request[replies.Measurement, Any], Mapping[str, float]]
"""A request to a lane's worker, and its deadlines."""

MakeRequest = Callable[[Lane, Sequence[Attempt], int | None], RequestWithDeadlines]
"""Returns one request for these trials. The number is the granted cores, if the launch must find out whether they are
enough, and otherwise ``None``."""

FindBest = Callable[[], tuple[float | None, float | None]]
"""Returns the latency of the best config so far, in µs."""


_MOST_DAMAGED = 3
"""How often one job compiles a damaged artifact again."""


class Reference:
    """One job's reference: :meth:`set_candidates` names the configs, :meth:`prepare_artifact` makes one ready."""

    def __init__(self, brief: JobBrief, compiling: CompileStage, artifacts: Artifacts) -> None:
        self._brief = brief
        self._compiling = compiling
        self._artifacts = artifacts
        self._candidates: list[replies.Proposal] = []
        self._are_proposed = anyio.Event()
        self._turn = anyio.Lock()
        self._reasons: list[str] = []
        self._damaged = 0
        self._wanted = ""
        self.unit: requests.UnitRef | None = None
        """The reference with which lanes open the problem, until another one is prepared."""

    def set_candidates(self, candidates: Sequence[replies.Proposal]) -> None:
        """Name the configs that may be the reference; they are tried in this order."""
        self._candidates = list(candidates)
        self._are_proposed.set()

    async def prepare_artifact(self) -> None:
        """Make sure that the reference's artifact exists, if lanes need one to open the problem.

        The caller must not hold a lane: compiling waits for other jobs, which may wait for the lane.

        Raises:
            CannotOpen: No candidate can be compiled, and loaded by the device.
            WorkerError, StoreError: As :meth:`CompileStage.compile_attempts`.
        """
        if not self._brief.kernel.expects_default_outputs or self._has_artifact():
            return
        await self._are_proposed.wait()
        async with self._turn:
            # Another lane, or the early opening of this one, may have prepared it meanwhile.
            if self._has_artifact():
                return
            while self._candidates:
                proposal = self._candidates[0]
                reason = await self._compile_candidate(proposal)
                if not reason:
                    return
                self._drop_candidate(reason)
        more = f" (and {len(self._reasons) - 1} more cannot run)" if len(self._reasons) > 1 else ""
        kernel = self._brief.kernel
        raise CannotOpen(
            f"{kernel.file}:{kernel.line}: {kernel.kernel}: reference='default', but the default config is "
            f"{self._reasons[0]}{more}",
            hint="give another default, or a reference",
        )

    def _has_artifact(self) -> bool:
        # Names that were learned since then would give the artifact another key, although it is the same. Compiling it
        # again would wait for a slot, and a final round keeps the slots closed.
        return bool(self._wanted) and self._artifacts.is_sealed(self._wanted)

    async def _compile_candidate(self, proposal: replies.Proposal) -> str:
        """Compile a candidate and make it :attr:`unit`; return why that failed, or nothing."""
        if proposal.build is None:
            return f"{proposal.outcome}: {proposal.message}"
        attempt = Attempt(0, proposal.config, self._brief.make_unit(proposal.build))
        for end in await self._compiling.compile_attempts([attempt], is_reference=True):
            return f"{end.result.outcome}: {end.result.message}"
        self.unit = attempt.unit
        self._wanted = attempt.unit.key
        return ""

    def replace_unusable(self, unusable: ReferenceUnusable) -> None:
        """Take note that a lane cannot use an artifact: compile it again if it is damaged, else drop the candidate."""
        if unusable.key != self._wanted:
            # Another lane has reported this already.
            return
        _log.info("reference_unusable", artifact=unusable.key, reason=unusable.message, damaged=unusable.is_damaged)
        if unusable.is_damaged:
            self._damaged += 1
            self._artifacts.discard_artifact(unusable.key)
        if not unusable.is_damaged or self._damaged > _MOST_DAMAGED:
            self._drop_candidate(f"{Outcome.UNSUPPORTED}: {unusable.message}")
        self._wanted = ""

    def _drop_candidate(self, reason: str) -> None:
        self._reasons.append(reason)
        del self._candidates[0]


class _Arrived(FrozenStruct):
    """A measurement as it arrived.

    Attributes:
        measured: The worker's report.
        output: The output that the config had printed by then.
        at: When it arrived, by ``monotonic``.
    """

    measured: replies.Measurement
    output: Output
    at: float


class _Turn(msgspec.Struct, eq=False):
    """One hold of a lane, in which a batch is measured, request by request.

    Each trial without an end is in one of these lists. The turn ends as soon as ``later`` or ``lost`` is not empty, so
    that others may have the lane.

    Attributes:
        lane: The lane.
        seed: The seed of the inputs.
        make_request: Returns one request for some trials.
        record: Records the ends of trials that came together.
        waiting: Trials that wait for a request.
        in_request: Trials of the present request that are not reported on yet.
        later: Trials that need another turn.
        lost: Trials that must be compiled again before another turn.
        began: When the present request began, by ``monotonic``, and as Unix time.
        spent_s: The time of the present request that is charged to trials, which are measured one after the other.
    """

    lane: Lane
    seed: int
    make_request: MakeRequest
    record: RecordEnds
    waiting: deque[Attempt]
    in_request: deque[Attempt] = msgspec.field(default_factory=deque)
    later: list[Attempt] = []
    lost: list[Attempt] = []
    began: tuple[float, float] = (0.0, 0.0)
    spent_s: float = 0.0

    def charge_trial(self, attempt: Attempt, *, seconds: float | None = None, until: float) -> None:
        """Charge the next ``seconds`` of the request to a trial, or else all of its time ``until`` then."""
        began, began_at = self.began
        seconds = max(0.0, until - began - self.spent_s) if seconds is None else seconds
        attempt.lane_s += seconds
        attempt.record_place("lane", self.lane.device.name, began_at + self.spent_s)
        self.spent_s += seconds


class MeasureStage:
    """Measures one job's configs, one at a time on each of its lanes; other lanes stand in for a sick one.

    Args:
        prior: Finds trials of equal artifacts, whose outcomes are taken over; with ``None`` everything is measured.

    Attributes:
        judges_contention: Whether use of the device by other programs ends a trial without a figure.
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
        self._prior = prior
        self._machine = brief.make_trial_machine()
        self.lanes = lanes
        self._compiling = compiling
        self._artifacts = artifacts
        self._benches: dict[tuple[str, int, str], Bench] = {}
        self._incumbent: replies.CostRange | None = None
        self.reference = Reference(brief, compiling, artifacts)
        self.judges_contention = brief.judge_contention

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
        turn = _Turn(lane, seed, make_request, record, deque(attempts))
        for attempt in attempts:
            if attempt.is_compiled and not self._artifacts.is_sealed(attempt.unit.key):
                await self._handle(turn, ArtifactGone(attempt))
        await self._compile_lost_artifacts(turn)
        await self.reference.prepare_artifact()
        turn.waiting = deque(one for one in turn.waiting if one.outcome is None)
        try:
            async with lane.hold(self.brief.job.id):
                while turn.waiting and not (turn.later or turn.lost):
                    first = turn.waiting[0]
                    # A failed trial may have cost the lane its worker, so the lane is opened for each request. That
                    # time is recorded apart: it is not a cost of the trial that comes next.
                    began = monotonic()
                    await self.open_lane(lane, seed)
                    first.open_s += monotonic() - began
                    if ends := self._end_known_twins(turn):
                        await record(ends)
                        continue
                    with structlog.contextvars.bound_contextvars(trial=first.trial):
                        await self._send_request(turn)
        except ReferenceUnusable as error:
            self.reference.replace_unusable(error)
        remaining = [*turn.in_request, *turn.waiting, *turn.later, *turn.lost]
        await self._compile_lost_artifacts(turn)
        return remaining

    async def _compile_lost_artifacts(self, turn: _Turn) -> None:
        """Compile damaged or missing artifacts again; the caller must not hold a lane."""
        lost, turn.lost = turn.lost, []
        for attempt in lost:
            self._artifacts.discard_artifact(attempt.unit.key)
        if lost and (ends := await self._compiling.compile_attempts(lost)):
            await turn.record(ends)

    def choose_well_lane(self) -> Lane:
        """Return the first lane that works, or the first of all if none does.

        Beside an application it is the one that leaves its device for the shortest time, and was used least: so all
        ranks of a program give an equal part of their GPU's time.
        """
        well = [lane for lane in self.lanes if not lane.health.is_sick]
        return min(
            well, key=lambda lane: (lane.pause_s, lane.busy_s if lane.applications else 0.0), default=self.lanes[0]
        )

    def _find_other_lanes(self, lane: Lane) -> list[Lane]:
        """Return the other lanes that work."""
        return [other for other in self.lanes if other is not lane and not other.health.is_sick]

    def _choose_stand_in(self, lane: Lane) -> Lane:
        """Return another lane that works while this one is sick and not due for a new try; otherwise this one."""
        return next(iter(self._find_other_lanes(lane)), lane) if lane.health.pause_s else lane

    @asynccontextmanager
    async def hold_open_lane(self, lane: Lane) -> AsyncIterator[None]:
        """Hold a lane on which :meth:`open_lane` has succeeded."""
        while True:
            await self.reference.prepare_artifact()
            async with lane.hold(self.brief.job.id):
                try:
                    await self.open_lane(lane)
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
        async with self.brief.in_hand.hold_trials(self.brief.job.id):
            await lane.open_problem(
                self.find_bench(lane, seed), self.brief.deadlines, waits=waits, has_stand_in=has_stand_in
            )

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
        if self._machine.is_default(attempts[0]):
            best_us = best_launch_s = None
            # All other configs are compared with an anchor's bits.
            wanted_bits = None if wanted_bits is None else replace(wanted_bits, on_all_inputs=True)
        elif best_us is not None and self._incumbent is not None and not needs_metric(brief.search_objective):
            # The fastest config may not be the best yet: its bits are not known on all inputs.
            best_us = min(best_us, self._incumbent.cost)
        request = requests.Trial(
            tuple(attempt.unit for attempt in attempts),
            brief.preset,
            self.judges_contention and self._machine.may_be_disturbed(attempts[0], has_application=bool(applications)),
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
        if brief.job.plan.is_judged:
            # A worker that has run a config of a tuning may have been changed by it, so it judges nothing.
            code = replace(code, digest=f"judged {code.digest}")
        return Bench(
            brief.find_environment(lane.device), brief.kernel.backend, code, identity, request, brief.learn_names
        )

    def _end_known_twins(self, turn: _Turn) -> list[End]:
        """Return the ends of waiting trials that have a twin: equal bytes, called alike, on equal data."""
        ends: list[End] = []
        if self._prior is None or turn.seed or not turn.lane.data:
            return ends
        for attempt in [one for one in turn.waiting if one.is_compiled and one.files]:
            attempt.inputs = turn.lane.inputs
            attempt.content = self.brief.identify_measurement(attempt.unit.build, attempt.files, turn.lane.data)
            twin = self._prior.find_twin(attempt.content)
            if twin is not None and self._hand_down_tensors(twin, attempt):
                turn.waiting.remove(attempt)
                ends += select_ends(self._machine.handle(TwinFound(attempt, twin)))
        return ends

    def _hand_down_tensors(self, twin: Trial, attempt: Attempt) -> bool:
        """Record the tensors of a twin's measurement with a trial's artifact; return whether that needs no new one."""
        if twin.outcome is not Outcome.MEASURED:
            return True
        return twin.artifact is not None and self._artifacts.copy_tensors(
            twin.artifact, attempt.unit.key, canonical(self.brief.problem)
        )

    async def _send_request(self, turn: _Turn) -> None:
        """Measure as many waiting trials as the machine allows, in one request.

        Raises:
            RequestFailed: With code ``source_changed``.
        """
        lane = turn.lane
        facts = LaneFacts(lane.device.kind == "cpu", bool(self._find_other_lanes(lane)), lane.is_doubtful)
        plan = self._machine.plan_request(turn.waiting, facts)
        granted = await lane.reserve_cores(plan.cores)
        attempts = [turn.waiting.popleft() for _ in range(plan.count)]
        turn.in_request.extend(attempts)
        # If fewer cores were granted than planned, the launch cannot show whether the planned ones are enough.
        request, deadlines = turn.make_request(
            lane, attempts, granted if plan.finds_cores and granted >= plan.cores else None
        )
        # The worker reports on the trials one by one. Afterwards the machine decides about those without a report.
        turn.began, turn.spent_s = (monotonic(), time()), 0.0
        await self._handle(turn, LaneTook(attempts))
        error: Failure | None = None
        try:
            async with self.brief.in_hand.hold_trials(self.brief.job.id, [attempt.trial for attempt in attempts]):
                await self._exchange_request(turn, request, deadlines, facts)
        except (WorkerDied, DeadlineExpired, RequestFailed) as raised:
            error = raised
            turn.charge_trial(turn.in_request[0], until=monotonic())
        silent = list(turn.in_request)
        turn.in_request.clear()
        if ends := await self._handle(turn, LaneLeft(silent, facts, error)):
            await turn.record(ends)

    async def _exchange_request(
        self,
        turn: _Turn,
        request: requests.Request[replies.Measurement, Any],
        deadlines: Mapping[str, float],
        facts: LaneFacts,
    ) -> None:
        """Send a request, and take its measurements in as they come, while the worker measures on.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: The request failed; what had arrived was taken in.
        """
        count, lane = len(turn.in_request), turn.lane
        if count == 1:
            measured, output = await lane.send_request(request, deadlines)
            await self._take_in_measurements(turn, [_Arrived(measured, output, monotonic())], facts)
            return
        send, receive = anyio.create_memory_object_stream[_Arrived](count)
        failures: list[Failure] = []

        async def take_in_arrived() -> None:
            async for first in receive:
                await self._take_in_measurements(turn, receive_waiting(first, receive), facts)

        places = iter(range(count - 1))

        def on_item(measured: replies.Measurement) -> None:
            # Ignore excess reports: user code in the worker may write to pipes that it did not open.
            if next(places, None) is not None:
                send.send_nowait(_Arrived(measured, lane.take_output(), monotonic()))

        async with receive, anyio.create_task_group() as items:
            items.start_soon(take_in_arrived)
            with send:
                try:
                    measured, output = await lane.send_request(request, deadlines, on_item=on_item)
                    send.send_nowait(_Arrived(measured, output, monotonic()))
                except (WorkerDied, DeadlineExpired, RequestFailed) as raised:
                    # Raised below: reports that have arrived must be taken in first, and the task group would wrap it.
                    failures.append(raised)
        for failure in failures:
            raise failure

    async def _take_in_measurements(self, turn: _Turn, arrived: Sequence[_Arrived], facts: LaneFacts) -> None:
        """Take in the request's next measurements, in order; record the ends that follow from them."""
        await turn.lane.pace.wait_for_step()
        brief, ends = self.brief, list[End]()
        for one in arrived:
            attempt, measured = turn.in_request.popleft(), one.measured
            turn.charge_trial(attempt, seconds=measured.seconds, until=one.at)
            if measured.leftover:
                _log.info("worker_spent", device=turn.lane.device.name, trial=attempt.trial, reason=measured.leftover)
            await brief.learn_names(measured.observed)
            if attempt.content and self._prior is not None:
                attempt.read = await self._prior.store_read_digest()
            if brief.anchor is not None:
                measured = replace(measured, result=brief.anchor.judge_bits(attempt.config, measured.result))
            # Later configs race against this one, if it is the fastest.
            self._incumbent = requests.choose_incumbent(self._incumbent, measured, brief.wanted_bits)
            ends += await self._handle(turn, ConfigMeasured(attempt, measured.result, one.output, facts))
        if ends:
            await turn.record(ends)

    async def _handle(self, turn: _Turn, event: Event) -> list[End]:
        """Give the machine an event and carry out its instructions; return the ends that it has decided.

        Raises:
            RequestFailed: With code ``source_changed``.
        """
        ends: list[End] = []
        for instruction in self._machine.handle(event):
            match instruction:
                case Measure(attempts, at_once=True):
                    turn.waiting.extendleft(reversed(attempts))
                case Measure(attempts):
                    turn.later.extend(attempts)
                case Compile(attempts):
                    turn.lost.extend(attempts)
                case TryDevice(attempt):
                    is_sick = False
                    try:
                        await self.open_lane(turn.lane, turn.seed)
                    except LaneSick:
                        is_sick = True
                    except ReferenceUnusable as error:
                        self.reference.replace_unusable(error)
                    ends += await self._handle(turn, DeviceTried(attempt, is_sick))
                case EndJob(error):
                    raise error
                case End():
                    ends.append(instruction)
                case _:
                    assert_never(instruction)
        return ends
