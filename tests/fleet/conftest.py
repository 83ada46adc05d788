"""Real workers, and code for them to run."""

import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from ktuned.fleet.executor import Environment
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.lane_machine import FleetLimits
from ktuned.fleet.local_executor import WARDEN_S, LocalExecutor
from ktuned.fleet.process import StartProcess, WorkerProcess, spawn_worker
from ktuned.ipc import Places
from ktuned.model.keys import Role
from tests.fleet.playground import DEADLINE_S, PROJECT, Playground, make_base_env
from tests.forked_processes.starting import start_process as start_forked

StartWorker = Callable[..., Coroutine[Any, Any, WorkerProcess]]
RunFleet = Callable[..., AbstractAsyncContextManager[Fleet]]


@pytest.fixture
def playground(tmp_path: Path) -> Playground:
    """A root for kernel files."""
    root = tmp_path.resolve() / "root"
    root.mkdir()
    return Playground(root)


@pytest.fixture
def environment(playground: Playground) -> Environment:
    """This interpreter, with the playground as its root."""
    return Environment(sys.executable, str(playground.root), project=PROJECT)


@pytest.fixture
def start_process() -> StartProcess:
    """How workers are started; tests of processes override this fixture."""
    return start_forked


@pytest.fixture
async def start_worker(
    tmp_path: Path, environment: Environment, start_process: StartProcess
) -> AsyncIterator[StartWorker]:
    """A function that starts a worker and waits until it is ready; all workers are killed and cleaned up afterwards."""
    numbers = itertools.count()
    workers = []

    async def start(
        environment: Environment = environment, *, ready_s: float = DEADLINE_S, **env: str
    ) -> WorkerProcess:
        # Unique on the machine: a worker's clean-up ends every process with its number.
        number = f"{os.getpid()}-{tmp_path.name}-{next(numbers)}"
        scratch = tmp_path / "scratch" / number
        worker = spawn_worker(
            environment,
            role=Role.INSPECT,
            base_env=make_base_env() | env,
            places=Places({PROJECT: environment.cwd}, str(tmp_path / "artifacts"), ""),
            worker_id=number,
            scratch=scratch,
            start_process=start_process,
        )
        workers.append(worker)
        await worker.await_ready(ready_s)
        return worker

    yield start
    for worker in workers:
        worker.kill()
        with anyio.fail_after(DEADLINE_S):
            await worker.gone.wait()
        worker.remove_traces()


@pytest.fixture
async def worker(start_worker: StartWorker) -> WorkerProcess:
    """A worker that is ready."""
    return await start_worker()


@pytest.fixture
def run_fleet(tmp_path: Path, start_process: StartProcess) -> RunFleet:
    """A function that runs a fleet whose spares do not import torch, which takes seconds."""

    @asynccontextmanager
    async def run(
        *,
        compile_slots: int | None = 2,
        spawn_s: float = DEADLINE_S,
        compile_cores: frozenset[int] = frozenset(),
        spare_modules: Sequence[str] = (),
        limits: FleetLimits | None = None,
        warden_s: float = WARDEN_S,
        **env: str,
    ) -> AsyncIterator[Fleet]:
        executor = LocalExecutor(
            scratch=tmp_path / "tmp",
            cache=tmp_path / "cache",
            artifacts=tmp_path / "artifacts",
            base_env=make_base_env() | env,
            compile_cores=compile_cores,
            warden_s=warden_s,
            start_process=start_process,
        )
        fleet = Fleet(
            executor,
            compile_slots=compile_slots,
            deadlines={"spawn": spawn_s},
            spare_modules=spare_modules,
            limits=limits,
        )
        async with fleet.run_workers():
            yield fleet

    return run
