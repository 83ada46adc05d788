"""Memory: a worker that exceeds its limit is stopped, a leaking worker is replaced, the kernel bounds each process."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ktuned.fleet.executor import Environment
from ktuned.fleet.failures import WorkerDied
from ktuned.fleet.fleet import Fleet
from ktuned.model.keys import Role
from tests.fleet.conftest import RunFleet
from tests.fleet.playground import DEADLINES, HANG, Playground, wait_until

pytestmark = pytest.mark.anyio

MIB = 1 << 20
LIMIT = 160 * MIB
"""A new worker has about 25 MiB."""


def make_memory_code(mib: int) -> str:
    """Return code that allocates this much memory for the life of its process."""
    return f"import sys\nsys.eaten = getattr(sys, 'eaten', []) + [b'x' * ({mib} << 20)]\n"


@contextmanager
def limit_memory(fleet: Fleet) -> Iterator[Fleet]:
    """Limit the memory of a fleet's workers."""
    fleet.machine.memory_limits |= dict.fromkeys(Role, LIMIT)
    yield fleet


async def test_a_worker_that_outgrows_its_limit_is_stopped(run_fleet: RunFleet, environment: Environment) -> None:
    """The error says that it ran out of memory and what its limit is; the daemon's own kill excuses no config."""
    playground = Playground(Path(environment.cwd))
    async with run_fleet() as fleet:
        with (
            limit_memory(fleet),
            pytest.raises(WorkerDied, match=r"out of memory: .* GiB it may during inspect") as caught,
        ):
            async with fleet.lend_worker(Role.BENCH, environment) as worker:
                await worker.send_request(playground.write_and_request(make_memory_code(200), HANG), DEADLINES)
        assert not caught.value.is_outside_kill


async def test_what_a_worker_starts_counts_too(run_fleet: RunFleet, environment: Environment) -> None:
    """A compiler is a child: its memory counts as the worker's, and it ends with the worker."""
    playground = Playground(Path(environment.cwd))
    body = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {make_memory_code(200) + HANG!r}])"
    async with run_fleet() as fleet:
        with limit_memory(fleet), pytest.raises(WorkerDied, match="out of memory"):
            async with fleet.lend_worker(Role.BENCH, environment) as worker:
                await worker.send_request(playground.write_and_request(body), DEADLINES)


async def test_an_allocation_too_fast_for_the_watcher_is_refused_by_the_kernel(
    run_fleet: RunFleet, environment: Environment
) -> None:
    """The worker ends as out of memory, and the config does not count as one that raised."""
    playground = Playground(Path(environment.cwd))
    async with run_fleet() as fleet:
        with pytest.raises(WorkerDied, match=r"out of memory: the worker's allocation failed during compile"):
            async with fleet.lend_worker(Role.COMPILE, environment) as worker:
                await worker.send_request(playground.make_compile_request({"does": "compile_eat"}), DEADLINES)


@pytest.mark.parametrize(("role", "is_capped"), [(Role.COMPILE, True), (Role.INSPECT, True), (Role.BENCH, False)])
async def test_the_kernel_bounds_workers_that_need_no_driver(
    run_fleet: RunFleet, environment: Environment, role: Role, is_capped: bool
) -> None:
    """Drivers map much memory, so a bench worker is only watched."""
    async with run_fleet() as fleet:
        with limit_memory(fleet):
            async with fleet.lend_worker(role, environment) as worker:
                soft_limit, _ = resource.prlimit(worker.pid, resource.RLIMIT_DATA)
                assert soft_limit == (LIMIT * 3 // 2 if is_capped else resource.RLIM_INFINITY)
                assert Path(f"/proc/{worker.pid}/oom_score_adj").read_text() == "800\n"


async def run_and_get_pid(fleet: Fleet, environment: Environment, body: str) -> int:
    """Run code in a compile worker, wait until its memory was measured, give it back; return its process id."""
    playground = Playground(Path(environment.cwd))
    async with fleet.lend_worker(Role.COMPILE, environment) as worker:
        await worker.send_request(playground.write_and_request(body), DEADLINES)
        worker.memory_bytes = 0
        await wait_until(lambda: worker.memory_bytes)
        return worker.pid


async def test_a_worker_that_grew_is_replaced(run_fleet: RunFleet, environment: Environment) -> None:
    """Its memory after the first request is the baseline; beyond a quarter of its limit more, another worker takes
    over.
    """
    async with run_fleet() as fleet:
        with limit_memory(fleet):
            first = await run_and_get_pid(fleet, environment, make_memory_code(60))
            assert await run_and_get_pid(fleet, environment, make_memory_code(5)) == first
            assert await run_and_get_pid(fleet, environment, make_memory_code(50)) == first
            assert await run_and_get_pid(fleet, environment, "") != first
