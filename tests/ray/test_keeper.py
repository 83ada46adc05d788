"""A node's keeper: what a worker answers, and what is watched for a daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest

from ktuned.backends import cpu
from ktuned.fleet.executor import Environment
from ktuned.fleet.failures import Output
from ktuned.fleet.local_executor import LocalExecutor
from ktuned.ipc import read_sight_text, replies, requests
from ktuned.model import Phase, Role
from ktuned_ray import node_calls
from ktuned_ray.keeper import Keeper
from tests.fleet.playing import DEADLINE_S

pytestmark = pytest.mark.anyio

CLOSE = msgspec.msgpack.encode(requests.Close())


class Scripted:
    """A worker that gives so many items at once, then as many with its reply."""

    pid = 1
    memory_bytes = 0

    def __init__(self, early: int, late: int) -> None:
        self.gone = anyio.Event()
        self.taken = anyio.Event()
        self._early, self._late = early, late

    async def send_request(
        self, request: object, deadlines: Mapping[str, float], *, on_item: Callable[[Any], None]
    ) -> tuple[replies.Empty, Output]:
        for number in range(self._early):
            on_item(replies.Failure(f"early {number}", ""))
        if self._early:
            await self.taken.wait()
        for number in range(self._late):
            on_item(replies.Failure(f"late {number}", ""))
        return replies.Empty(), Output()

    def take_output(self) -> Output:
        return Output("said")

    def read_phase_durations(self) -> dict[str, float]:
        return {}

    def measure_memory(self) -> None:
        """Use nothing."""

    def kill(self, why: str = "") -> None:
        self.gone.set()


@pytest.mark.parametrize(("early", "late"), [(0, 3), (2, 0), (2, 3), (0, 0)])
async def test_every_item_is_sent_before_the_reply(early: int, late: int, tmp_path: Path) -> None:
    """Items are sent as they come, in order, each once; also those that come together with the reply."""
    worker = Scripted(early, late)

    async def start_worker(role: Role, environment: Environment, **options: object) -> Scripted:
        return worker

    keeper = Keeper(cast(LocalExecutor, SimpleNamespace(start_worker=start_worker)), tmp_path)
    sent: list[msgspec.Struct] = []
    started = anyio.Event()

    async def send(item: msgspec.Struct) -> None:
        sent.append(item)
        started.set()
        if len(sent) == 1 + early:
            worker.taken.set()

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.carry_out, node_calls.Start(Role.BENCH, "project", "/project", {}, 0, 1.0), send)
            await started.wait()
            ended = await keeper.carry_out(node_calls.Exchange(1, CLOSE, {Phase.LOAD: 1.0}), send)
            worker.kill()
    assert isinstance(ended, node_calls.Exchanged)
    expected = [
        replies.Failure(f"{when} {number}", "")
        for when, count in (("early", early), ("late", late))
        for number in range(count)
    ]
    items = [item for item in sent if isinstance(item, node_calls.Item)]
    assert [item.value for item in items] == expected


@pytest.mark.parametrize("change", ["file", "cores"])
async def test_a_toolchain_is_watched_until_it_is_another(change: str, tmp_path: Path) -> None:
    """The answer comes when a compiler was replaced, or the CPUs that may be used are others, and says which."""
    compiler = tmp_path / "gcc"
    compiler.write_text("1")
    limits = cpu.limits() | ({"quota": "0.5 cores"} if change == "cores" else {})
    keeper = Keeper(cast(LocalExecutor, SimpleNamespace()), tmp_path, watch_s=0.001)
    answers: list[msgspec.Struct] = []

    async def send(item: msgspec.Struct) -> None:
        raise AssertionError(item)

    async def watch() -> None:
        answers.append(
            await keeper.carry_out(node_calls.Watch({str(compiler): read_sight_text(str(compiler))}, limits), send)
        )

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            if change == "file":
                await anyio.wait_all_tasks_blocked()
                assert answers == []
                staged = tmp_path / "staged"
                staged.write_text("2")
                staged.rename(compiler)
    expected = "the CPUs that it may use changed" if change == "cores" else f"{compiler} changed"
    assert answers == [node_calls.Changed(expected)]
