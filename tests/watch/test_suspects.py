"""Suspects: nothing that was saved is fresh while user code keeps an inspection waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from ktuned.catalog.catalog import Changes
from ktuned.catalog.inspection import FileInspector, Inspected
from ktuned.lookup.answer import Answer
from ktuned.model.errors import StoreError
from ktuned.model.kernel import Root
from ktuned.watch.reinspection import Reinspection
from tests.assembled import PATIENCE_S, Parts, kernel_text

pytestmark = pytest.mark.anyio

SLOW = """\
import os, time
open({reached!r}, "w").close()
while not os.path.exists({gate!r}):
    time.sleep(0.01)
"""


def look_up(parts: Parts, kernel: str = "it") -> Answer:
    """Look a kernel up."""
    return parts.lookups.lookup(kernel, {"n": 64}, None, tune=False)


async def until_stale(parts: Parts, kernel: str = "it") -> Answer:
    """Wait until an answer is stale."""
    with anyio.fail_after(PATIENCE_S):
        while look_up(parts, kernel).status != "stale":  # noqa: ASYNC110 - the watcher's look is no event
            await anyio.sleep(0.01)
    return look_up(parts, kernel)


async def until_certain(parts: Parts) -> Answer:
    """Wait until nothing is suspect."""
    with anyio.fail_after(PATIENCE_S):
        while not look_up(parts).is_certain:  # noqa: ASYNC110 - the end of an inspection is no event here
            await anyio.sleep(0.01)
    return look_up(parts)


@asynccontextmanager
async def watched(parts: Parts) -> AsyncIterator[None]:
    """Measure the kernel ``it``, and watch the project."""
    await parts.measured(await parts.inspect(kernel_text()), {50.0: 1.0})
    parts.write(kernel_text("slow"), "tune_slow.py")
    await parts.inspector.inspect_root(parts.root)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parts.daemon.watcher.run)
        with anyio.fail_after(PATIENCE_S):
            await parts.daemon.watcher.caught_up.wait()
        parts.lookups.caught_up()
        assert look_up(parts).status == "fresh"
        yield
        tasks.cancel_scope.cancel()
    parts.kill_workers()


async def hold_up(parts: Parts, tmp_path: Path) -> Path:
    """Save a kernel file whose import waits for the file that is returned."""
    gate, reached = tmp_path / "gate", tmp_path / "reached"
    parts.write(SLOW.format(reached=str(reached), gate=str(gate)) + kernel_text("slow"), "tune_slow.py")
    with anyio.fail_after(PATIENCE_S):
        while not reached.exists():  # noqa: ASYNC110 - a file reports it, no event
            await anyio.sleep(0.01)
    return gate


async def test_a_save_during_a_long_inspection_is_stale_at_once(parts: Parts, tmp_path: Path) -> None:
    """Another file's import keeps the watcher waiting; taken back, or inspected, the kernel is certain again."""
    async with watched(parts):
        gate = await hold_up(parts, tmp_path)
        parts.write(kernel_text(rtol="0.5"))
        answer = await until_stale(parts)
        assert not answer.is_certain
        assert "tune_it.py" in answer.message
        parts.write(kernel_text())
        assert (await until_certain(parts)).status == "fresh"
        parts.write(kernel_text(rtol="0.5"))
        await until_stale(parts)
        gate.touch()
        assert (await until_certain(parts)).status == "stale"


async def test_a_project_file_is_suspect_until_it_was_followed(parts: Parts, tmp_path: Path) -> None:
    """Its variables are part of every kernel of the project."""
    async with watched(parts):
        gate = await hold_up(parts, tmp_path)
        parts.write("env = { ROWS = '2' }\n", "ktuned.toml")
        assert "ktuned.toml" in (await until_stale(parts)).message
        gate.touch()
        assert (await until_certain(parts)).status == "stale"


class Refusing(FileInspector):
    """An inspector that cannot inspect."""

    def __init__(self) -> None:
        pass

    async def inspect_files(self, root: Root, files: Iterable[str], gone: Iterable[str] = ()) -> Inspected:
        """Refuse."""
        raise StoreError("no")


async def test_a_save_that_could_not_be_taken_in_stays_suspect(parts: Parts) -> None:
    """Its old answer is not the present one; the next inspection that can be made ends the suspicion."""

    async def take(changes: Changes, saved: bool) -> None:
        pass

    kernel = await parts.inspect(kernel_text())
    path = str(parts.write(kernel_text(rtol="0.5")))
    await Reinspection(parts.catalog, Refusing(), take, lambda: None).inspect({path})
    assert parts.catalog.suspicion(kernel) == path
    refused = Reinspection(parts.catalog, Refusing(), take, lambda: None)
    await refused.inspect({path})
    parts.write(kernel_text())
    assert await refused.affected([path]) == set()
    assert parts.catalog.suspicion(kernel) == "", "it was taken back"
    path = str(parts.write(kernel_text(rtol="0.5")))
    await refused.inspect({path})
    await Reinspection(parts.catalog, parts.inspector, take, lambda: None).inspect({path})
    assert parts.catalog.suspicion(kernel) == ""
