"""Trials that are sent to a node while others are measured there: begun without their daemon, answered once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from ktuned.bridge import Call
from ktuned.fleet.bridge import Bridge
from ktuned.fleet.executor import Environment
from ktuned.fleet.failures import Output, WorkerDied
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.keeper import Keeper
from ktuned.fleet.lanes import Lane
from ktuned.fleet.local_executor import LocalExecutor
from ktuned.fleet.node_link import NodeLink
from ktuned.fleet.priority_semaphore import Turns
from ktuned.fleet.remote_executor import RemoteExecutor, RemoteWorker
from ktuned.ipc import replies, requests
from ktuned.model import PRESETS, Device, DeviceModel, DeviceName, Outcome, Phase, Role, Target
from tests.fleet.playing import DEADLINE_S

pytestmark = pytest.mark.anyio

DEADLINES: Mapping[str, float] = {Phase.LOAD: 9.0}
WELL = replies.Measurement(Outcome.MEASURED)


class Played:
    """A worker on a node: notes the units of each request, and answers when it may."""

    pid = 1
    memory_bytes = 0

    def __init__(self) -> None:
        self.gone = anyio.Event()
        self.begun: list[list[str]] = []
        self.news = anyio.Event()
        self._may: dict[int, anyio.Event] = {}
        self.last: replies.Measurement | None = WELL

    def may(self, number: int) -> anyio.Event:
        """Return what lets the request of that number be answered."""
        return self._may.setdefault(number, anyio.Event())

    async def exchange(
        self, request: requests.Trial, deadlines: Mapping[str, float], *, on_item: Callable[[Any], None]
    ) -> tuple[replies.Measurement, Output]:
        self.begun.append([unit.key for unit in request.units])
        self.news.set()
        self.news = anyio.Event()
        await self.may(len(self.begun)).wait()
        if self.last is None:
            self.gone.set()
            raise WorkerDied(-9, Phase.TIMING, Output())
        for unit in request.units[:-1]:
            on_item(replace(WELL, message=unit.key))
        return replace(self.last, message=request.units[-1].key), Output()

    def output(self) -> Output:
        return Output("said;")

    def timeline(self) -> dict[str, float]:
        return {}

    def measure_memory(self) -> None:
        """Use nothing."""

    def kill(self) -> None:
        self.gone.set()


class Link:
    """A link whose keeper is in this process."""

    reason = ""
    is_up = True
    info = SimpleNamespace(name="n1", id="1")

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def exchange(self, call: Call[Any, Any], deadline_s: float, take: Callable[[Any], None] | None = None) -> Any:
        async def send(item: Any) -> None:
            assert take is not None
            take(item)

        return await self._keeper.carry_out(call, send)


@asynccontextmanager
async def played(tmp_path: Path) -> AsyncIterator[tuple[RemoteWorker, Played]]:
    """Run one worker on a node, which holds no artifacts and is carried none."""
    worker = Played()

    async def start(role: Role, environment: Environment, **options: object) -> Played:
        return worker

    async def carry(call: object, deadline_s: float) -> replies.Empty:
        return replies.Empty()

    keeper = Keeper(cast(LocalExecutor, SimpleNamespace(start=start)), tmp_path)
    executor = RemoteExecutor(
        cast(Bridge, SimpleNamespace(exchange=carry)), artifacts=tmp_path / "artifacts", captures=tmp_path / "captures"
    )
    link = cast(NodeLink, Link(keeper))
    with anyio.fail_after(DEADLINE_S):
        async with executor.running():
            executor.attach(link)
            environment = Environment("python", str(tmp_path), node="n1")
            remote = await executor.start(Role.BENCH, environment, limit_bytes=0, deadline_s=1.0)
            yield remote, worker
            worker.kill()
            await remote.gone.wait()


def trial(*keys: str) -> requests.Trial:
    """Return a request to try artifacts."""
    return requests.Trial(tuple(requests.UnitRef(key, {}) for key in keys), PRESETS["fast"], judge_contention=False)


async def begun(worker: Played, count: int) -> None:
    """Wait until the worker has begun so many requests."""
    while len(worker.begun) < count:
        await worker.news.wait()


async def test_trials_follow_on_the_node(tmp_path: Path) -> None:
    """The worker begins with what was sent ahead as soon as it is free; the same trials then have those answers, in
    order and once, with what was printed.
    """
    said: list[str] = []
    async with played(tmp_path) as (remote, worker), anyio.create_task_group() as tasks:
        tasks.start_soon(remote.exchange, trial("a"), DEADLINES)
        await begun(worker, 1)
        await remote.expect(trial("b", "c"), DEADLINES)
        # A third one waits here: what is on its way is bounded.
        await remote.expect(trial("d"), DEADLINES)
        worker.may(1).set()
        worker.may(2).set()
        await begun(worker, 2)
        await anyio.wait_all_tasks_blocked()

        def on_item(item: replies.Measurement) -> None:
            said.append(item.message + remote.output().stdout)

        reply, _ = await remote.exchange(trial("b", "c"), DEADLINES, on_item=on_item)
        assert (said, reply.message) == (["bsaid;"], "c")
        assert worker.begun == [["a"], ["b", "c"]]


@pytest.mark.parametrize(
    "last", [replies.Measurement(Outcome.LAUNCH_ERROR), replies.Measurement(None), replace(WELL, is_guilty=True)]
)
async def test_doubt_about_the_worker_puts_trials_off(last: replies.Measurement, tmp_path: Path) -> None:
    """After a config that may have damaged the worker the daemon decides what comes next."""
    async with played(tmp_path) as (remote, worker), anyio.create_task_group() as tasks:
        tasks.start_soon(remote.exchange, trial("a"), DEADLINES)
        await begun(worker, 1)
        await remote.expect(trial("b"), DEADLINES)
        worker.last = last
        worker.may(1).set()
        worker.may(2).set()
        await anyio.wait_all_tasks_blocked()
        assert worker.begun == [["a"]]
        worker.last = WELL
        reply, _ = await remote.exchange(trial("b"), DEADLINES)
        assert reply.message == "b"
        assert worker.begun == [["a"], ["b"]]


async def test_a_death_takes_what_waits_with_it(tmp_path: Path) -> None:
    """What was sent ahead of a config that kills the worker is not begun: it is another worker's."""
    async with played(tmp_path) as (remote, worker), anyio.create_task_group() as tasks:

        async def die() -> None:
            with pytest.raises(WorkerDied):
                await remote.exchange(trial("a"), DEADLINES)

        tasks.start_soon(die)
        await begun(worker, 1)
        await remote.expect(trial("b"), DEADLINES)
        worker.last = None
        worker.may(1).set()
        await remote.gone.wait()
        assert not remote.is_alive
        assert worker.begun == [["a"]]


async def test_other_trials_come_after_those_sent_ahead(tmp_path: Path) -> None:
    """One that is tried again meanwhile costs those on the way nothing."""
    async with played(tmp_path) as (remote, worker), anyio.create_task_group() as tasks:
        tasks.start_soon(remote.exchange, trial("a"), DEADLINES)
        await begun(worker, 1)
        await remote.expect(trial("b"), DEADLINES)
        await anyio.wait_all_tasks_blocked()
        for number in (1, 2, 3):
            worker.may(number).set()
        assert (await remote.exchange(trial("a"), DEADLINES))[0].message == "a"
        assert (await remote.exchange(trial("b"), DEADLINES))[0].message == "b"
        assert worker.begun == [["a"], ["b"], ["a"]]


async def test_nothing_is_begun_before_there_are_trials(tmp_path: Path) -> None:
    """Of an idle worker only the artifacts are brought: the problem may not be open."""
    async with played(tmp_path) as (remote, worker):
        await remote.expect(trial("b"), DEADLINES)
        await anyio.wait_all_tasks_blocked()
        assert worker.begun == []


async def test_no_other_has_the_device_beside_what_was_begun_ahead(tmp_path: Path) -> None:
    """A lane that leaves it for another waits until that is over; its answers are there when it comes back."""
    turns = Turns()
    device = Device(DeviceName("n1/cuda:0"), DeviceModel("a GPU"), Target("sm_90"))
    async with played(tmp_path) as (remote, worker), anyio.create_task_group() as tasks:
        lane = Lane(device, cast(Fleet, SimpleNamespace()), turns=turns)
        lane._worker = remote
        was_given = anyio.Event()

        async def other() -> None:
            async with turns.hold(2):
                was_given.set()

        async def one() -> None:
            async with lane.hold(1):
                await lane.exchange(trial("a"), DEADLINES)

        tasks.start_soon(one)
        await begun(worker, 1)
        await lane.expect(trial("b"), DEADLINES)
        tasks.start_soon(other)
        worker.may(1).set()
        await begun(worker, 2)
        await anyio.wait_all_tasks_blocked()
        assert not was_given.is_set()
        worker.may(2).set()
        await was_given.wait()
        async with lane.hold(1):
            reply, _ = await lane.exchange(trial("b"), DEADLINES)
        assert (reply.message, worker.begun) == ("b", [["a"], ["b"]])
