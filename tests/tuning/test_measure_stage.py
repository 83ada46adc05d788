"""What becomes of a trial if its device fails."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace

from ktuned.fleet.failures import CannotOpen, Health, LaneSick, Output, WorkerDied
from ktuned.fleet.lane_machine import Bench
from ktuned.fleet.lanes import Lane
from ktuned.fleet.quiet import Pace
from ktuned.ipc import replies, requests
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, KernelName, Phase, Target
from ktuned.model.values import Outcome
from ktuned.store.artifacts import Artifacts
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.final_round import SEEDS
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.limits import DEFAULT_DEADLINES
from ktuned.tuning.measure_stage import MeasureStage, Reference
from ktuned.tuning.trial_machine import (
    ArtifactFound,
    Attempt,
    CompilerTook,
    ConfigCompiled,
    End,
    TrialEvent,
    TrialMachine,
)
from tests.daemon_parts import Parts, make_kernel_text
from tests.fake_tensors import REFERENCE
from tests.trials import make_measurement
from tests.tuning.test_attempt import BRIEF

pytestmark = pytest.mark.anyio

MEASURED = make_measurement(Outcome.MEASURED, latency_us=5.0, spread_us=0.1)
REFUSED = make_measurement(Outcome.LAUNCH_ERROR, "the launch was refused")
DIED = WorkerDied(-signal.SIGSEGV, Phase.FIRST_LAUNCH, Output())
WRONG = make_measurement(Outcome.MISMATCH, "y is wrong", Phase.CHECK)
CONTENDED = make_measurement(Outcome.CONTENDED, "other programs used it")
CANNOT_OPEN = CannotOpen("no such device")
SICK = LaneSick("the canary failed")


class FakeLane:
    """A lane with listed openings and answers; the last of each repeats."""

    def __init__(self, name: str, answers: Sequence[Any], openings: Sequence[Exception | None] = (None,)) -> None:
        self.device = Device(DeviceName(name), DeviceModel("x"), Target("native"))
        self.health = Health()
        self.pace = Pace()
        self.openings = self.requested_units = self.drops = 0
        self.data = ""
        self.is_doubtful = False
        self.applications: tuple[int, ...] = ()
        self.pause_s = self.busy_s = 0.0
        self.granted_cores: list[int] = []
        self.requests: list[requests.Trial] = []
        self._answers, self._openings = list(answers), list(openings)

    @asynccontextmanager
    async def hold(self, job: int) -> AsyncIterator[None]:
        """Lend the lane at once."""
        yield

    async def open_problem(self, bench: Bench, deadlines: Mapping[str, float], **others: bool) -> None:
        """Open the problem or fail, as listed."""
        self.openings += 1
        opening = self._openings.pop(0) if len(self._openings) > 1 else self._openings[0]
        if isinstance(opening, LaneSick):
            self.health.record_failure(opening.message)
        if opening is not None:
            raise opening

    async def reserve_cores(self, cores: int) -> int:
        self.granted_cores.append(cores)
        return cores

    async def send_request(
        self,
        request: requests.Trial,
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[replies.Measurement], None] | None = None,
    ) -> tuple[Any, Output]:
        """Answer for each unit or raise, as listed."""
        self.requests.append(request)
        for artifact in range(len(request.units)):
            self.requested_units += 1
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            if isinstance(answer, Exception):
                self.drop()
                raise answer
            is_batch_over = answer.result.outcome is Outcome.LAUNCH_ERROR or answer.is_guilty or answer.is_unsound
            if is_batch_over or artifact == len(request.units) - 1:
                break
            assert on_item is not None
            on_item(answer)
        was_doubtful, self.is_doubtful = self.is_doubtful, answer.is_guilty
        failed_in_doubt = was_doubtful and answer.result.outcome is Outcome.MISMATCH
        if answer.is_unsound or failed_in_doubt or answer.result.outcome is Outcome.LAUNCH_ERROR:
            self.drop()
        return answer, Output()

    def take_output(self) -> Output:
        """Return no output: no worker runs."""
        return Output()

    def drop(self) -> None:
        """Count the loss of the worker."""
        self.drops += 1
        self.is_doubtful = False


class FakeCompileStage:
    """A compile stage whose artifacts can be removed."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self.compiled: list[str] = []

    def remove_all(self) -> None:
        shutil.rmtree(self._artifacts.locate_artifact("ab").parent)

    async def compile_attempts(self, attempts: Sequence[Attempt]) -> list[End]:
        """Make the attempts' artifacts."""
        machine = TrialMachine()
        machine.handle(CompilerTook(attempts))
        for attempt in attempts:
            self.compiled.append(attempt.unit.key)
            self._artifacts.locate_artifact(attempt.unit.key).mkdir(parents=True)
            (self._artifacts.locate_artifact(attempt.unit.key) / "manifest.json").touch()
            machine.handle(ConfigCompiled(attempt))
        return []


async def measure_attempts(
    tmp_path: Path,
    attempts: Sequence[Attempt],
    *lanes: FakeLane,
    brief: JobBrief = BRIEF,
    recorded_counts: list[int] | None = None,
    compile_stage: FakeCompileStage | None = None,
) -> list[Outcome]:
    """Measure compiled attempts that the first lane took; return their outcomes in the order of their ends."""
    fake_lanes = cast("Sequence[Lane]", lanes)
    artifacts = Artifacts(tmp_path, 1)
    outcomes: list[Outcome] = []
    for attempt in attempts:
        artifact = artifacts.locate_artifact(attempt.unit.key)
        artifact.mkdir(parents=True)
        (artifact / "manifest.json").touch()
        TrialMachine().handle(ArtifactFound(attempt))

    async def record_ends(is_batch_over: Sequence[End]) -> None:
        outcomes.extend(end.result.outcome for end in is_batch_over if end.result.outcome is not None)
        if recorded_counts is not None:
            recorded_counts.append(len(is_batch_over))

    measure_stage = MeasureStage(
        msgspec.structs.replace(brief, deadlines=DEFAULT_DEADLINES),
        fake_lanes,
        cast("CompileStage", compile_stage),
        artifacts,
    )
    await measure_stage.measure_batch(fake_lanes[0], attempts, lambda: (5.0, 5e-6), record_ends)
    return outcomes


async def measure_one(tmp_path: Path, *lanes: FakeLane) -> tuple[Outcome, Attempt]:
    """Measure one compiled attempt that the first lane took."""
    attempt = Attempt(1, {}, requests.UnitRef("ab", {}))
    (outcome,) = await measure_attempts(tmp_path, [attempt], *lanes)
    return outcome, attempt


def make_attempts(count: int) -> list[Attempt]:
    """Return attempts at different configs."""
    return [Attempt(number, {"x": number}, requests.UnitRef(f"{number:02}", {})) for number in range(1, count + 1)]


def test_lanes_beside_an_application_take_turns(tmp_path: Path) -> None:
    """The one that need not wait, and was used least. Without an application it is always the first one that works."""
    lanes = [FakeLane(f"cuda:{number}", [MEASURED]) for number in range(3)]
    stage = MeasureStage(
        BRIEF, cast("Sequence[Lane]", lanes), cast("CompileStage", FakeCompileStage), Artifacts(tmp_path, 1)
    )
    lanes[0].busy_s = 9.0
    assert stage.choose_well_lane() is lanes[0]
    for lane in lanes:
        lane.applications = (7,)
    assert stage.choose_well_lane() is lanes[1]
    lanes[1].pause_s, lanes[2].busy_s = 5.0, 3.0
    assert stage.choose_well_lane() is lanes[2]
    lanes[2].health.record_failure("it is sick")
    assert stage.choose_well_lane() is lanes[0]


async def test_trials_on_a_gpu_share_a_request(tmp_path: Path) -> None:
    """Each config has its own outcome, from its own answer."""
    lane = FakeLane("cuda:0", [MEASURED, WRONG, MEASURED])
    attempts = make_attempts(3)
    outcomes = await measure_attempts(tmp_path, attempts, lane)
    assert outcomes == [Outcome.MEASURED, Outcome.MISMATCH, Outcome.MEASURED]
    assert [len(request.units) for request in lane.requests] == [3]
    assert [attempt.story[-2] for attempt in attempts] == [TrialEvent.LANE_TAKEN] * 3


async def test_trials_on_a_cpu_share_a_request(tmp_path: Path) -> None:
    """Results are held back until the last one, because recording one would disturb the next timing."""
    lane = FakeLane("cpu:0", [MEASURED])
    assert await measure_attempts(tmp_path, make_attempts(3), lane) == [Outcome.MEASURED] * 3
    assert [len(request.units) for request in lane.requests] == [3]
    assert lane.requests[0].hold_s >= 0.5


async def test_trials_with_other_cores_have_requests_of_their_own(tmp_path: Path) -> None:
    """A CPU's lane reserves exactly the cores that all configs of a batch need."""
    lane = FakeLane("cpu:0", [MEASURED])
    attempts = make_attempts(5)
    for attempt, cores in zip(attempts, (None, None, 2, 2, 1), strict=True):
        attempt.cores, attempt.declares_cores = cores, cores is not None
    await measure_attempts(tmp_path, attempts, lane)
    assert [len(request.units) for request in lane.requests] == [2, 2, 1]


async def test_results_that_came_together_are_recorded_together(tmp_path: Path) -> None:
    """One commit holds them; each has its own time."""
    attempts = make_attempts(4)
    lane = FakeLane("cpu:0", [replace(MEASURED, seconds=0.25), DIED, MEASURED])
    recorded_counts: list[int] = []
    await measure_attempts(tmp_path, attempts, lane, recorded_counts=recorded_counts)
    assert recorded_counts == [1, 1, 2]
    assert attempts[0].lane_s == 0.25
    assert attempts[1].lane_s < 0.25
    starts = [attempt.spans["lane"][1] for attempt in attempts[:2]]
    assert starts[1] - starts[0] == pytest.approx(0.25, abs=0.01)


async def test_the_default_has_a_request_of_its_own(tmp_path: Path) -> None:
    """It is measured completely, while other configs stop early."""
    lane = FakeLane("cuda:0", [MEASURED])
    brief = msgspec.structs.replace(BRIEF, kernel=replace(BRIEF.kernel, default={"x": 2}))
    await measure_attempts(tmp_path, make_attempts(4), lane, brief=brief)
    assert [len(request.units) for request in lane.requests] == [1, 1, 2]
    assert [request.stop_above_us is None for request in lane.requests] == [False, True, False]


@pytest.mark.parametrize("failure", [REFUSED, DIED], ids=["raised", "died"])
async def test_a_trial_on_a_failing_device_is_measured_on_another(tmp_path: Path, failure: Any) -> None:
    """A failure after which the canary fails, too, says nothing about the config."""
    failing = FakeLane("cuda:0", [failure], [None, SICK])
    other = FakeLane("cuda:1", [MEASURED])
    outcome, attempt = await measure_one(tmp_path, failing, other)
    assert (outcome, other.requested_units) == (Outcome.MEASURED, 1)
    assert attempt.story[-3:] == [TrialEvent.DEVICE_SICK, TrialEvent.LANE_TAKEN, TrialEvent.TIMED]


async def test_a_problem_that_cannot_be_opened_fails_its_job(tmp_path: Path) -> None:
    """The lane has checked its device, so no other lane is tried."""
    broken_lane, other = FakeLane("cuda:0", [MEASURED], [CANNOT_OPEN]), FakeLane("cuda:1", [MEASURED])
    with pytest.raises(CannotOpen):
        await measure_one(tmp_path, broken_lane, other)
    assert (broken_lane.openings, other.openings) == (1, 0)


async def test_an_artifact_that_is_removed_between_two_tries_is_compiled_again(tmp_path: Path) -> None:
    """`gc` and the user may remove any artifact."""
    compile_stage = FakeCompileStage(Artifacts(tmp_path, 1))

    class ArtifactLosingLane(FakeLane):
        async def send_request(self, *given: Any, **named: Any) -> tuple[Any, Output]:
            compile_stage.remove_all()
            return await super().send_request(*given, **named)

    lane = ArtifactLosingLane("cuda:0", [CONTENDED, MEASURED])
    attempt = Attempt(1, {}, requests.UnitRef("ab", {}))
    assert await measure_attempts(tmp_path, [attempt], lane, compile_stage=compile_stage) == [Outcome.MEASURED]
    assert compile_stage.compiled == ["ab"]


async def test_devices_of_one_model_share_a_job(parts: Parts) -> None:
    """They measure at the same time; each config is measured once, and the reference is computed once per seed."""
    gated = "[dict(us=50.0, gate='door'), dict(us=60.0, gate=''), dict(us=70.0, gate='')]"
    await parts.inspect_file(make_kernel_text(configs=gated, strategy="'exhaustive'", reference=REFERENCE))
    parts.set_variables(FAKE_DEVICES="2")
    async with parts.run_jobs():
        await parts.request_jobs()
        await parts.wait_until_reached("door")
        await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("trial_done")) == 2)
        parts.open_gate("door")
        ended = await parts.wait_for_job()
    assert (ended["state"], ended["outcomes"]) == ("done", {"measured": 3})
    assert sorted(lane.device.name for lane in parts.jobs.list_lanes() if lane.busy_s) == ["cpu:0", "cpu:1"]
    assert len(list(parts.daemon.settings.scratch.glob("*/expected/*"))) == 1 + len(SEEDS)


async def test_a_job_goes_on_without_a_device_that_is_gone(parts: Parts) -> None:
    """All configs are measured on the other device, and the lane says why."""
    await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0), dict(us=60.0), dict(us=70.0)]"))
    parts.set_variables(FAKE_DEVICES="cuda:97 cpu:0")
    async with parts.run_jobs():
        (job,) = await parts.request_jobs()
        ended = await parts.wait_for_job()
    assert (ended["id"], ended["state"], ended["outcomes"]) == (job.id, "done", {"measured": 3})
    states = {lane.device.name: lane.state for lane in parts.jobs.list_lanes()}
    assert states == {"cuda:97": "sick", "cpu:0": "ready"}
    (lane_event, *_) = parts.recorder.list_events("lane")
    assert (lane_event["device"], lane_event["state"]) == ("cuda:97", "sick")
    assert "the canary failed" in lane_event["reason"]


def test_kernels_with_one_digest_have_separate_expected_outputs(tmp_path: Path) -> None:
    """Two kernels of one file may have equal bodies, but each has its own inputs; one kernel's lanes share them."""

    def find_expected_outputs(kernel: str, lane: str) -> str:
        brief = msgspec.structs.replace(BRIEF, job=replace(BRIEF.job, kernel=KernelName(kernel)))
        fake_lane = FakeLane(lane, [MEASURED])
        stage = MeasureStage(brief, [], cast("CompileStage", None), Artifacts(tmp_path, 1))
        request = stage.find_bench(cast("Lane", fake_lane)).request
        assert isinstance(request, requests.Open)
        return request.expected

    assert (
        find_expected_outputs("p:one", "cuda:0")
        == find_expected_outputs("p:one", "cuda:1")
        != find_expected_outputs("p:other", "cuda:0")
    )


async def test_configs_race_against_the_fastest_of_their_job(tmp_path: Path) -> None:
    """The first config has no rival, later ones race the best that was sampled completely, the default never races."""
    artifacts = Artifacts(tmp_path, 1)
    artifact = artifacts.locate_artifact("ab")
    artifact.mkdir(parents=True)
    (artifact / "manifest.json").touch()
    figures = [(5.0, None), (2.0, True), (4.0, None), (9.0, None), (9.0, None)]
    lane = FakeLane(
        "cpu:0",
        [
            make_measurement(Outcome.MEASURED, latency_us=us, low_us=us, high_us=us, beaten=beaten)
            for us, beaten in figures
        ],
    )
    brief = msgspec.structs.replace(BRIEF, deadlines=DEFAULT_DEADLINES)
    measure_stage = MeasureStage(brief, cast("Sequence[Lane]", [lane]), cast("CompileStage", None), artifacts)

    async def record_ends(is_batch_over: Sequence[End]) -> None:
        """Take the ends."""

    for best_us in (1.0, 5.0, 5.0, 4.0, None):
        attempt = Attempt(1, {}, requests.UnitRef("ab", {}))
        TrialMachine().handle(ArtifactFound(attempt))
        await measure_stage.measure_batch(
            cast("Lane", lane), [attempt], partial(lambda us: (us, us and us / 1e6), best_us), record_ends
        )
    rivals = [request.incumbent for request in lane.requests]
    assert [None if rival is None else rival.cost for rival in rivals] == [None, 5.0, 5.0, 4.0, None]


async def test_lanes_that_need_the_reference_at_once_have_it_compiled_once() -> None:
    """Names that its compile has shown give it another key, under which it would be compiled again."""
    compiled: list[str] = []
    keys = count()

    class Compiling:
        async def compile_attempts(self, attempts: Sequence[Attempt], *, is_reference: bool) -> list[End]:
            compiled.extend(attempt.unit.key for attempt in attempts)
            await anyio.lowlevel.checkpoint()
            return []

    brief = SimpleNamespace(
        kernel=SimpleNamespace(expects_default_outputs=True),
        make_unit=lambda build: requests.UnitRef(f"key {next(keys)}", build),
    )
    artifacts = SimpleNamespace(is_sealed=lambda key: key in compiled)
    reference = Reference(cast(JobBrief, brief), cast(CompileStage, Compiling()), cast(Artifacts, artifacts))
    reference.set_candidates([replies.Proposal({"BLOCK": 1}, {})])
    async with anyio.create_task_group() as lanes:
        for _ in range(3):
            lanes.start_soon(reference.prepare_artifact)
    assert compiled == ["key 0"]
    assert reference.unit is not None
    assert reference.unit.key == "key 0"
