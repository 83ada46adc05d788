"""A GPU that applications use: ktuned takes a tenth of its time and only free memory, and waits only if that helps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import anyio
import pytest
from msgspec.structs import replace

from ktuned.fleet.applications import Applications
from ktuned.fleet.executor import Environment, KernelCode
from ktuned.fleet.failures import CannotOpen, Health, LaneCrowded
from ktuned.fleet.lane_machine import Bench, DeviceUsed
from ktuned.fleet.lanes import Lane
from ktuned.ipc import requests
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Target
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


def make_applications(*, alive: bool = True, used: bool = True) -> Applications:
    """Return the known application 7, which may have ended or be idle."""
    lives = {7: "a"}

    async def is_used(device: Device) -> bool:
        return used

    known = Applications(lambda pid: lives.get(pid, ""), is_used=is_used)
    known.add_process(7)
    if not alive:
        del lives[7]
    return known


@pytest.mark.anyio
class TestHold:
    """When a lane uses its GPU again."""

    async def measure_wait_s(
        self, run_fleet: RunFleet, used_s: float, known: Applications, waited_for: int = 0
    ) -> float:
        """Return how long a job waits for a lane that has been used beside an application until now."""
        async with run_fleet() as fleet:
            fleet.applications = known
            lane = Lane(GPU, fleet, is_waited_for=lambda job: job == waited_for)
            now = monotonic()
            fleet.handle(DeviceUsed(GPU, now - used_s, now, is_shared=True))
            with anyio.fail_after(DEADLINE_S):
                async with lane.hold(1):
                    return monotonic() - now

    async def test_a_lane_beside_an_application_waits_between_requests(self, run_fleet: RunFleet) -> None:
        """It waits until its use is a tenth of the time."""
        assert await self.measure_wait_s(run_fleet, 0.02, make_applications()) >= 0.18

    @pytest.mark.parametrize(
        ("known", "waited_for"),
        [(make_applications(alive=False), 0), (make_applications(used=False), 0), (make_applications(), 1)],
        ids=["ended", "idle", "waited-for"],
    )
    async def test_a_lane_does_not_wait_for_an_application_that_rests(
        self, run_fleet: RunFleet, known: Applications, waited_for: int
    ) -> None:
        """It does not wait if a client waits for the job, either."""
        await self.measure_wait_s(run_fleet, 1000.0, known, waited_for)


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
