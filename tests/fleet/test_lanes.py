"""Lanes: one job at a time, an opened problem is kept, and a spare replaces a killed worker."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from ktuned.fleet.executor import Environment, KernelCode
from ktuned.fleet.failures import CannotOpen, DeadlineExpired, WorkerDied
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.lane_machine import Bench
from ktuned.fleet.lanes import Lane
from ktuned.ipc import locate_artifact, manifest, replies, requests
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.model.plan import Plan, Preset
from tests.fleet.conftest import RunFleet
from tests.fleet.playground import DEADLINES, Playground

pytestmark = pytest.mark.anyio

CPU = Device(DeviceName("cpu:0"), DeviceModel("a CPU"), Target("here"))
CRASH = "import os\nos._exit(3)"


RunLane = Callable[[], AbstractAsyncContextManager[tuple[Lane, Fleet]]]


@pytest.fixture
def environment(environment: Environment) -> Environment:
    """This interpreter with NumPy tensors, because importing torch would take longest."""
    return msgspec.structs.replace(environment, env=(("FAKE_TENSORS", "numpy"),))


@pytest.fixture
def run_lane(run_fleet: RunFleet) -> RunLane:
    """A function that runs a fleet with a lane, which has no worker yet."""

    @asynccontextmanager
    async def run() -> AsyncIterator[tuple[Lane, Fleet]]:
        async with run_fleet() as fleet:
            yield Lane(CPU, fleet), fleet

    return run


CODE = KernelCode("tune_it.py", "first")


def make_bench(
    playground: Playground, environment: Environment, identity: str = "one", body: str = "", code: KernelCode = CODE
) -> Bench:
    """Return a problem whose opening runs ``body``."""
    return Bench(environment, "fake", code, identity, playground.write_and_request(body))


async def test_two_jobs_use_a_lane_one_after_the_other(run_lane: RunLane) -> None:
    """The second measures when the first has left; the status says who measures."""
    async with run_lane() as (lane, _):
        order: list[str] = []

        async def use_lane_second() -> None:
            async with lane.hold(2):
                order.append("second in")
                assert lane.job == 2

        async with anyio.create_task_group() as tasks, lane.hold(1):
            tasks.start_soon(use_lane_second)
            await anyio.wait_all_tasks_blocked()
            assert (lane.state, lane.job) == ("busy", 1)
            order.append("first out")
        assert order == ["first out", "second in"]
        assert (lane.state, lane.job, lane.worker_pid) == ("ready", None, None)
        assert lane.busy_s > 0


async def test_an_exception_leaves_the_lane_to_the_next_job(run_lane: RunLane) -> None:
    async with run_lane() as (lane, _):
        with pytest.raises(RuntimeError):
            async with lane.hold(1):
                raise RuntimeError("no")
        async with lane.hold(2):
            assert lane.describe_lane().job == 2


async def test_a_waiting_worker_gives_its_data_up(
    run_lane: RunLane, playground: Playground, environment: Environment
) -> None:
    """The second warm worker keeps its imports, but no memory of a problem."""
    a, b = KernelCode("a.py", "1"), KernelCode("b.py", "1")
    async with run_lane() as (lane, fleet), lane.hold(1):
        await lane.open_problem(make_bench(playground, environment, "a", code=a), DEADLINES)
        first = lane.worker_pid
        await lane.open_problem(make_bench(playground, environment, "b", code=b), DEADLINES)
        (request_count,) = (entry.requests for entry in fleet.describe_workers() if entry.pid == first)
        assert request_count == 2, "opened, and closed"


def make_failing_exploration(playground: Playground, body: str) -> requests.Explore:
    """Return a request that fails if importing its kernel file does."""
    (file,) = playground.write_and_request(body + EXAMPLE).files
    return requests.Explore(playground.make_kernel_ref("double", file), {"n": 64}, Plan())


async def test_a_problem_that_cannot_be_opened_is_one_error(
    run_lane: RunLane, playground: Playground, environment: Environment
) -> None:
    """Whatever fails in its inputs or reference is one error with a reason, and the lane continues."""
    async with run_lane() as (lane, _), lane.hold(1):
        with pytest.raises(CannotOpen, match="the worker exited with code 3 during inspect"):
            await lane.open_problem(make_bench(playground, environment, body=CRASH), DEADLINES)
        assert lane.worker_pid is None
        await lane.open_problem(make_bench(playground, environment, "two"), DEADLINES)
        assert lane.worker_pid is not None


async def test_a_missing_interpreter_is_an_error_with_its_remedy(
    run_lane: RunLane, playground: Playground, environment: Environment
) -> None:
    async with run_lane() as (lane, _):
        async with lane.hold(1):
            with pytest.raises(CannotOpen, match="cannot start a worker with /no/such/python") as caught:
                await lane.open_problem(
                    make_bench(playground, msgspec.structs.replace(environment, python="/no/such/python")), DEADLINES
                )
        assert "`python`" in caught.value.hint


async def test_a_released_lane_gives_its_worker_back(
    run_lane: RunLane, playground: Playground, environment: Environment
) -> None:
    """The worker is idle in the fleet, like any other."""
    async with run_lane() as (lane, fleet):
        async with lane.hold(1):
            await lane.open_problem(make_bench(playground, environment), DEADLINES)
            pid = lane.worker_pid
        lane.release_worker()
        assert lane.worker_pid is None
        assert {entry.pid: entry.state for entry in fleet.describe_workers()}[pid or 0] == "idle"


EXAMPLE = """\
from ktuned import kernel, space, tensor
from ktuned_fake import Build

def inputs(p):
    return dict(x=tensor(p.n), y=tensor(p.n, output=True))

@kernel(backend="fake", space=space(does=["work"]), problems=[dict(n=64)], inputs=inputs, reference=lambda x: 2 * x)
def double(p, c):
    return Build(does=c.does)
"""

OUTCOMES = {
    "work": ("measured", "timing"),
    "wrong": ("mismatch", "check"),
    "nothing": ("mismatch", "check"),
    "raise": ("launch_error", "first_launch"),
    "unsupported": ("unsupported", "load"),
    "slow": ("slower", "timing"),
}


async def test_a_config_that_raises_crashes_or_hangs_replaces_its_worker_alone(
    run_lane: RunLane, playground: Playground, environment: Environment, tmp_path: Path
) -> None:
    """Each config has its outcome; other configs keep their worker."""
    async with run_lane() as (lane, _):
        (playground.root / "tune_it.py").write_text(EXAMPLE)
        builds = {does: {"does": does} for does in (*OUTCOMES, "segfault", "hang")} | {"slow": {"us": 30_000.0}}
        units = {does: requests.UnitRef(f"{does}-key", build) for does, build in builds.items()}
        opening = requests.Open(playground.make_kernel_ref("double"), {"n": 64}, "fake", CPU, "double")
        problem = Bench(environment, "fake", CODE, "double", opening)
        preset = Preset("t", warmup=1, repetitions=5, timing_s=0.1, finalists=1, finalist_rounds=1)
        deadlines = dict.fromkeys(("inspect", "load", "reference", "first_launch", "check", "timing"), 30.0)

        def make_trial_request(*does: str, stop_above_us: float | None = 20_000.0) -> requests.Trial:
            return requests.Trial(tuple(units[name] for name in does), preset, False, stop_above_us)

        for unit in units.values():
            seal_fake_artifact(locate_artifact(tmp_path / "artifacts", unit.key), unit)
        async with lane.hold(1):
            for does, (outcome, phase) in OUTCOMES.items():
                await lane.open_problem(problem, deadlines)
                first = lane.worker_pid
                measurement, output = await lane.send_request(make_trial_request(does), deadlines)
                assert lane.worker_pid == (None if outcome == "launch_error" else first)
                assert (measurement.result.outcome, measurement.result.detail.failure.phase or "timing") == (
                    outcome,
                    phase,
                ), measurement
                assert does == "unsupported" or output.stdout.startswith("loaded")
                assert (measurement.result.latency_us is None) == (outcome not in ("measured", "slower"))
            await lane.open_problem(problem, deadlines)
            first = lane.worker_pid
            result = (await lane.send_request(make_trial_request("work", stop_above_us=None), deadlines))[0].result
            assert 50 <= (result.latency_us or 0.0) < 20_000
            assert result.detail.checks.max_error == 0.0
            rival = replies.CostRange(1.0, 1.0, 1.0)
            hopeful = requests.Trial((units["slow"],), replace(preset, timing_s=5.0), False, None, rival)
            result = (await lane.send_request(hopeful, deadlines))[0].result
            assert (result.outcome, result.detail.timing.beaten) == ("measured", True), "it cannot win: no more samples"
            assert result.message.startswith("cannot win: "), result.message
            assert result.message.endswith("by 3 samples"), result.message
            assert (
                (result.detail.timing.low_us or 0.0)
                <= (result.latency_us or 0.0)
                <= (result.detail.timing.high_us or 0.0)
            )
            (locate_artifact(tmp_path / "artifacts", "wrong-key") / "kernel.json").write_text("{}")
            result = (await lane.send_request(make_trial_request("wrong"), deadlines))[0].result
            assert (result.outcome, result.message) == (
                None,
                "wrong-key: kernel.json differs from its digest in the manifest",
            )
            assert lane.worker_pid == first
            batch: list[replies.Measurement] = []
            last, _ = await lane.send_request(
                make_trial_request("wrong", "nothing", "slow", "work"), deadlines, on_item=batch.append
            )
            assert [measurement.result.outcome for measurement in (*batch, last)] == [
                None,
                "mismatch",
                "slower",
                "measured",
            ]
            batch.clear()
            last, _ = await lane.send_request(
                make_trial_request("work", "raise", "work"), deadlines, on_item=batch.append
            )
            assert [measurement.result.outcome for measurement in (*batch, last)] == ["measured", "launch_error"], (
                "a batch ends at a failure"
            )
            assert lane.worker_pid is None
            await lane.open_problem(problem, deadlines)
            measurement, _ = await lane.send_request(requests.TimeReference(preset, False), deadlines)
            assert (measurement.result.latency_us or 0.0) > 0
            held_request = replace(make_trial_request("work", "slow", "segfault", "work"), hold_s=60.0)
            batch.clear()
            with pytest.raises(WorkerDied, match="was killed by SIGSEGV during first_launch"):
                await lane.send_request(held_request, deadlines, on_item=batch.append)
            assert [measurement.result.outcome for measurement in batch] == ["measured", "slower"], (
                "what was held back is not lost"
            )
            assert lane.worker_pid is None
            await lane.open_problem(problem, deadlines)
            held_request = replace(make_trial_request("work", "wrong", "work", "hang", "work"), hold_s=60.0)
            batch.clear()
            with pytest.raises(DeadlineExpired, match="first_launch timed out after 2 s"):
                await lane.send_request(held_request, deadlines | {"first_launch": 2.0}, on_item=batch.append)
            assert [measurement.result.outcome for measurement in batch] == ["measured", None, "measured"]


def seal_fake_artifact(directory: Path, unit: requests.UnitRef) -> None:
    """Make a unit's artifact as a compilation leaves it."""
    directory.mkdir(parents=True)
    (directory / "kernel.json").write_text(json.dumps(dict(unit.build)))
    manifest.write(directory, key=unit.key, backend="fake", facts={})
