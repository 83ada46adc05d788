"""What becomes of a trial when not it fails, but the device."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

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
from ktuned.scheduling.job_requests import TuningRequest
from ktuned.store.artifacts import Artifacts
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.final_round import SEEDS
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.limits import DEFAULT_DEADLINES
from ktuned.tuning.measure_stage import MeasureStage
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
NEEDS_CORES = make_measurement(None, phase=Phase.TIMING, cores=4)
CONTENDED = make_measurement(Outcome.CONTENDED, "other programs used it")
OPENED = CannotOpen("no such device")
SICK = LaneSick("the canary failed")


class PlayedLane:
    """A lane whose openings and answers are listed; the last of each goes on for ever."""

    def __init__(self, name: str, answers: Sequence[Any], openings: Sequence[Exception | None] = (None,)) -> None:
        self.device = Device(DeviceName(name), DeviceModel("x"), Target("native"))
        self.health = Health()
        self.pace = Pace()
        self.opened = self.asked = self.dropped = 0
        self.data = ""
        self.is_doubtful = False
        self.applications: tuple[int, ...] = ()
        self.granted: list[int] = []
        self.requests: list[requests.Trial] = []
        self._answers, self._openings = list(answers), list(openings)

    @asynccontextmanager
    async def hold(self, job: int) -> AsyncIterator[None]:
        """Lend the lane at once."""
        yield

    async def open_problem(self, bench: Bench, deadlines: Mapping[str, float], **others: bool) -> None:
        """Open, or fail, as listed."""
        self.opened += 1
        opening = self._openings.pop(0) if len(self._openings) > 1 else self._openings[0]
        if isinstance(opening, LaneSick):
            self.health.record_failure(opening.message)
        if opening is not None:
            raise opening

    async def reserve_cores(self, cores: int) -> int:
        """Grant them."""
        self.granted.append(cores)
        return cores

    async def send_request(
        self,
        request: requests.Trial,
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[replies.Measurement], None] | None = None,
    ) -> tuple[Any, Output]:
        """Answer for each unit, or die, as listed."""
        self.requests.append(request)
        for place in range(len(request.units)):
            self.asked += 1
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            if isinstance(answer, Exception):
                self.drop()
                raise answer
            ends = answer.result.outcome is Outcome.LAUNCH_ERROR or answer.is_guilty or answer.is_unsound
            if ends or place == len(request.units) - 1:
                break
            assert on_item is not None
            on_item(answer)
        was_doubtful, self.is_doubtful = self.is_doubtful, answer.is_guilty
        failed_in_doubt = was_doubtful and answer.result.outcome is Outcome.MISMATCH
        if answer.is_unsound or failed_in_doubt or answer.result.outcome is Outcome.LAUNCH_ERROR:
            self.drop()
        return answer, Output()

    def take_output(self) -> Output:
        """Return nothing: no code of a worker runs."""
        return Output()

    def drop(self) -> None:
        """Lose the worker, of which there is none."""
        self.dropped += 1
        self.is_doubtful = False


class Recompiling:
    """A compile stage whose artifacts something removes whenever a lane has had them."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self.compiled: list[str] = []

    def remove_all(self) -> None:
        """Remove them."""
        shutil.rmtree(self._artifacts.locate_artifact("ab").parent)

    async def compile_attempts(self, attempts: Sequence[Attempt]) -> list[End]:
        """Make attempts' artifacts, as of such as were never compiled."""
        machine = TrialMachine()
        machine.handle(CompilerTook(attempts))
        for attempt in attempts:
            self.compiled.append(attempt.unit.key)
            self._artifacts.locate_artifact(attempt.unit.key).mkdir(parents=True)
            (self._artifacts.locate_artifact(attempt.unit.key) / "manifest.json").touch()
            machine.handle(ConfigCompiled(attempt))
        return []


async def measured_all(
    tmp_path: Path,
    attempts: Sequence[Attempt],
    *lanes: PlayedLane,
    brief: JobBrief = BRIEF,
    taken: list[int] | None = None,
    compiling: Recompiling | None = None,
) -> list[Outcome]:
    """Measure compiled attempts that the first lane took; return their outcomes in the order of their ends."""
    played = cast("Sequence[Lane]", lanes)
    artifacts = Artifacts(tmp_path, 1)
    outcomes: list[Outcome] = []
    for attempt in attempts:
        place = artifacts.locate_artifact(attempt.unit.key)
        place.mkdir(parents=True)
        (place / "manifest.json").touch()
        TrialMachine().handle(ArtifactFound(attempt))

    async def record(ends: Sequence[End]) -> None:
        outcomes.extend(end.result.outcome for end in ends if end.result.outcome is not None)
        if taken is not None:
            taken.append(len(ends))

    measuring = MeasureStage(
        msgspec.structs.replace(brief, deadlines=DEFAULT_DEADLINES), played, cast("CompileStage", compiling), artifacts
    )
    await measuring.measure_batch(played[0], attempts, lambda: (5.0, 5e-6), record)
    return outcomes


async def measured(tmp_path: Path, *lanes: PlayedLane) -> tuple[Outcome, Attempt]:
    """Measure one compiled attempt that the first lane took."""
    attempt = Attempt(1, {}, requests.UnitRef("ab", {}))
    (outcome,) = await measured_all(tmp_path, [attempt], *lanes)
    return outcome, attempt


def several(count: int) -> list[Attempt]:
    """Return attempts at different configs."""
    return [Attempt(number, {"x": number}, requests.UnitRef(f"{number:02}", {})) for number in range(1, count + 1)]


async def test_trials_on_a_gpu_share_a_request(tmp_path: Path) -> None:
    """One request for a batch: each config has its own outcome, from its own answer."""
    lane = PlayedLane("cuda:0", [MEASURED, WRONG, MEASURED])
    attempts = several(3)
    outcomes = await measured_all(tmp_path, attempts, lane)
    assert outcomes == [Outcome.MEASURED, Outcome.MISMATCH, Outcome.MEASURED]
    assert [len(request.units) for request in lane.requests] == [3]
    assert [attempt.story[-2] for attempt in attempts] == [TrialEvent.LANE_TAKEN] * 3


async def test_trials_on_a_cpu_share_a_request(tmp_path: Path) -> None:
    """Their results are held back until the last: recording one would disturb the next config's timing."""
    lane = PlayedLane("cpu:0", [MEASURED])
    assert await measured_all(tmp_path, several(3), lane) == [Outcome.MEASURED] * 3
    assert [len(request.units) for request in lane.requests] == [3]
    assert lane.requests[0].hold_s >= 0.5


async def test_trials_with_other_cores_have_requests_of_their_own(tmp_path: Path) -> None:
    """A CPU's lane has the cores that all of a batch need, and no others."""
    lane = PlayedLane("cpu:0", [MEASURED])
    attempts = several(5)
    for attempt, cores in zip(attempts, (None, None, 2, 2, 1), strict=True):
        attempt.cores, attempt.declares_cores = cores, cores is not None
    await measured_all(tmp_path, attempts, lane)
    assert [len(request.units) for request in lane.requests] == [2, 2, 1]


async def test_results_that_came_together_are_recorded_together(tmp_path: Path) -> None:
    """So that one commit holds them; the time of each is its own."""
    attempts = several(4)
    lane = PlayedLane("cpu:0", [replace(MEASURED, seconds=0.25), DIED, MEASURED])
    taken: list[int] = []
    await measured_all(tmp_path, attempts, lane, taken=taken)
    assert taken == [1, 1, 2]
    assert attempts[0].lane_s == 0.25
    assert attempts[1].lane_s < 0.25
    starts = [attempt.spans["lane"][1] for attempt in attempts[:2]]
    assert starts[1] - starts[0] == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("failure", "outcome"), [(DIED, Outcome.CRASHED), (REFUSED, Outcome.LAUNCH_ERROR)])
async def test_a_batch_ends_at_the_config_that_fails(tmp_path: Path, failure: Any, outcome: Outcome) -> None:
    """It alone is blamed: those before it keep their figures, and those after it are measured in the next request."""
    lane = PlayedLane("cuda:0", [MEASURED, failure, MEASURED])
    assert await measured_all(tmp_path, several(4), lane) == [Outcome.MEASURED, outcome, *[Outcome.MEASURED] * 2]
    keys = [[unit.key for unit in request.units] for request in lane.requests]
    assert keys == [["01", "02", "03", "04"], ["03", "04"]]


async def test_a_disturbed_config_of_a_batch_is_measured_again(tmp_path: Path) -> None:
    """After the others, which are not measured twice."""
    lane = PlayedLane("cuda:0", [MEASURED, CONTENDED, MEASURED])
    assert await measured_all(tmp_path, several(3), lane) == [Outcome.MEASURED] * 3
    assert [[unit.key for unit in request.units] for request in lane.requests] == [["01", "02", "03"], ["02"]]


async def test_the_default_has_a_request_of_its_own(tmp_path: Path) -> None:
    """It is measured in full, while the others stop early."""
    lane = PlayedLane("cuda:0", [MEASURED])
    brief = msgspec.structs.replace(BRIEF, kernel=replace(BRIEF.kernel, default={"x": 2}))
    await measured_all(tmp_path, several(4), lane, brief=brief)
    assert [len(request.units) for request in lane.requests] == [1, 1, 2]
    assert [request.stop_above_us is None for request in lane.requests] == [False, True, False]


async def test_a_config_that_uses_more_cores_is_timed_again_on_them(tmp_path: Path) -> None:
    """Its first launch shows it; then it has them, and no more is asked of it."""
    lane = PlayedLane("cpu:0", [NEEDS_CORES, MEASURED])
    outcome, attempt = await measured(tmp_path, lane)
    assert (outcome, lane.granted, attempt.cores) == (Outcome.MEASURED, [1, 4], 4)
    assert [request.cores for request in lane.requests] == [1, 4]
    ends = [TrialEvent.LANE_TAKEN, TrialEvent.NEEDS_CORES, TrialEvent.LANE_TAKEN, TrialEvent.TIMED]
    assert attempt.story[-4:] == ends


async def test_declared_cores_are_taken_at_once(tmp_path: Path) -> None:
    """A kernel file that says how many needs no launch to show it, and is not contradicted."""
    lane = PlayedLane("cpu:0", [MEASURED])
    attempt = Attempt(1, {}, requests.UnitRef("ab", {}), cores=3, declares_cores=True)
    assert await measured_all(tmp_path, [attempt], lane) == [Outcome.MEASURED]
    assert (lane.granted, [request.cores for request in lane.requests]) == ([3], [None])


@pytest.mark.parametrize("failure", [REFUSED, DIED], ids=["raised", "died"])
async def test_a_trial_on_a_failing_device_is_measured_on_another(tmp_path: Path, failure: Any) -> None:
    """A failure after which the canary fails too says nothing of the config."""
    failing = PlayedLane("cuda:0", [failure], [None, SICK])
    other = PlayedLane("cuda:1", [MEASURED])
    outcome, attempt = await measured(tmp_path, failing, other)
    assert (outcome, other.asked) == (Outcome.MEASURED, 1)
    assert attempt.story[-3:] == [TrialEvent.DEVICE_SICK, TrialEvent.LANE_TAKEN, TrialEvent.TIMED]


@pytest.mark.parametrize(
    ("lanes", "outcome"),
    [
        ([PlayedLane("cuda:0", [REFUSED]), PlayedLane("cuda:1", [MEASURED])], Outcome.LAUNCH_ERROR),
        ([PlayedLane("cuda:0", [REFUSED], [None, SICK])], Outcome.LAUNCH_ERROR),
        ([PlayedLane("cpu:0", [DIED], [None, SICK]), PlayedLane("cpu:1", [MEASURED])], Outcome.CRASHED),
        (
            [PlayedLane(f"cuda:{index}", [DIED], [None, SICK]) for index in range(3)],
            Outcome.CRASHED,
        ),
    ],
    ids=["the-device-works", "there-is-no-other", "a-cpu", "each-device-fails-after-it"],
)
async def test_a_config_that_fails_has_its_outcome(tmp_path: Path, lanes: list[PlayedLane], outcome: Outcome) -> None:
    """Where the device works, or no second one can report, or a second one fails as well, the config is the reason."""
    assert (await measured(tmp_path, *lanes))[0] is outcome
    assert sum(lane.asked for lane in lanes) <= 2


async def test_a_problem_that_cannot_be_opened_fails_its_job(tmp_path: Path) -> None:
    """The lane has looked whether its device is the reason; another lane is not tried."""
    broken, other = PlayedLane("cuda:0", [MEASURED], [OPENED]), PlayedLane("cuda:1", [MEASURED])
    with pytest.raises(CannotOpen):
        await measured(tmp_path, broken, other)
    assert (broken.opened, other.opened) == (1, 0)


async def test_a_sick_lane_is_left_out_until_it_may_be_tried_again(tmp_path: Path) -> None:
    """Its next trials go to a lane that works, without a try at the sick one."""
    sick, other = PlayedLane("cuda:0", [MEASURED]), PlayedLane("cuda:1", [MEASURED])
    sick.health.record_failure("the canary failed")
    assert (await measured(tmp_path, sick, other))[0] is Outcome.MEASURED
    assert (sick.opened, other.asked) == (0, 1)


async def test_an_artifact_that_is_removed_between_two_tries_is_compiled_again(tmp_path: Path) -> None:
    """As one that is damaged is: `gc` and the user may remove any."""
    compiling = Recompiling(Artifacts(tmp_path, 1))

    class Losing(PlayedLane):
        async def send_request(self, *given: Any, **named: Any) -> tuple[Any, Output]:
            compiling.remove_all()
            return await super().send_request(*given, **named)

    lane = Losing("cuda:0", [CONTENDED, MEASURED])
    attempt = Attempt(1, {}, requests.UnitRef("ab", {}))
    assert await measured_all(tmp_path, [attempt], lane, compiling=compiling) == [Outcome.MEASURED]
    assert compiling.compiled == ["ab"]


GUILTY = make_measurement(Outcome.MISMATCH, "wrote outside its tensors: 32 bytes after y", is_guilty=True)


async def test_a_failure_after_a_config_that_did_damage_is_tried_once_more(tmp_path: Path) -> None:
    """In a new worker, which the guilty one has not touched; there a failure counts."""
    lane = PlayedLane("cuda:0", [GUILTY, WRONG, MEASURED])
    assert (await measured(tmp_path / "1", lane))[0] is Outcome.MISMATCH
    outcome, attempt = await measured(tmp_path / "2", lane)
    assert (outcome, lane.asked, lane.dropped) == (Outcome.MEASURED, 3, 1)
    assert attempt.story[-3:] == [TrialEvent.WORKER_DAMAGED, TrialEvent.LANE_TAKEN, TrialEvent.TIMED]
    lane = PlayedLane("cuda:0", [GUILTY, WRONG, WRONG, MEASURED])
    await measured(tmp_path / "3", lane)
    assert (await measured(tmp_path / "4", lane))[0] is Outcome.MISMATCH
    assert lane.asked == 3


async def test_devices_of_one_model_share_a_job(parts: Parts) -> None:
    """While one measures, so does the other; each config is measured once, the reference computed once for a seed."""
    gated = "[dict(us=50.0, gate='door'), dict(us=60.0, gate=''), dict(us=70.0, gate='')]"
    await parts.inspect_file(make_kernel_text(configs=gated, strategy="'exhaustive'", reference=REFERENCE))
    parts.root = msgspec.structs.replace(parts.root, env={"FAKE_DEVICES": "2"})
    parts.catalog.add_root(parts.root)
    parts.environment = parts.catalog.find_kernel_environment(parts.catalog.resolve_kernel("it"))
    async with parts.run_jobs():
        await parts.requests.request_jobs(parts.catalog.resolve_kernel("it"), TuningRequest())
        await parts.wait_until_reached("door")
        await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("trial_done")) == 2)
        parts.open_gate("door")
        (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert (ended["state"], ended["outcomes"]) == ("done", {"measured": 3})
    assert sorted(lane.device.name for lane in parts.jobs.list_lanes() if lane.busy_s) == ["cpu:0", "cpu:1"]
    assert len(list(parts.daemon.settings.scratch.glob("*/expected/*"))) == 1 + len(SEEDS)


async def test_a_job_goes_on_without_a_device_that_is_gone(parts: Parts) -> None:
    """Of two devices that were alike one is not there: all is measured on the other, and the lane says why."""
    await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0), dict(us=60.0), dict(us=70.0)]"))
    parts.root = msgspec.structs.replace(parts.root, env={"FAKE_DEVICES": "cuda:97 cpu:0"})
    parts.catalog.add_root(parts.root)
    parts.environment = parts.catalog.find_kernel_environment(parts.catalog.resolve_kernel("it"))
    async with parts.run_jobs():
        (job,) = await parts.requests.request_jobs(parts.catalog.resolve_kernel("it"), TuningRequest())
        (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert (ended["id"], ended["state"], ended["outcomes"]) == (job.id, "done", {"measured": 3})
    states = {lane.device.name: lane.state for lane in parts.jobs.list_lanes()}
    assert states == {"cuda:97": "sick", "cpu:0": "ready"}
    (told, *_) = parts.recorder.list_events("lane")
    assert (told["device"], told["state"]) == ("cuda:97", "sick")
    assert "the canary failed" in told["reason"]


def test_kernels_with_one_digest_have_separate_expected_outputs(tmp_path: Path) -> None:
    """Two kernels of one file may have equal bodies, but each has inputs of its own; one kernel's lanes share them."""

    def expected(kernel: str, lane: str) -> str:
        brief = msgspec.structs.replace(BRIEF, job=replace(BRIEF.job, kernel=KernelName(kernel)))
        played = PlayedLane(lane, [MEASURED])
        stage = MeasureStage(brief, [], cast("CompileStage", None), Artifacts(tmp_path, 1))
        request = stage.find_bench(cast("Lane", played)).request
        assert isinstance(request, requests.Open)
        return request.expected

    assert expected("p:one", "cuda:0") == expected("p:one", "cuda:1") != expected("p:other", "cuda:0")


async def test_configs_race_against_the_fastest_of_their_job(tmp_path: Path) -> None:
    """The first has no rival, later ones have the best that was sampled to its end, and the default never has one."""
    artifacts = Artifacts(tmp_path, 1)
    place = artifacts.locate_artifact("ab")
    place.mkdir(parents=True)
    (place / "manifest.json").touch()
    figures = [(5.0, None), (2.0, True), (4.0, None), (9.0, None), (9.0, None)]
    lane = PlayedLane(
        "cpu:0",
        [
            make_measurement(Outcome.MEASURED, latency_us=us, low_us=us, high_us=us, beaten=beaten)
            for us, beaten in figures
        ],
    )
    brief = msgspec.structs.replace(BRIEF, deadlines=DEFAULT_DEADLINES)
    measuring = MeasureStage(brief, cast("Sequence[Lane]", [lane]), cast("CompileStage", None), artifacts)

    async def record(ends: Sequence[End]) -> None:
        """Take the ends."""

    for best_us in (1.0, 5.0, 5.0, 4.0, None):
        attempt = Attempt(1, {}, requests.UnitRef("ab", {}))
        TrialMachine().handle(ArtifactFound(attempt))
        await measuring.measure_batch(
            cast("Lane", lane), [attempt], partial(lambda us: (us, us and us / 1e6), best_us), record
        )
    rivals = [request.incumbent for request in lane.requests]
    assert [None if rival is None else rival.cost for rival in rivals] == [None, 5.0, 5.0, 4.0, None]
