"""Spares: what they are asked to do before they are lent, and how many a GPU has."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from msgspec.structs import replace

from ktuned.fleet.executor import Environment, Worker
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.idle import IdleWorkers
from ktuned.fleet.priority_semaphore import Turns
from ktuned.fleet.quiet import QuietGate
from ktuned.fleet.spares import BENCH_MODULES, WARM_S, Spares
from ktuned.ipc import requests
from ktuned.model import Device, DeviceName, Role
from tests.fleet.conftest import RunFleet
from tests.fleet.playing import GPU, gpu_environment, until, warm_spares

pytestmark = pytest.mark.anyio

ENVIRONMENT = Environment("python", ".")


class Lent:
    """A fleet whose workers do at once what they are asked, and note it."""

    spawn_s = 1.0

    def __init__(self, tasks: anyio.abc.TaskGroup, *, has_contexts: bool = False) -> None:
        self._has_contexts = has_contexts
        self.asked: list[requests.Request[Any, Any]] = []
        self.started: list[Worker] = []
        self.released: list[Worker] = []
        self._tasks = tasks

    @property
    def has_contexts(self) -> bool:
        """Return what was said, or whether a worker makes one."""
        return self._has_contexts or any(worker.makes_context for worker in self.started)

    def gate_of(self, environment: Environment) -> QuietGate:
        """Return a gate that lets all start."""
        return cast(QuietGate, SimpleNamespace(starting=nullcontext))

    def slots_of(self, environment: Environment) -> Turns:
        """Return one slot."""
        return Turns()

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Run something."""
        self._tasks.start_soon(work, *arguments)

    async def start(self, role: Role, environment: Environment) -> Worker:
        """Return a worker."""

        async def exchange(request: requests.Request[Any, Any], deadlines: Mapping[str, float]) -> None:
            self.asked.append(request)

        played = SimpleNamespace(role=role, started=0.0, pid=1, makes_context=False, exchange=exchange, timeline=dict)
        self.started.append(cast(Worker, played))
        return self.started[-1]

    def release(self, worker: Worker) -> None:
        """Take a worker back."""
        self.released.append(worker)


@pytest.mark.parametrize("has_contexts", [False, True])
async def test_no_context_is_made_where_a_lane_may_be_timing(*, has_contexts: bool) -> None:
    """A lane may take a warm spare at any moment: only the first worker of all makes its context while it imports."""
    async with anyio.create_task_group() as tasks:
        lent = Lent(tasks, has_contexts=has_contexts)
        spares = Spares(lent, IdleWorkers(), BENCH_MODULES, are_kept=True)
        spares.prepare(Role.BENCH, ENVIRONMENT, "nvrtc", 2, with_context=True)
        spares.prepare(Role.BENCH, replace(ENVIRONMENT, project="another"), "nvrtc", with_context=True)
    held = [request.holds_context for request in lent.asked if isinstance(request, requests.Prepare)]
    assert held == [not has_contexts, False, False]
    assert len(lent.released) == 3


async def spare_phases(run_fleet: RunFleet, tmp_path: Path, state: str) -> tuple[list[int], list[str]]:
    """Make a spare for a GPU that is in a state; return how many requests each spare has had, and the notices."""
    environment = gpu_environment(tmp_path, state)
    async with run_fleet() as fleet:
        turns = Turns()
        fleet.spares.prepare_warm(environment, "fake", GPU, turns, 2)
        fleet.spares.prepare_warm(environment, "fake", GPU, turns, 2)
        await until(lambda: warm_spares(fleet) == 2)
        assert len(fleet.describe()) == 2
        worker = await fleet.acquire(Role.BENCH, environment, GPU.name)
        other = await fleet.acquire(Role.BENCH, environment, "cuda:1")
        counts = [worker.requests, other.requests]
        for one in (worker, other):
            one.kill()
        return counts, fleet.notices


async def test_spare_of_a_gpu_has_its_context(run_fleet: RunFleet, tmp_path: Path) -> None:
    """It has imported everything and worked on the device before it is lent; another device's lane gets its own."""
    assert await spare_phases(run_fleet, tmp_path, "well") == ([2, 0], [])


async def test_spare_that_the_gpu_refuses_stays_cold_and_is_announced(run_fleet: RunFleet, tmp_path: Path) -> None:
    """For want of GPU memory a spare has no context: the notice says so, and it is not made again and again."""
    counts, notices = await spare_phases(run_fleet, tmp_path, "CUDA error: out of memory")
    assert counts == [2, 0]
    assert [notice.split(":")[0] for notice in notices] == ["no warm spare on cuda"]
    assert "out of memory" in notices[0]


async def two_that_wait(fleet: Fleet, environment: Environment, turns: Turns) -> None:
    """Have two spares import what they need, which then wait for a GPU that is held."""
    fleet.spares.prepare_warm(environment, "fake", GPU, turns, 2)
    await until(lambda: len(list(fleet._idle)) == 2)


async def test_spares_work_on_a_gpu_in_turns_with_its_lanes(run_fleet: RunFleet, tmp_path: Path) -> None:
    """Nothing is timed beside one: it waits while a lane has the device, and keeps it from lanes while it works."""
    environment = gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        turns = Turns()
        async with turns.hold(1):
            await two_that_wait(fleet, environment, turns)
            await anyio.wait_all_tasks_blocked()
            assert turns.waiting == [0]
            assert {worker.requests for worker in fleet._idle} == {1}
        assert turns.is_full
        await until(lambda: warm_spares(fleet) == 2)
        assert not turns.is_full


async def test_a_lane_that_has_its_gpu_takes_a_spare_that_waits_for_it(run_fleet: RunFleet, tmp_path: Path) -> None:
    """Which has imported what is needed; the GPU's others are warmed after it, and another is not made for it."""
    environment = gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        turns = Turns()
        async with turns.hold(1):
            await two_that_wait(fleet, environment, turns)
            worker = await fleet.acquire(Role.BENCH, environment, GPU.name)
        assert worker.requests == 1
        await until(lambda: warm_spares(fleet) == 1)
        assert len(fleet.describe()) == 2
        worker.kill()


async def test_a_hung_gpu_is_held_no_longer_than_a_spare_may_take(run_fleet: RunFleet, tmp_path: Path) -> None:
    """The spare that hangs there is killed at its deadline, or when someone ends it, and the lanes have the GPU."""
    environment = gpu_environment(tmp_path, "hung")
    async with run_fleet() as fleet:
        turns = Turns()
        fleet.spares.prepare_warm(environment, "fake", GPU, turns, 1)
        await until(lambda: turns.is_full)
        (entry,) = fleet.describe()
        os.kill(entry["pid"], signal.SIGKILL)
        with anyio.fail_after(WARM_S - 1):
            async with turns.hold(1):
                assert warm_spares(fleet) == 0


async def test_each_gpu_of_a_machine_has_its_spares(run_fleet: RunFleet, tmp_path: Path) -> None:
    """What one has under way, or is at work on, does not count as the other's."""
    environment = gpu_environment(tmp_path, "well")
    other = Device(DeviceName("cuda:1"), GPU.model, GPU.target)
    async with run_fleet() as fleet:
        for device in (GPU, other):
            fleet.spares.prepare_warm(environment, "fake", device, Turns(), 2)
        await until(lambda: (warm_spares(fleet), warm_spares(fleet, other.name)) == (2, 2))
        assert len(fleet.describe()) == 4


async def test_a_spare_under_way_is_warmed_when_it_is_needed(run_fleet: RunFleet, tmp_path: Path) -> None:
    """A failure while spares still import starts no others; they are warm when they are there."""
    environment = gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        fleet.spares.prepare(Role.BENCH, environment, "fake", 2)
        fleet.spares.prepare_warm(environment, "fake", GPU, Turns(), 2)
        await until(lambda: warm_spares(fleet) == 2)
        assert len(fleet.describe()) == 2


async def test_after_a_failure_more_spares_are_made(run_fleet: RunFleet, tmp_path: Path) -> None:
    """Also while the first are still being warmed; with enough of them nothing begins."""
    environment = gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        turns = Turns()
        fleet.spares.prepare_warm(environment, "fake", GPU, turns, 1)
        await until(lambda: turns.is_full or warm_spares(fleet))
        fleet.spares.prepare_warm(environment, "fake", GPU, turns, 3)
        await until(lambda: warm_spares(fleet) == 3)
        fleet.spares.prepare_warm(environment, "fake", GPU, turns, 3)
        await anyio.wait_all_tasks_blocked()
        assert len(fleet.describe()) == 3


async def test_a_fleet_knows_that_a_worker_has_its_context_on_a_gpu(run_fleet: RunFleet, tmp_path: Path) -> None:
    """In use, or idle as a warm spare, which a lane may take at any moment; a CPU's worker has none."""
    environment = gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        worker = await fleet.acquire(Role.BENCH, environment, "cpu:0")
        assert not fleet.has_contexts
        fleet.spares.prepare_warm(environment, "fake", GPU, Turns(), 1)
        await until(lambda: warm_spares(fleet) == 1)
        assert fleet.has_contexts
        spare = await fleet.acquire(Role.BENCH, environment, GPU.name)
        assert fleet.has_contexts
        for one in (worker, spare):
            one.kill()
            await one.gone.wait()
        await until(lambda: not fleet.has_contexts)
