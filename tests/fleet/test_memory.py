"""Memory: a worker that outgrows its limit is stopped, one that leaks is replaced, the kernel bounds each process."""

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
from tests.fleet.playing import DEADLINES, HANG, Playground, until

pytestmark = pytest.mark.anyio

MIB = 1 << 20
LIMIT = 160 * MIB
"""A worker that did nothing yet has some 25 MiB."""


def eat(mib: int) -> str:
    """Return code that keeps so much memory for as long as its process lives."""
    return f"import sys\nsys.eaten = getattr(sys, 'eaten', []) + [b'x' * ({mib} << 20)]\n"


@contextmanager
def limited(fleet: Fleet) -> Iterator[Fleet]:
    """Let each of a fleet's workers use little."""
    fleet.apply_limits(2, (LIMIT, LIMIT))
    yield fleet


async def test_a_worker_that_outgrows_its_limit_is_stopped(run_fleet: RunFleet, environment: Environment) -> None:
    """The error says that it ran out of memory, and how much it may have; a kill of ours excuses no one."""
    playground = Playground(Path(environment.cwd))
    async with run_fleet() as fleet:
        with limited(fleet), pytest.raises(WorkerDied, match=r"out of memory: .* GiB it may during inspect") as caught:
            async with fleet.lend_worker(Role.BENCH, environment) as worker:
                await worker.send_request(playground.request(eat(200), HANG), DEADLINES)
        assert not caught.value.is_outside_kill


async def test_what_a_worker_starts_counts_too(run_fleet: RunFleet, environment: Environment) -> None:
    """A compiler is a child: its memory is its worker's, and it goes with it."""
    playground = Playground(Path(environment.cwd))
    body = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {eat(200) + HANG!r}])"
    async with run_fleet() as fleet:
        with limited(fleet), pytest.raises(WorkerDied, match="out of memory"):
            async with fleet.lend_worker(Role.BENCH, environment) as worker:
                await worker.send_request(playground.request(body), DEADLINES)


async def test_an_allocation_too_fast_for_the_watcher_is_refused_by_the_kernel(
    run_fleet: RunFleet, environment: Environment
) -> None:
    """An allocation that the kernel refuses ends the worker as out of memory, not the config as one that raised."""
    playground = Playground(Path(environment.cwd))
    async with run_fleet() as fleet:
        with pytest.raises(WorkerDied, match=r"out of memory: .* was refused .* during compile"):
            async with fleet.lend_worker(Role.COMPILE, environment) as worker:
                await worker.send_request(playground.compile_request({"does": "compile_eat"}), DEADLINES)


@pytest.mark.parametrize(("role", "is_capped"), [(Role.COMPILE, True), (Role.INSPECT, True), (Role.BENCH, False)])
async def test_the_kernel_bounds_workers_that_need_no_driver(
    run_fleet: RunFleet, environment: Environment, role: Role, is_capped: bool
) -> None:
    """Drivers map what they like: a bench worker is watched, the others are bounded as well."""
    async with run_fleet() as fleet:
        with limited(fleet):
            async with fleet.lend_worker(role, environment) as worker:
                soft, _ = resource.prlimit(worker.pid, resource.RLIMIT_DATA)
                assert soft == (LIMIT * 3 // 2 if is_capped else resource.RLIM_INFINITY)
                assert Path(f"/proc/{worker.pid}/oom_score_adj").read_text() == "800\n"


async def _used(fleet: Fleet, environment: Environment, body: str) -> int:
    """Run code in a compile worker, wait until its memory was looked at, give it back; return which one it was."""
    playground = Playground(Path(environment.cwd))
    async with fleet.lend_worker(Role.COMPILE, environment) as worker:
        await worker.send_request(playground.request(body), DEADLINES)
        worker.memory_bytes = 0
        await until(lambda: worker.memory_bytes)
        return worker.pid


async def test_a_worker_that_grew_is_replaced(run_fleet: RunFleet, environment: Environment) -> None:
    """What it has after its first request is what it needs; a quarter of its limit more, and another one takes over."""
    async with run_fleet() as fleet:
        with limited(fleet):
            first = await _used(fleet, environment, eat(60))
            assert await _used(fleet, environment, eat(5)) == first
            assert await _used(fleet, environment, eat(50)) == first
            assert await _used(fleet, environment, "") != first
