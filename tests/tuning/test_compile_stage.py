"""A group of configs that is compiled in one request: a config that is at fault fails alone."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from ktuned.fleet import Worker
from ktuned.ipc import requests
from ktuned.model.errors import WorkerError
from ktuned.model.values import Outcome
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.trial_machine import Attempt
from tests.daemon_parts import PATIENCE_S, Parts, make_kernel_text
from tests.fleet.playground import wait_until
from tests.tuning.jobs import make_attempts, prepare_brief

pytestmark = pytest.mark.anyio


async def inspect_and_prepare_brief(parts: Parts, **options: str) -> JobBrief:
    """Inspect a kernel with these options, and return the brief of a job on it."""
    await parts.inspect_file(make_kernel_text(**options))
    return await prepare_brief(parts)


async def compile_group(parts: Parts, *does: str, group_size: int = 1) -> list[tuple[Outcome | None, str]]:
    """Compile configs as one group; return each config's outcome and message in their order."""
    brief = await inspect_and_prepare_brief(parts, deadlines=f"dict(compile={PATIENCE_S})")
    brief.group_size = group_size
    attempts = make_attempts(brief, *does)
    compiling = CompileStage(brief, parts.fleet, parts.artifacts)
    trial_ends = await compiling.compile_attempts(attempts)
    await compiling.close()
    parts.kill_workers()
    ready = [attempt for attempt in attempts if attempt.is_compiled]
    assert len(ready) + len(trial_ends) == len(attempts)
    assert all(parts.artifacts.find_artifact(attempt.unit.key) is not None for attempt in ready)
    messages = {end.attempt: end.result.message for end in trial_ends}
    return [(attempt.outcome, messages.get(attempt, "")) for attempt in attempts]


async def test_a_config_that_the_compiler_refuses_fails_alone(parts: Parts) -> None:
    """The others of its group get their artifacts from the same request."""
    results = await compile_group(parts, "work", "compile_error", "work", "unsupported_here")
    assert [outcome for outcome, _ in results] == [None, Outcome.COMPILE_ERROR, None, Outcome.UNSUPPORTED]
    assert results[1][1] == "fake.c:1: error: no"


@pytest.mark.parametrize(
    "group_size",
    [1, 4],
)
async def test_a_config_that_crashes_the_compiler_fails_alone(parts: Parts, group_size: int) -> None:
    """Compiled configs are not compiled again. In a batch the current config is to blame; a group is halved until one
    config is left.
    """
    results = await compile_group(parts, "work", "compile_crash", "work", group_size=group_size)
    assert [thing for thing, _ in results] == [None, Outcome.CRASHED, None]


async def test_a_pause_is_no_time_of_the_compile(parts: Parts) -> None:
    """Neither the trial's compile time nor the patience with a compile that lags behind counts it."""
    brief = await inspect_and_prepare_brief(parts, deadlines=f"dict(compile={PATIENCE_S})")
    (attempt,) = make_attempts(brief, "gate_compile", gate="door")
    compiling = CompileStage(brief, parts.fleet, parts.artifacts)
    began = monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(compiling.compile_attempts, [attempt])
        await parts.wait_until_reached("door")
        async with parts.fleet.gate.hold_quiet():
            paused = monotonic()
            parts.open_gate("door")
            await anyio.sleep(0.5)
            assert attempt.outcome is None
            assert not attempt.is_compiled
            (read_worked_s,) = [read for read, _ in compiling._running.values()]
            assert read_worked_s() <= paused - began
            paused_s = monotonic() - paused
    assert attempt.is_compiled
    assert attempt.compile_s <= monotonic() - began - paused_s
    await compiling.close()
    parts.kill_workers()


async def test_a_changed_file_is_not_reported_as_a_fault_of_the_backend(parts: Parts) -> None:
    """A worker that finds other files than the inspected ones ends the job, which waits for an inspection."""
    brief = await inspect_and_prepare_brief(parts)
    parts.write_file(make_kernel_text(rtol="0.5"))
    compiling = CompileStage(brief, parts.fleet, parts.artifacts)
    with pytest.raises(WorkerError) as caught:
        await compiling.compile_attempts([Attempt(0, {}, brief.make_unit({}))])
    assert caught.value.code == "source_changed"
    await compiling.close()
    parts.kill_workers()


class SlowWritingWorker:
    """A worker whose artifacts are not written until ``written`` is set."""

    paused_s = 0.0

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.pid, self.read_cpu_ticks = worker.pid, worker.read_cpu_ticks
        self.computed, self.written = anyio.Event(), anyio.Event()

    async def send_request(
        self, request: requests.Compile, deadlines: Any, *, on_item: Any, on_computed: Callable[[], None]
    ) -> Any:
        """Compile, and delay the reply."""

        def tell() -> None:
            on_computed()
            self.computed.set()

        reply = await self._worker.send_request(request, deadlines, on_item=on_item, on_computed=tell)
        await self.written.wait()
        return reply


async def test_a_slot_is_free_while_its_artifact_is_written(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another compilation starts there, while the job does not count the config as ready."""
    brief = await inspect_and_prepare_brief(parts)
    parts.fleet.compile_slots.total_tokens = slots = 4
    compiling = CompileStage(brief, parts.fleet, parts.artifacts)
    assert compiling.groups == 5
    lend_worker, slow_workers = parts.fleet.lend_worker, list[SlowWritingWorker]()

    @asynccontextmanager
    async def lend_slow_worker(*kind: Any) -> AsyncIterator[SlowWritingWorker]:
        async with lend_worker(*kind) as worker:
            slow_workers.append(SlowWritingWorker(worker))
            yield slow_workers[-1]

    monkeypatch.setattr(parts.fleet, "lend_worker", lend_slow_worker)
    ready: list[int] = []

    async def compile_one(number: int) -> None:
        assert await compiling.compile_attempts([Attempt(number, {}, brief.make_unit({"tag": f"{number}"}))]) == []
        ready.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(slots):
            tasks.start_soon(compile_one, number)
        await wait_until(lambda: len(slow_workers) == slots)
        for slow_worker in slow_workers:
            await slow_worker.computed.wait()
        assert (parts.fleet.compile_slots.borrowed_tokens, ready) == (0, [])
        tasks.start_soon(compile_one, slots)
        await wait_until(lambda: len(slow_workers) == slots + 1)
        for slow_worker in slow_workers:
            slow_worker.written.set()
    assert sorted(ready) == list(range(slots + 1))
    assert parts.fleet.compile_slots.borrowed_tokens == 0
    await compiling.close()
    parts.kill_workers()


async def test_a_compile_is_repeated_if_its_worker_is_killed_while_it_writes(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot is returned only once; the config is compiled again, and its artifact is complete."""
    brief = await inspect_and_prepare_brief(parts)
    parts.fleet.compile_slots.total_tokens = 4
    compiling = CompileStage(brief, parts.fleet, parts.artifacts)
    lend_worker, killed = parts.fleet.lend_worker, list[int]()

    @asynccontextmanager
    async def lend_doomed_worker(*kind: Any) -> AsyncIterator[Any]:
        async with lend_worker(*kind) as worker:

            async def send_request(*arguments: Any, on_computed: Callable[[], None], **named: Any) -> Any:
                def kill_first() -> None:
                    on_computed()
                    if not killed:
                        killed.append(worker.pid)
                        os.kill(worker.pid, signal.SIGKILL)

                return await worker.send_request(*arguments, on_computed=kill_first, **named)

            yield SimpleNamespace(
                send_request=send_request, pid=worker.pid, read_cpu_ticks=worker.read_cpu_ticks, paused_s=0.0
            )

    monkeypatch.setattr(parts.fleet, "lend_worker", lend_doomed_worker)
    attempt = Attempt(0, {}, brief.make_unit({}))
    assert await compiling.compile_attempts([attempt]) == []
    assert len(killed) == 1
    assert parts.artifacts.find_artifact(attempt.unit.key) is not None
    assert parts.fleet.compile_slots.borrowed_tokens == 0
    await compiling.close()
    parts.kill_workers()


class ThreeSlots(CompileStage):
    """A stage with three slots for the last configs."""

    slots = 3


async def test_the_longest_of_the_last_compiles_starts_first(parts: Parts) -> None:
    """Earlier configs keep their order, and no config is lost, even if a slot waits when the last one is taken."""
    brief = await inspect_and_prepare_brief(parts)
    compiling = ThreeSlots(brief, parts.fleet, parts.artifacts)
    send, receive = anyio.create_memory_object_stream[Attempt](10)
    taken: list[int] = []

    async def slot() -> None:
        async with receive.clone() as channel:
            while (attempt := await compiling._take_next_attempt(channel)) is not None:
                taken.append(attempt.trial)
                await anyio.lowlevel.checkpoint()

    with receive:
        async with anyio.create_task_group() as slots:
            with send:
                for trial, expected_s in enumerate((0.1, 9.0, 1.0, 0.0, 2.0, 3.0, 0.5)):
                    send.send_nowait(Attempt(trial, {}, brief.make_unit({}), expected_s=expected_s))
            for _ in range(4):
                slots.start_soon(slot)
    assert taken == [0, 1, 5, 4, 2, 6, 3]


async def test_a_trial_uses_what_was_compiled_for_another_one_of_its_config(parts: Parts) -> None:
    """Other compiles have shown files that this config does not read, after which its key is another one."""
    brief = await inspect_and_prepare_brief(parts)
    parts.write_file("one", name="one.txt")
    parts.write_file("two", name="two.txt")
    compiling = CompileStage(brief, parts.fleet, parts.artifacts)
    first, other, again = (
        Attempt(0, {}, brief.make_unit({"reads": name})) for name in ("one.txt", "two.txt", "one.txt")
    )
    for attempt in (first, other, again):
        assert await compiling.compile_attempts([attempt]) == []
    await compiling.close()
    parts.kill_workers()
    assert brief.make_unit(first.unit.build).key != first.unit.key
    assert (again.unit.key, again.compile_s, again.is_compiled) == (first.unit.key, 0.0, True)
