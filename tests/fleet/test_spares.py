"""Spares: what they do before they are lent, and how many a GPU has."""

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
from tests.fleet.playground import GPU, count_warm_spares, make_gpu_environment, wait_until

pytestmark = pytest.mark.anyio

ENVIRONMENT = Environment("python", ".")


async def make_spares_and_count_requests(
    run_fleet: RunFleet, tmp_path: Path, state: str
) -> tuple[list[int], list[str]]:
    """Make spares for a GPU in a state; return how many requests each spare has had, and the notices."""
    environment = make_gpu_environment(tmp_path, state)
    async with run_fleet() as fleet:
        fleet.prepare_spares(Role.BENCH, environment, "fake", 2, device=GPU)
        fleet.prepare_spares(Role.BENCH, environment, "fake", 2, device=GPU)
        await wait_until(lambda: count_warm_spares(fleet) == 2)
        assert len(fleet.describe_workers()) == 2
        worker = await fleet.acquire_worker(Role.BENCH, environment, GPU.name)
        other = await fleet.acquire_worker(Role.BENCH, environment, "cuda:1")
        counts = [worker.requests, other.requests]
        for used in (worker, other):
            used.kill()
        return counts, fleet.machine.notices


async def test_spare_of_a_gpu_has_its_context(run_fleet: RunFleet, tmp_path: Path) -> None:
    """It has imported everything and used the device before it is lent; another device's lane gets its own spare."""
    assert await make_spares_and_count_requests(run_fleet, tmp_path, "well") == ([2, 0], [])


async def test_spare_that_the_gpu_refuses_stays_cold_and_is_announced(run_fleet: RunFleet, tmp_path: Path) -> None:
    """Without GPU memory a spare has no context: a notice says so, and it is not made again."""
    counts, notices = await make_spares_and_count_requests(run_fleet, tmp_path, "CUDA error: out of memory")
    assert counts == [2, 0]
    assert [notice.split(":")[0] for notice in notices] == ["no warm spare on cuda"]
    assert "out of memory" in notices[0]


async def make_two_waiting_spares(fleet: Fleet, environment: Environment) -> None:
    """Let two spares do their imports and wait for a GPU that is held."""
    fleet.prepare_spares(Role.BENCH, environment, "fake", 2, device=GPU)
    await wait_until(lambda: len(list(fleet.machine.idle)) == 2)


async def test_spares_work_on_a_gpu_in_turns_with_its_lanes(run_fleet: RunFleet, tmp_path: Path) -> None:
    """Nothing is timed beside a spare: it waits for lanes, and lanes wait for it."""
    environment = make_gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        turns = fleet.get_turns(GPU)
        async with turns.hold_turn(1):
            await make_two_waiting_spares(fleet, environment)
            await anyio.wait_all_tasks_blocked()
            assert turns.waiting == [0]
            assert {worker.requests for worker in fleet.machine.idle} == {1}
        assert turns.is_full
        await wait_until(lambda: count_warm_spares(fleet) == 2)
        assert not turns.is_full


async def test_a_hung_gpu_is_held_no_longer_than_a_spare_may_take(run_fleet: RunFleet, tmp_path: Path) -> None:
    """The hanging spare is killed at its deadline or from outside; then lanes get the GPU."""
    environment = make_gpu_environment(tmp_path, "hung")
    async with run_fleet() as fleet:
        turns = fleet.get_turns(GPU)
        fleet.prepare_spares(Role.BENCH, environment, "fake", 1, device=GPU)
        await wait_until(lambda: turns.is_full)
        (entry,) = fleet.describe_workers()
        os.kill(entry.pid, signal.SIGKILL)
        with anyio.fail_after(WARM_S - 1):
            async with turns.hold_turn(1):
                assert count_warm_spares(fleet) == 0


async def test_a_spare_under_way_is_warmed_when_it_is_needed(run_fleet: RunFleet, tmp_path: Path) -> None:
    """A failure while spares still import starts no others; they are warmed when they are ready."""
    environment = make_gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        fleet.prepare_spares(Role.BENCH, environment, "fake", 2)
        fleet.prepare_spares(Role.BENCH, environment, "fake", 2, device=GPU)
        await wait_until(lambda: count_warm_spares(fleet) == 2)
        assert len(fleet.describe_workers()) == 2


async def test_a_fleet_knows_that_a_worker_has_its_context_on_a_gpu(run_fleet: RunFleet, tmp_path: Path) -> None:
    """Lent workers and warm spares count, because a lane may take a spare at any moment; a CPU's worker does not."""
    environment = make_gpu_environment(tmp_path, "well")
    async with run_fleet() as fleet:
        worker = await fleet.acquire_worker(Role.BENCH, environment, "cpu:0")
        assert not fleet.has_contexts
        fleet.prepare_spares(Role.BENCH, environment, "fake", 1, device=GPU)
        await wait_until(lambda: count_warm_spares(fleet) == 1)
        assert fleet.has_contexts
        spare = await fleet.acquire_worker(Role.BENCH, environment, GPU.name)
        assert fleet.has_contexts
        for used in (worker, spare):
            used.kill()
            await used.gone.wait()
        await wait_until(lambda: not fleet.has_contexts)
