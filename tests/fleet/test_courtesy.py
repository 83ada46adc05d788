"""A GPU that applications use: a tenth of its time, only memory that is free, and nothing when it is wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from ktuned.fleet.courtesy import Applications, Courtesy, Duty
from ktuned.fleet.executor import Environment, KernelCode
from ktuned.fleet.health import Health
from ktuned.fleet.lanes import Bench, CannotOpen, Lane, LaneCrowded
from ktuned.ipc import requests
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Target
from tests.fleet.conftest import RunFleet
from tests.fleet.playing import DEADLINE_S, DEADLINES, FAKE_DIRECTORY, Playground

GPU = Device(DeviceName("cuda:0"), DeviceModel("a GPU"), Target("sm_90"))
CPU = Device(DeviceName("cpu:0"), DeviceModel("a CPU"), Target("here"))

TORCH = """\
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
"""As much of torch as finds out whether there is room; the file ``free`` beside it says how much."""

KERNEL = """\
from ktuned import kernel, space, tensor
from ktuned_fake import Build

@kernel(backend="fake", space=space(us=[1.0]), inputs=lambda p: dict(x=tensor(1 << 28)), check=None)
def it(p, c):
    return Build(**c)
"""


class TestDuty:
    """Decided without IO."""

    def test_a_use_is_followed_by_nine_times_as_long(self) -> None:
        """Uses in a row add up; a pause counts."""
        duty = Duty(0.1)
        duty.used(10.0, 10.5)
        assert duty.wait_s(10.5) == pytest.approx(4.5)
        duty.used(12.0, 12.1)
        assert duty.wait_s(12.1) == pytest.approx(3.9)
        assert duty.wait_s(100.0) == 0.0


class TestApplications:
    """Processes, while they live."""

    def test_one_that_ended_is_none(self) -> None:
        """Nor a later one with its number."""
        starts = {1: "a", 2: "b"}
        known = Applications(lambda pid: starts.get(pid, ""))
        for pid in (1, 2, 3):
            known.note(pid)
        assert known.present() == (1, 2)
        del starts[1]
        starts[2] = "c"
        assert known.present() == ()

    def test_real_processes(self) -> None:
        """By their start times."""
        known = Applications()
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            known.note(process.pid)
            known.note(os.getpid())
            assert known.present() == (process.pid,)
        assert known.present() == ()


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.mark.anyio
class TestTurns:
    """A lane's next use of a GPU."""

    @pytest.fixture
    def clock(self) -> Clock:
        """Return a clock at 0 s."""
        return Clock()

    def courtesy(self, clock: Clock, *, alive: bool = True, waited_for: int = 0, used: bool = True) -> Courtesy:
        """Return the rule, after half a second of use beside an application."""
        lives = {7: "a"}

        async def is_used(device: Device) -> bool:
            clock.now += 2.0
            return used

        made = Courtesy(
            Applications(lambda pid: lives.get(pid, "")),
            is_waited_for=lambda job: job == waited_for,
            is_used=is_used,
            clock=clock,
            look_s=0.0,
        )
        made.applications.note(7)
        made.used(GPU, 0.0, 0.5)
        clock.now = 0.5
        if not alive:
            del lives[7]
        return made

    async def test_beside_an_application_it_waits(self, clock: Clock) -> None:
        """Until its use is a tenth of the time."""
        await self.courtesy(clock).turn(GPU, job=1)
        assert clock.now >= 5.0

    @pytest.mark.parametrize(
        "options", [{"alive": False}, {"waited_for": 1}, {"used": False}], ids=["ended", "waited-for", "idle"]
    )
    async def test_it_waits_no_longer_than_it_must(self, clock: Clock, options: dict[str, int]) -> None:
        """Not for an application that ended or rests, nor with a job that a client waits for."""
        await self.courtesy(clock, **options).turn(GPU, job=1)  # type: ignore[arg-type]
        assert clock.now < 5.0

    async def test_a_cpu_is_not_shared_in_this_way(self, clock: Clock) -> None:
        """The operating system shares it out."""
        courtesy = self.courtesy(clock)
        assert (courtesy.is_shared(GPU), courtesy.is_shared(CPU), courtesy.pids(CPU)) == (True, False, ())


@pytest.fixture
async def crowded(
    run_fleet: RunFleet, playground: Playground, environment: Environment, tmp_path: Path
) -> AsyncIterator[tuple[Lane, Bench, Path]]:
    """Return a lane beside an application, a problem of 1 GiB, and the file that says how much memory is free."""
    directory = tmp_path / "driver"
    directory.mkdir()
    (directory / "torch.py").write_text(TORCH)
    (playground.root / "tune_it.py").write_text(KERNEL)
    known = Applications(lambda pid: "a")
    known.note(7)
    request = requests.Open(playground.kernel("it"), {}, "fake", GPU, "", "expected")
    in_driver = replace(environment, env=(("PYTHONPATH", f"{directory}:{FAKE_DIRECTORY}"),))
    bench = Bench(in_driver, "fake", KernelCode("tune_it.py", ""), "one", request)
    async with run_fleet() as fleet:
        yield Lane(GPU, fleet, health=Health(first_pause_s=0.01), courtesy=Courtesy(known)), bench, directory / "free"


@pytest.mark.anyio
async def test_a_problem_without_room_is_not_opened(crowded: tuple[Lane, Bench, Path]) -> None:
    """The lane says why, and others may use it meanwhile; with room, the problem is made."""
    lane, bench, free = crowded
    free.write_text(str(4 << 30))
    async with lane.hold(1):
        with pytest.raises(LaneCrowded, match=r"cuda:0 has 4096 MiB free beside an application; this problem takes"):
            await lane.open(bench, DEADLINES | {"reference": DEADLINE_S})
    assert (lane.state, lane.worker_pid) == ("sick", None)
    free.write_text(str(40 << 30))
    # Torch's stand-in can make nothing.
    with anyio.fail_after(30):
        async with lane.hold(1):
            with pytest.raises(CannotOpen) as raised:
                await lane.open(bench, DEADLINES | {"reference": DEADLINE_S})
    assert "free beside an application" not in raised.value.message
