"""Spares: what they are asked to do before they are lent, and how many a GPU has."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

from ktuned.fleet.executor import Environment
from ktuned.fleet.fleet import WARM_S, Fleet
from ktuned.model import Role
from tests.fleet.conftest import RunFleet
from tests.fleet.playing import GPU, gpu_environment, until, warm_spares

pytestmark = pytest.mark.anyio

ENVIRONMENT = Environment("python", ".")


async def spare_phases(run_fleet: RunFleet, tmp_path: Path, state: str) -> tuple[list[int], list[str]]:
    """Make a spare for a GPU that is in a state; return how many requests each spare has had, and the notices."""
    environment = gpu_environment(tmp_path, state)
    async with run_fleet() as fleet:
        fleet.prepare_spares(Role.BENCH, environment, "fake", 2, device=GPU)
        fleet.prepare_spares(Role.BENCH, environment, "fake", 2, device=GPU)
        await until(lambda: warm_spares(fleet) == 2)
        assert len(fleet.describe_workers()) == 2
        worker = await fleet.acquire_worker(Role.BENCH, environment, GPU.name)
        other = await fleet.acquire_worker(Role.BENCH, environment, "cuda:1")
        counts = [worker.requests, other.requests]
        for one in (worker, other):
            one.kill()
        return counts, fleet.machine.notices


async def test_spare_of_a_gpu_has_its_context(run_fleet: RunFleet, tmp_path: Path) -> None:
    """It has imported everything and worked on the device before it is lent; another device's lane gets its own."""
    assert await spare_phases(run_fleet, tmp_path, "well") == ([2, 0], [])


async def test_spare_that_the_gpu_refuses_stays_cold_and_is_announced(run_fleet: RunFleet, tmp_path: Path) -> None:
    """For want of GPU memory a spare has no context: the notice says so, and it is not made again and again."""
    counts, notices = await spare_phases(run_fleet, tmp_path, "CUDA error: out of memory")
    assert counts == [2, 0]
    assert [notice.split(":")[0] for notice in notices] == ["no warm spare on cuda"]
    assert "out of memory" in notices[0]


async def two_that_wait(fleet: Fleet, environment: Environment) -> None:
    """Have two spares import what they need, which then wait for a GPU that is held."""
    fleet.prepare_spares(Role.BENCH, environment, "fake", 2, device=GPU)
    await until(lambda: len(list(fleet.machine.idle)) == 2)


async def test_spares_work_on_a_gpu_in_turns_with_its_lanes(run_fleet: RunFleet, tmp_path: Path) -> None:
    """Nothing is timed beside one: it waits while a lane has the device, and keeps it from lanes while it works."""
    environment = gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        turns = fleet.get_turns(GPU)
        async with turns.hold_turn(1):
            await two_that_wait(fleet, environment)
            await anyio.wait_all_tasks_blocked()
            assert turns.waiting == [0]
            assert {worker.requests for worker in fleet.machine.idle} == {1}
        assert turns.is_full
        await until(lambda: warm_spares(fleet) == 2)
        assert not turns.is_full


async def test_a_hung_gpu_is_held_no_longer_than_a_spare_may_take(run_fleet: RunFleet, tmp_path: Path) -> None:
    """The spare that hangs there is killed at its deadline, or when someone ends it, and the lanes have the GPU."""
    environment = gpu_environment(tmp_path, "hung")
    async with run_fleet() as fleet:
        turns = fleet.get_turns(GPU)
        fleet.prepare_spares(Role.BENCH, environment, "fake", 1, device=GPU)
        await until(lambda: turns.is_full)
        (entry,) = fleet.describe_workers()
        os.kill(entry.pid, signal.SIGKILL)
        with anyio.fail_after(WARM_S - 1):
            async with turns.hold_turn(1):
                assert warm_spares(fleet) == 0


async def test_a_spare_under_way_is_warmed_when_it_is_needed(run_fleet: RunFleet, tmp_path: Path) -> None:
    """A failure while spares still import starts no others; they are warm when they are there."""
    environment = gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        fleet.prepare_spares(Role.BENCH, environment, "fake", 2)
        fleet.prepare_spares(Role.BENCH, environment, "fake", 2, device=GPU)
        await until(lambda: warm_spares(fleet) == 2)
        assert len(fleet.describe_workers()) == 2


async def test_a_fleet_knows_that_a_worker_has_its_context_on_a_gpu(run_fleet: RunFleet, tmp_path: Path) -> None:
    """In use, or idle as a warm spare, which a lane may take at any moment; a CPU's worker has none."""
    environment = gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        worker = await fleet.acquire_worker(Role.BENCH, environment, "cpu:0")
        assert not fleet.has_contexts
        fleet.prepare_spares(Role.BENCH, environment, "fake", 1, device=GPU)
        await until(lambda: warm_spares(fleet) == 1)
        assert fleet.has_contexts
        spare = await fleet.acquire_worker(Role.BENCH, environment, GPU.name)
        assert fleet.has_contexts
        for one in (worker, spare):
            one.kill()
            await one.gone.wait()
        await until(lambda: not fleet.has_contexts)
