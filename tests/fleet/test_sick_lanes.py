"""A lane whose device does not come back: sick, probed with back-off, and ready by itself once a canary sings."""

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
from tests.fleet.playing import BRIEF_S, DEADLINES, GPU, HANG, TORCH, Playground, until, warm_spares

pytestmark = pytest.mark.anyio


class Broken:
    """A device that a test breaks and mends, under a lane that keeps a diary of its states."""

    def __init__(self, directory: Path, playground: Playground, environment: Environment) -> None:
        directory.mkdir()
        (directory / "torch.py").write_text(TORCH)
        self._device = directory / "device"
        self._playground = playground
        self.bench = Bench(environment, "fake", KernelCode("it.py", ""), "one", playground.request(""))
        self.diary: list[str] = []
        self.pauses: list[float] = []
        self.becomes("well")

    def bench_that(self, body: str) -> Bench:
        """Return a problem whose opening runs ``body``."""
        (file,) = self._playground.request(body).files
        request = requests.Explore(self._playground.kernel("it", file), {}, Plan())
        return replace(self.bench, identity=body, request=request)

    def note(self, lane: Lane) -> None:
        """Write down what a lane says of itself, and how long it will wait."""
        self.diary.append(lane.state)
        if lane.health.is_sick:
            self.pauses.append(lane.health.pause_s)

    def becomes(self, state: str) -> None:
        """Let every canary from now on meet the device like this; whole: none reads half a word."""
        part = self._device.with_suffix(".part")
        part.write_text(state)
        part.rename(self._device)

    async def lose_worker(self, lane: Lane) -> None:
        """Have a trial hang, so that its worker is killed."""
        with pytest.raises(DeadlineExpired):
            await lane.send_request(
                self._playground.request(HANG), DEADLINES | {"load": DEADLINES["load"], "inspect": BRIEF_S}
            )


@pytest.fixture
def broken(tmp_path: Path, playground: Playground, environment: Environment) -> Broken:
    """Return a device to break."""
    directory = tmp_path / "driver"
    in_driver = replace(environment, env=(("PYTHONPATH", f"{directory}:{_fakes()}"),))
    return Broken(directory, playground, in_driver)


def _fakes() -> str:
    return str(Path(__file__).parents[1] / "fake_backend")


@asynccontextmanager
async def _lane(run_fleet: RunFleet, broken: Broken, *, reap_s: float = REAP_S) -> AsyncIterator[tuple[Lane, Fleet]]:
    """Hold a lane whose pauses begin at a twentieth of a second."""
    async with run_fleet() as fleet:
        lane = Lane(GPU, fleet, on_state=broken.note, health=Health(first_pause_s=0.05), reap_s=reap_s)
        async with lane.hold(1):
            await lane.open_problem(broken.bench, DEADLINES)
            yield lane, fleet


async def test_a_lane_that_only_lost_its_worker_is_never_sick(run_fleet: RunFleet, broken: Broken) -> None:
    """The canary passes at once, and no one is reported anything."""
    async with _lane(run_fleet, broken) as (lane, _):
        await broken.lose_worker(lane)
        await lane.open_problem(broken.bench, DEADLINES)
        assert (lane.health.is_sick, lane.health.reason, broken.diary) == (False, "", [])
        assert lane.worker_pid is not None


@pytest.mark.parametrize(("state", "reason"), [("unspecified launch failure", "launch failure"), ("hung", "timed out")])
async def test_a_sick_lane_is_probed_until_a_canary_passes(
    run_fleet: RunFleet, broken: Broken, state: str, reason: str
) -> None:
    """Sick with the canary's reason, tried again after longer and longer pauses, ready by itself when the device is."""
    async with _lane(run_fleet, broken) as (lane, _):
        broken.becomes(state)
        await broken.lose_worker(lane)
        async with anyio.create_task_group() as tasks:
            deadlines = DEADLINES | ({"load": BRIEF_S * 3} if state == "hung" else {})
            tasks.start_soon(lane.open_problem, broken.bench, deadlines)
            await until(lambda: lane.health.failures >= 3)
            assert lane.state == "sick"
            assert lane.describe_lane().reason == lane.health.reason
            assert "the canary failed" in lane.health.reason
            assert reason in lane.health.reason
            broken.becomes("well")
        assert lane.health.failures == 0
        assert lane.worker_pid is not None
        assert broken.diary[0] == "sick"
        assert broken.diary[-1] != "sick"
        assert lane.describe_lane().reason == ""
        assert len(broken.pauses) >= 3
        assert all(after > before for before, after in itertools.pairwise(broken.pauses))


@dataclass
class Stuck:
    """A worker that was killed and does not end: no test can put a process into a driver's uninterruptible sleep."""

    pid: int = 4_000_000
    gone: anyio.Event = field(default_factory=anyio.Event)

    @property
    def is_alive(self) -> bool:
        return not self.gone.is_set()


async def test_a_worker_that_cannot_be_reaped_makes_its_lane_sick(run_fleet: RunFleet, broken: Broken) -> None:
    """No one measures on a device that a dead worker still holds; when it is let go, a canary and on it goes."""
    stuck = Stuck()
    async with _lane(run_fleet, broken, reap_s=0.05) as (lane, _):
        await broken.lose_worker(lane)
        worker: WorkerProcess = stuck  # type: ignore[assignment]
        lane.record.ending.append(worker)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lane.open_problem, broken.bench, DEADLINES)
            await until(lambda: lane.health.is_sick)
            assert "worker 4000000 was killed but does not end" in lane.describe_lane().reason
            assert lane.worker_pid is None
            stuck.gone.set()
        assert (lane.health.is_sick, broken.diary[0]) == (False, "sick")
        assert lane.worker_pid is not None


async def test_spares_end_where_a_problem_has_no_memory(run_fleet: RunFleet, broken: Broken) -> None:
    """Their contexts may be what it lacks."""
    async with run_fleet() as fleet:
        lane = Lane(GPU, fleet)
        fleet.prepare_spares(Role.BENCH, broken.bench.environment, "fake", 3, device=GPU)
        await until(lambda: warm_spares(fleet) == 3)
        async with lane.hold(1):
            fails = broken.bench_that("raise RuntimeError('CUDA out of memory')")
            with pytest.raises(CannotOpen, match="CUDA out of memory"):
                await lane.open_problem(fails, DEADLINES)
            assert warm_spares(fleet) == 0
