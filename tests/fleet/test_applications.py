"""A GPU that applications use: ktuned takes only a share of its time and free memory, and waits only if that helps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from ktuned.fleet.applications import Applications
from ktuned.fleet.device_share import LOOKS
from ktuned.fleet.executor import Environment, KernelCode, Worker
from ktuned.fleet.failures import CannotOpen, Health, LaneCrowded, Output
from ktuned.fleet.lane_machine import Bench, DeviceUsed, LaneState
from ktuned.fleet.lanes import Lane
from ktuned.ipc import replies, requests
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Role, Target
from tests.fleet.conftest import RunFleet
from tests.fleet.playground import DEADLINE_S, DEADLINES, FAKE_DIRECTORY, Playground

GPU = Device(DeviceName("cuda:0"), DeviceModel("a GPU"), Target("sm_90"))
CPU = Device(DeviceName("cpu:0"), DeviceModel("a CPU"), Target("here"))

FAKE_TORCH = """\
import pathlib

class cuda:
    @staticmethod
    def is_initialized(): return False
    @staticmethod
    def empty_cache(): pass
    @staticmethod
    def set_per_process_memory_fraction(share, device): pass
    @staticmethod
    def mem_get_info(device):
        free = int((pathlib.Path(__file__).parent / "free").read_text())
        return free, 80 << 30

class float32:
    itemsize = 4
"""
"""The part of torch that finds out whether there is room; the file ``free`` beside it has the free bytes."""

KERNEL = """\
from ktuned import kernel, space, tensor
from ktuned_fake import Build

@kernel(backend="fake", space=space(us=[1.0]), inputs=lambda p: dict(x=tensor(1 << 28)), check=None)
def it(p, c):
    return Build(**c)
"""


class TestApplications:
    """Processes of applications, while they live."""

    def test_a_process_that_has_ended_is_not_remembered(self) -> None:
        """A later process with the same id is not remembered either."""
        starts = {1: "a", 2: "b"}
        known = Applications(lambda pid: starts.get(pid, ""))
        for pid in (1, 2, 3):
            known.add_process(pid)
        assert known.list_living() == (1, 2)
        del starts[1]
        starts[2] = "c"
        assert known.list_living() == ()

    def test_a_real_process_is_remembered_until_it_ends(self) -> None:
        """Processes are identified by their start times."""
        known = Applications()
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            known.add_process(process.pid)
            known.add_process(os.getpid())
            assert known.list_living() == (process.pid,)
        assert known.list_living() == ()

    def test_applications_count_on_gpus_alone(self) -> None:
        """The operating system shares out a CPU."""
        known = make_applications()
        assert (known.list_on_device(GPU), known.list_on_device(CPU)) == ((7,), ())


def make_applications(*, alive: bool = True) -> Applications:
    """Return the known application 7, which may have ended."""
    lives = {7: "a"}
    known = Applications(lambda pid: lives.get(pid, ""))
    known.add_process(7)
    if not alive:
        del lives[7]
    return known


class LookingWorker(Worker):
    """A worker that is always asked to look, and finds the device as it is said."""

    def __init__(self, environment: Environment, *, is_free: bool) -> None:
        super().__init__(Role.BENCH, environment, 1)
        self.is_free = is_free
        self.looks: list[int] = []

    is_alive = True

    async def send_request(self, request: Any, deadlines: Mapping[str, float], **_: Any) -> tuple[Any, Output]:
        """Answer how long the look took from the application."""
        self.looks.append(request.looks)
        return replies.DeviceSeen(0.0 if self.is_free else 0.001), Output()

    def kill(self, why: str = "") -> None:
        """Do nothing: no process runs."""

    def measure_memory(self) -> None:
        """Do nothing."""

    def take_output(self) -> Output:
        """Return nothing."""
        return Output()

    def read_phase_durations(self) -> Mapping[str, float]:
        """Return nothing."""
        return {}


@pytest.mark.anyio
class TestHold:
    """When a lane uses its GPU again."""

    async def is_held(
        self,
        run_fleet: RunFleet,
        known: Applications,
        *,
        waited_for: int = 0,
        worker: LookingWorker | None = None,
        limit_s: float = DEADLINE_S,
    ) -> bool:
        """Return whether a job gets a lane that has taken more than its share from an application."""
        async with run_fleet() as fleet:
            fleet.applications = known
            lane = Lane(GPU, fleet, is_waited_for=lambda job: job == waited_for)
            fleet.handle(DeviceUsed(GPU, 1000.0, is_shared=True))
            if worker is not None:
                lane.record.state, lane.record.worker = LaneState.OPEN, worker
            with anyio.move_on_after(limit_s):
                async with lane.hold(1):
                    return True
            return False

    async def test_a_lane_waits_when_it_has_taken_its_share(
        self, run_fleet: RunFleet, environment: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It looks meanwhile whether the application has left the device."""
        monkeypatch.setattr("ktuned.fleet.lanes.LOOK_S", 0.001)
        worker = LookingWorker(environment, is_free=False)
        assert not await self.is_held(run_fleet, make_applications(), worker=worker, limit_s=0.1)
        assert set(worker.looks) == {LOOKS}

    async def test_a_lane_uses_a_device_that_its_worker_finds_free(
        self, run_fleet: RunFleet, environment: Environment
    ) -> None:
        """One look is enough."""
        worker = LookingWorker(environment, is_free=True)
        assert await self.is_held(run_fleet, make_applications(), worker=worker)
        assert worker.looks == [LOOKS]

    @pytest.mark.parametrize(
        ("known", "waited_for"),
        [(make_applications(alive=False), 0), (make_applications(), 1)],
        ids=["ended", "waited-for"],
    )
    async def test_a_lane_does_not_wait_for_an_application_that_has_ended(
        self, run_fleet: RunFleet, known: Applications, waited_for: int
    ) -> None:
        """It does not wait if a client waits for the job, either."""
        assert await self.is_held(run_fleet, known, waited_for=waited_for)


@pytest.fixture
async def crowded_lane(
    run_fleet: RunFleet, playground: Playground, environment: Environment, tmp_path: Path
) -> AsyncIterator[tuple[Lane, Bench, Path]]:
    """A lane beside an application, a problem of 1 GiB, and the file with the free memory."""
    directory = tmp_path / "driver"
    directory.mkdir()
    (directory / "torch.py").write_text(FAKE_TORCH)
    (playground.root / "tune_it.py").write_text(KERNEL)
    known = Applications(lambda pid: "a")
    known.add_process(7)
    request = requests.Open(playground.make_kernel_ref("it"), {}, "fake", GPU, "expected")
    driver_environment = replace(environment, env=(("PYTHONPATH", f"{directory}:{FAKE_DIRECTORY}"),))
    bench = Bench(driver_environment, "fake", KernelCode("tune_it.py", ""), "one", request)
    async with run_fleet() as fleet:
        fleet.applications = known
        yield Lane(GPU, fleet, health=Health(first_pause_s=0.01)), bench, directory / "free"


@pytest.mark.anyio
async def test_a_problem_without_room_is_not_opened(crowded_lane: tuple[Lane, Bench, Path]) -> None:
    """The lane says why and is free for others; with room, the problem is opened."""
    lane, bench, free = crowded_lane
    free.write_text(str(4 << 30))
    async with lane.hold(1):
        with pytest.raises(LaneCrowded, match=r"an application leaves 4096 MiB of cuda:0 free; this problem needs"):
            await lane.open_problem(bench, DEADLINES | {"reference": DEADLINE_S})
    assert (lane.state, lane.worker_pid) == ("sick", None)
    free.write_text(str(40 << 30))
    # The fake torch cannot make tensors.
    with anyio.fail_after(30):
        async with lane.hold(1):
            with pytest.raises(CannotOpen) as caught:
                await lane.open_problem(bench, DEADLINES | {"reference": DEADLINE_S})
    assert "an application leaves" not in caught.value.message
