"""Suspects: nothing that was saved counts as fresh while user code delays an inspection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from ktuned.answers import Lookup
from ktuned.catalog.catalog import Changes
from ktuned.catalog.inspection import FileInspector
from ktuned.catalog.roots import remake_root
from ktuned.ipc.stamps import stamp
from ktuned.model.errors import StoreError
from ktuned.model.kernel import KernelInfo
from ktuned.protocol.kernels import Root
from ktuned.watch.reinspection import Reinspection
from tests.daemon_parts import PATIENCE_S, Parts, make_kernel_text

pytestmark = pytest.mark.anyio

WAIT_AT_IMPORT = "import ktuned_fake\nktuned_fake.wait_at('import')\n"


def look_up(parts: Parts, kernel: str = "it") -> Lookup:
    return parts.lookups.look_up(kernel, {"n": 64}, None, tune=False)


async def wait_until_stale(parts: Parts, kernel: str = "it") -> Lookup:
    """Wait until an answer is stale, and return it."""
    with anyio.fail_after(PATIENCE_S):
        while look_up(parts, kernel).answer.status != "stale":  # noqa: ASYNC110 - the watcher's look is no event
            await anyio.sleep(0.01)
    return look_up(parts, kernel)


async def wait_until_certain(parts: Parts) -> Lookup:
    """Wait until nothing is suspect, and return the answer."""
    with anyio.fail_after(PATIENCE_S):
        while not look_up(parts).is_certain:  # noqa: ASYNC110 - the end of an inspection is no event here
            await anyio.sleep(0.01)
    return look_up(parts)


@asynccontextmanager
async def measure_and_watch(parts: Parts) -> AsyncIterator[None]:
    """Measure the kernel ``it``, and watch the project for the length of a block."""
    await parts.record_measurements(await parts.inspect_file(make_kernel_text()), {50.0: 1.0})
    parts.write_file(make_kernel_text("slow"), "tune_slow.py")
    await parts.inspector.inspect_root(parts.root)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parts.daemon.watcher.watch_until_cancelled)
        with anyio.fail_after(PATIENCE_S):
            await parts.daemon.watcher.caught_up.wait()
        parts.end_doubts()
        assert look_up(parts).answer.status == "fresh"
        yield
        tasks.cancel_scope.cancel()
    parts.kill_workers()


async def delay_inspection(parts: Parts) -> None:
    """Save a kernel file whose import waits until the gate ``import`` opens."""
    parts.write_file(WAIT_AT_IMPORT + make_kernel_text("slow"), "tune_slow.py")
    await parts.wait_until_reached("import")


async def test_a_save_during_a_long_inspection_is_stale_at_once(parts: Parts) -> None:
    """Another file's import delays the watcher; once the save is undone or inspected, the kernel is certain again."""
    async with measure_and_watch(parts):
        await delay_inspection(parts)
        parts.write_file(make_kernel_text(rtol="0.5"))
        lookup = await wait_until_stale(parts)
        assert not lookup.is_certain
        assert "tune_it.py" in lookup.answer.message
        parts.write_file(make_kernel_text())
        assert (await wait_until_certain(parts)).answer.status == "fresh"
        parts.write_file(make_kernel_text(rtol="0.5"))
        await wait_until_stale(parts)
        parts.open_gate("import")
        assert (await wait_until_certain(parts)).answer.status == "stale"


async def test_a_project_file_is_suspect_until_it_was_followed(parts: Parts) -> None:
    """Its variables are part of every kernel of the project."""
    async with measure_and_watch(parts):
        await delay_inspection(parts)
        parts.write_file("env = { ROWS = '2' }\n", "ktuned.toml")
        assert "ktuned.toml" in (await wait_until_stale(parts)).answer.message
        parts.open_gate("import")
        assert (await wait_until_certain(parts)).answer.status == "stale"


async def test_a_linked_project_file_is_followed_where_it_lies(parts: Parts, tmp_path: Path) -> None:
    """A file that several projects share is edited outside all of them."""
    shared = tmp_path / "shared" / "ktuned.toml"
    shared.parent.mkdir()
    shared.write_text("")
    (parts.project / "ktuned.toml").symlink_to(shared)
    parts.catalog.add_root(remake_root(parts.root))
    async with measure_and_watch(parts):
        shared.write_text("env = { ROWS = '2' }\n")
        await wait_until_stale(parts)
        assert (await wait_until_certain(parts)).answer.status == "stale"
        assert parts.catalog.roots[0].env == {"ROWS": "2"}


class EarlyRecordingInspector(FileInspector):
    """An inspector that records a project file early, as after its probe, and works until the next look."""

    def __init__(self, parts: Parts, kernel: KernelInfo) -> None:
        self.looks = 0
        self.suspicion = ""
        self._parts = parts
        self._kernel = kernel
        self._looked = anyio.Event()

    def record_doubts(self) -> None:
        """Record that doubts have changed."""
        self.looks += 1
        self._looked.set()

    async def inspect_files(self, root: Root, files: Iterable[str], gone: Iterable[str] = ()) -> Changes:
        """Record the file once a look has found that it differs."""
        (file,) = files
        await self._next_look()
        self._parts.catalog.record_project_file(root.path, stamp(Path(file)))
        await self._next_look()
        self.suspicion = self._parts.catalog.find_suspicion(self._kernel)
        return Changes()

    async def _next_look(self) -> None:
        self._looked = anyio.Event()
        with anyio.fail_after(PATIENCE_S):
            await self._looked.wait()


async def test_a_project_file_is_suspect_until_its_kernels_were_inspected(parts: Parts) -> None:
    """Its digest is recorded before the inspections: a look in between finds no difference but clears no doubt."""

    async def ignore_changes(changes: Changes, saved: bool) -> None:
        pass

    kernel = await parts.inspect_file(make_kernel_text())
    inspector = EarlyRecordingInspector(parts, kernel)
    path = str(parts.write_file("env = { ROWS = '2' }\n", "ktuned.toml"))

    class RecordingReinspection(Reinspection):
        async def _mark_suspects(self) -> None:
            await super()._mark_suspects()
            inspector.record_doubts()

    await RecordingReinspection(parts.catalog, inspector, ignore_changes).inspect_files({path})
    assert inspector.suspicion == path
    assert parts.catalog.find_suspicion(kernel) == ""


class FailingInspector(FileInspector):
    """An inspector whose inspections fail."""

    def __init__(self) -> None:
        pass

    async def inspect_files(self, root: Root, files: Iterable[str], gone: Iterable[str] = ()) -> Changes:
        raise StoreError("no")


async def test_a_save_that_could_not_be_taken_in_stays_suspect(parts: Parts) -> None:
    """Its old answer is outdated; the next successful inspection ends the suspicion."""

    async def ignore_changes(changes: Changes, saved: bool) -> None:
        pass

    kernel = await parts.inspect_file(make_kernel_text())
    path = str(parts.write_file(make_kernel_text(rtol="0.5")))
    await Reinspection(parts.catalog, FailingInspector(), ignore_changes).inspect_files({path})
    assert parts.catalog.find_suspicion(kernel) == path
    reinspection = Reinspection(parts.catalog, FailingInspector(), ignore_changes)
    await reinspection.inspect_files({path})
    parts.write_file(make_kernel_text())
    assert await reinspection.find_affected_kernel_files([path]) == set()
    assert parts.catalog.find_suspicion(kernel) == "", "it was taken back"
    path = str(parts.write_file(make_kernel_text(rtol="0.5")))
    await reinspection.inspect_files({path})
    await Reinspection(parts.catalog, parts.inspector, ignore_changes).inspect_files({path})
    assert parts.catalog.find_suspicion(kernel) == ""
