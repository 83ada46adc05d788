"""A lane whose device fails: sick, probed after growing pauses, and ready by itself once a canary passes."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from ktuned.fleet.executor import Environment, KernelCode
from ktuned.fleet.failures import CannotOpen, DeadlineExpired, Health
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.lane_machine import Bench
from ktuned.fleet.lanes import REAP_S, Lane
from ktuned.fleet.process import WorkerProcess
from ktuned.ipc import requests
from ktuned.model.keys import Role
from ktuned.model.plan import Plan
from tests.fleet.conftest import RunFleet
from tests.fleet.playground import (
    BRIEF_S,
    DEADLINES,
    FAKE_DIRECTORY,
    FAKE_TORCH,
    GPU,
    HANG,
    Playground,
    count_warm_spares,
    wait_until,
)

pytestmark = pytest.mark.anyio


class BreakableDevice:
    """A device that the test breaks and repairs, and the recorded states of its lane."""

    def __init__(self, directory: Path, playground: Playground, environment: Environment) -> None:
        directory.mkdir()
        (directory / "torch.py").write_text(FAKE_TORCH)
        self._device = directory / "device"
        self._playground = playground
        self.bench = Bench(environment, "fake", KernelCode("it.py", ""), "one", playground.write_and_request(""))
        self.states: list[str] = []
        self.pauses: list[float] = []
        self.set_state("well")

    def make_bench(self, body: str) -> Bench:
        """Return a problem whose opening runs ``body``."""
        (file,) = self._playground.write_and_request(body).files
        request = requests.Explore(self._playground.make_kernel_ref("it", file), {}, Plan())
        return replace(self.bench, identity=body, request=request)

    def record_state(self, lane: Lane) -> None:
        """Record a lane's state and its pause."""
        self.states.append(lane.state)
        if lane.health.is_sick:
            self.pauses.append(lane.health.pause_s)

    def set_state(self, state: str) -> None:
        """Set the device's state for all following canaries."""
        part = self._device.with_suffix(".part")
        part.write_text(state)
        part.rename(self._device)

    async def lose_worker(self, lane: Lane) -> None:
        """Let a trial hang, so that its worker is killed."""
        with pytest.raises(DeadlineExpired):
            await lane.send_request(
                self._playground.write_and_request(HANG), DEADLINES | {"load": DEADLINES["load"], "inspect": BRIEF_S}
            )


@pytest.fixture
def device(tmp_path: Path, playground: Playground, environment: Environment) -> BreakableDevice:
    """A device to break."""
    directory = tmp_path / "driver"
    driver_environment = replace(environment, env=(("PYTHONPATH", f"{directory}:{FAKE_DIRECTORY}"),))
    return BreakableDevice(directory, playground, driver_environment)


@asynccontextmanager
async def hold_lane(
    run_fleet: RunFleet, device: BreakableDevice, *, reap_s: float = REAP_S
) -> AsyncIterator[tuple[Lane, Fleet]]:
    """Hold a lane whose pauses begin at 0.05 s."""
    async with run_fleet() as fleet:
        lane = Lane(GPU, fleet, on_state=device.record_state, health=Health(first_pause_s=0.05), reap_s=reap_s)
        async with lane.hold(1):
            await lane.open_problem(device.bench, DEADLINES)
            yield lane, fleet


async def test_a_lane_that_only_lost_its_worker_is_never_sick(run_fleet: RunFleet, device: BreakableDevice) -> None:
    """The canary passes at once, and nothing is reported."""
    async with hold_lane(run_fleet, device) as (lane, _):
        await device.lose_worker(lane)
        await lane.open_problem(device.bench, DEADLINES)
        assert (lane.health.is_sick, lane.health.reason, device.states) == (False, "", [])
        assert lane.worker_pid is not None


@pytest.mark.parametrize(("state", "reason"), [("unspecified launch failure", "launch failure"), ("hung", "timed out")])
async def test_a_sick_lane_is_probed_until_a_canary_passes(
    run_fleet: RunFleet, device: BreakableDevice, state: str, reason: str
) -> None:
    """The lane shows the canary's reason, is probed after growing pauses, and is ready as soon as the device is."""
    async with hold_lane(run_fleet, device) as (lane, _):
        device.set_state(state)
        await device.lose_worker(lane)
        async with anyio.create_task_group() as tasks:
            deadlines = DEADLINES | ({"load": BRIEF_S * 3} if state == "hung" else {})
            tasks.start_soon(lane.open_problem, device.bench, deadlines)
            await wait_until(lambda: lane.health.failures >= 3)
            assert lane.state == "sick"
            assert lane.describe_lane().reason == lane.health.reason
            assert "the canary failed" in lane.health.reason
            assert reason in lane.health.reason
            device.set_state("well")
        assert lane.health.failures == 0
        assert lane.worker_pid is not None
        assert device.states[0] == "sick"
        assert device.states[-1] != "sick"
        assert lane.describe_lane().reason == ""
        assert len(device.pauses) >= 3
        assert all(after > before for before, after in itertools.pairwise(device.pauses))


@dataclass
class StuckWorker:
    """A killed worker that does not end: no test can put a process into a driver's uninterruptible sleep."""

    pid: int = 4_000_000
    gone: anyio.Event = field(default_factory=anyio.Event)

    @property
    def is_alive(self) -> bool:
        return not self.gone.is_set()


async def test_a_worker_that_cannot_be_reaped_makes_its_lane_sick(run_fleet: RunFleet, device: BreakableDevice) -> None:
    """Nobody measures while a dead worker holds the device; once released, a canary runs."""
    stuck = StuckWorker()
    async with hold_lane(run_fleet, device, reap_s=0.05) as (lane, _):
        await device.lose_worker(lane)
        worker: WorkerProcess = stuck  # type: ignore[assignment]
        lane.record.ending.append(worker)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lane.open_problem, device.bench, DEADLINES)
            await wait_until(lambda: lane.health.is_sick)
            assert "worker 4000000 was killed but does not end" in lane.describe_lane().reason
            assert lane.worker_pid is None
            stuck.gone.set()
        assert (lane.health.is_sick, device.states[0]) == (False, "sick")
        assert lane.worker_pid is not None


async def test_spares_end_where_a_problem_has_no_memory(run_fleet: RunFleet, device: BreakableDevice) -> None:
    """Their contexts may hold the missing memory."""
    async with run_fleet() as fleet:
        lane = Lane(GPU, fleet)
        fleet.prepare_spares(Role.BENCH, device.bench.environment, "fake", 3, device=GPU)
        await wait_until(lambda: count_warm_spares(fleet) == 3)
        async with lane.hold(1):
            failing_bench = device.make_bench("raise RuntimeError('CUDA out of memory')")
            with pytest.raises(CannotOpen, match="CUDA out of memory"):
                await lane.open_problem(failing_bench, DEADLINES)
            assert count_warm_spares(fleet) == 0
