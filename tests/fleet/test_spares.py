"""What a spare is asked to do before it is lent."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from ktuned.fleet.executor import Environment, Worker
from ktuned.fleet.idle import IdleWorkers
from ktuned.fleet.priority_semaphore import Turns
from ktuned.fleet.quiet import QuietGate
from ktuned.fleet.spares import BENCH_MODULES, Spares
from ktuned.ipc import requests
from ktuned.model import Role

pytestmark = pytest.mark.anyio

ENVIRONMENT = Environment("python", ".")


class Lent:
    """A fleet whose workers do at once what they are asked, and note it."""

    spawn_s = 1.0

    def __init__(self, tasks: anyio.abc.TaskGroup, *, is_measuring: bool) -> None:
        self.is_measuring = is_measuring
        self.asked: list[requests.Request[Any, Any]] = []
        self.released: list[Worker] = []
        self._tasks = tasks

    def gate_of(self, node: str) -> QuietGate:
        """Return a gate that lets all start."""
        return cast(QuietGate, SimpleNamespace(starting=nullcontext))

    def slots_of(self, node: str) -> Turns:
        """Return one slot."""
        return Turns()

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Run something."""
        self._tasks.start_soon(work, *arguments)

    async def start(self, role: Role, environment: Environment) -> Worker:
        """Return a worker."""

        async def exchange(request: requests.Request[Any, Any], deadlines: Mapping[str, float]) -> None:
            self.asked.append(request)

        played = SimpleNamespace(role=role, started=0.0, pid=1, exchange=exchange, timeline=dict)
        return cast(Worker, played)

    def release(self, worker: Worker) -> None:
        """Take a worker back."""
        self.released.append(worker)


@pytest.mark.parametrize("is_measuring", [False, True])
async def test_no_context_is_made_beside_a_lane_at_work(*, is_measuring: bool) -> None:
    """A job in another environment starts its workers while a lane may be timing: the first has its context later."""
    async with anyio.create_task_group() as tasks:
        lent = Lent(tasks, is_measuring=is_measuring)
        spares = Spares(lent, IdleWorkers(), BENCH_MODULES, are_kept=True)
        spares.prepare(Role.BENCH, ENVIRONMENT, "nvrtc", 2, contexts=1)
    held = [request.holds_context for request in lent.asked if isinstance(request, requests.Prepare)]
    assert held == [not is_measuring, False]
    assert len(lent.released) == 2
