"""Real workers, and code for them to run."""

import itertools
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from ktuned.fleet import pool
from ktuned.fleet.pool import Fleet
from ktuned.fleet.process import Environment, WorkerProcess, spawn
from tests.fleet.playing import DEADLINE_S, Playground, base_env

StartWorker = Callable[..., Coroutine[Any, Any, WorkerProcess]]
RunFleet = Callable[..., AbstractAsyncContextManager[Fleet]]


@pytest.fixture
def playground(tmp_path: Path) -> Playground:
    """Return a root for kernel files."""
    root = tmp_path.resolve() / "root"
    root.mkdir()
    return Playground(root)


@pytest.fixture
def environment(playground: Playground) -> Environment:
    """Return this interpreter, in the playground."""
    return Environment(sys.executable, str(playground.root))


@pytest.fixture
async def start_worker(tmp_path: Path, environment: Environment) -> AsyncIterator[StartWorker]:
    """Return a function that starts a worker and waits until it is ready; all are killed and buried afterwards."""
    numbers = itertools.count()
    workers = []

    async def start(
        environment: Environment = environment, *, ready_s: float = DEADLINE_S, **env: str
    ) -> WorkerProcess:
        number = f"{tmp_path.name}-{next(numbers)}"
        scratch = tmp_path / "scratch" / number
        worker = spawn(environment, role="inspect", base_env=base_env() | env, worker_id=number, scratch=scratch)
        workers.append(worker)
        await worker.ready(ready_s)
        return worker

    yield start
    for worker in workers:
        worker.kill()
        with anyio.fail_after(DEADLINE_S):
            await worker.gone.wait()
        worker.bury()


@pytest.fixture
async def worker(start_worker: StartWorker) -> WorkerProcess:
    """Return a worker that is ready."""
    return await start_worker()


@pytest.fixture
def run_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFleet:
    """Return a function that runs a fleet whose spares import no torch, which takes seconds."""
    monkeypatch.setattr(pool, "BENCH_MODULES", ())

    @asynccontextmanager
    async def run(
        *, spawn_s: float = DEADLINE_S, compile_cores: frozenset[int] = frozenset(), **env: str
    ) -> AsyncIterator[Fleet]:
        fleet = Fleet(
            scratch=tmp_path / "tmp",
            cache=tmp_path / "cache",
            base_env=base_env() | env,
            compile_slots=2,
            compile_cores=compile_cores,
            spawn_s=spawn_s,
        )
        async with fleet.running():
            yield fleet

    return run
