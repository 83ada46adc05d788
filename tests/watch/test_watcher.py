from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream

from ktuned.catalog.catalog import Changes
from ktuned.protocol.kernels import Root
from ktuned.watch.watcher import Intervals, Watcher
from tests.daemon_parts import PATIENCE_S, Parts, make_kernel_text

pytestmark = pytest.mark.anyio


class WatchedProject:
    """A watched project and the changes that its watcher reports."""

    def __init__(self, parts: Parts, watcher: Watcher, changes: MemoryObjectReceiveStream[Changes]) -> None:
        self.parts = parts
        self.watcher = watcher
        self._changes = changes
        self._edits = 0

    async def wait_for_change(self) -> Changes:
        """Wait for the next report that is not empty."""
        with anyio.fail_after(PATIENCE_S):
            async for changes in self._changes:
                if changes:
                    return changes
        raise AssertionError("the watcher ended")

    async def wait_until_caught_up(self) -> None:
        """Make a change and wait for it: all earlier changes have been noticed, too."""
        self._edits += 1
        self.parts.write_file(make_kernel_text("marker", rtol=f"{self._edits}e-3"), "tune_marker.py")
        changes = await self.wait_for_change()
        assert changes.added + changes.changed == ("project:marker",), changes


@asynccontextmanager
async def watch_project(parts: Parts, *, all_s: float = 1.0) -> AsyncIterator[WatchedProject]:
    """Inspect the project, and watch it for the length of a block."""
    parts.write_file(make_kernel_text("marker"), "tune_marker.py")
    await parts.inspector.inspect_root(parts.root)
    send, receive = anyio.create_memory_object_stream[Changes](100)

    async def send_changes(changes: Changes, saved: bool) -> None:
        await send.send(changes)

    watcher = Watcher(parts.catalog, parts.inspector, send_changes, lambda: (), Intervals(all_s=all_s))
    with send, receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watcher.watch_until_cancelled)
            yield WatchedProject(parts, watcher, receive)
            assert watcher.notice == ""
            tasks.cancel_scope.cancel()


async def test_every_way_of_saving_is_seen(parts: Parts) -> None:
    """Files are written in place, replaced, deleted, made again, and made in a new directory."""
    path = parts.write_file(make_kernel_text())
    async with watch_project(parts) as project:
        path.write_text(make_kernel_text(rtol="0.5"))
        assert (await project.wait_for_change()).changed == ("project:it",)

        swap_file = parts.write_file(make_kernel_text(rtol="0.25"), ".tune_it.py.swp")
        swap_file.replace(path)
        assert (await project.wait_for_change()).changed == ("project:it",)

        path.unlink()
        assert (await project.wait_for_change()).removed == ("project:it",)
        path.write_text(make_kernel_text())
        assert (await project.wait_for_change()).added == ("project:it",)

        parts.write_file(make_kernel_text("deep"), "new/er/tune_deep.py")
        assert (await project.wait_for_change()).added == ("project:deep",)
        (parts.project / "new").rename(parts.project / "old")
        changes = await project.wait_for_change()
        assert (changes.replanned or changes.added) == ("project:deep",)
        assert Path(parts.catalog.resolve_kernel("deep").file).parent == parts.project / "old" / "er"


async def test_what_changes_nothing_is_passed_over(parts: Parts) -> None:
    """Examples: a comment, an unrelated file, and a file in a directory that is not watched."""
    path = parts.write_file(make_kernel_text())
    async with watch_project(parts) as project:
        await project.wait_until_caught_up()
        path.write_text(f"# a comment\n{make_kernel_text()}")
        parts.write_file("words", "notes.md")
        parts.write_file(make_kernel_text("hidden"), ".git/tune_hidden.py")
        parts.write_file(make_kernel_text("built"), "build/a/b/c/d/e/f/tune_built.py")
        await project.wait_until_caught_up()
    assert [kernel.kernel for kernel in parts.catalog.kernels] == ["it", "marker"]


async def test_several_saves_at_once_are_all_reported(parts: Parts) -> None:
    """Every file of a checkout is reported."""
    names = [f"k{n}" for n in range(5)]
    for name in names:
        parts.write_file(make_kernel_text(name), f"tune_{name}.py")
    async with watch_project(parts) as project:
        await project.wait_until_caught_up()
        for name in names:
            parts.write_file(make_kernel_text(name, rtol="0.5"), f"tune_{name}.py")
        changed_kernels: set[str] = set()
        while len(changed_kernels) < len(names):
            changed_kernels |= set((await project.wait_for_change()).changed)
    assert changed_kernels == {f"project:{name}" for name in names}


async def test_source_in_another_directory(parts: Parts, tmp_path: Path) -> None:
    """A source is watched wherever it lies, even in a build directory, as soon as a kernel depends on it."""
    path = parts.write_file(make_kernel_text())
    header = tmp_path / "inc" / "x.h"
    header.parent.mkdir()
    header.write_text("#define X 1\n")
    generated_header = parts.write_file("#define Y 1\n", "build/y.h")
    parts.write_file('#include "../inc/x.h"\n#include "build/y.h"\nint z = X + Y;\n', "it.c")
    async with watch_project(parts) as project:
        path.write_text(make_kernel_text(sources="['it.c', '../inc/x.h', 'build/y.h']"))
        assert (await project.wait_for_change()).changed == ("project:it",)
        assert str(header.parent) in parts.catalog.list_watched_directories()
        for file in (header, generated_header, header):
            file.write_text(f"{file.read_text()}#define Z {file.stat().st_size}\n")
            assert (await project.wait_for_change()).changed == ("project:it",)


async def test_directory_that_another_inspection_found(parts: Parts, tmp_path: Path) -> None:
    """A file outside the root is watched as soon as any part of the daemon inspects a kernel that needs it."""
    header = tmp_path / "inc" / "x.h"
    header.parent.mkdir()
    header.write_text("#define X 1\n")
    parts.write_file('#include "../inc/x.h"\nint z = X;\n', "it.c")
    # Its name is not found by a scan: `tune` names it, and nothing happens in the root meanwhile.
    path = parts.write_file(make_kernel_text(sources="['it.c', '../inc/x.h']"), "program.py")
    async with watch_project(parts, all_s=2 * PATIENCE_S) as project:
        await project.watcher.caught_up.wait()
        await parts.inspector.inspect_files(parts.root, [str(path)])
        for number in (2, 3):
            header.write_text(f"#define X {number}\n")
            assert (await project.wait_for_change()).changed == ("project:it",)


async def test_link_that_takes_a_files_place(parts: Parts, tmp_path: Path) -> None:
    """A file that becomes a link with the same content is watched where the link leads."""
    header, target = parts.write_file("#define X 1\n", "x.h"), tmp_path / "elsewhere" / "x.h"
    parts.write_file('#include "x.h"\nint z = X;\n', "it.c")
    parts.write_file(make_kernel_text(sources="['it.c', 'x.h']"))
    target.parent.mkdir()
    target.write_text("#define X 1\n")
    async with watch_project(parts, all_s=2 * PATIENCE_S) as project:
        await project.watcher.caught_up.wait()
        header.unlink()
        header.symlink_to(target)
        await project.wait_until_caught_up()
        target.write_text("#define X 2\n")
        assert (await project.wait_for_change()).changed == ("project:it",)


async def test_save_before_the_watching_began_is_caught_up(parts: Parts) -> None:
    """No change, fixed file or removal between the inspection and the first event is lost."""
    for name in ("changed", "gone"):
        parts.write_file(make_kernel_text(name), f"tune_{name}.py")
    parts.write_file("import nonsense_module\n", "tune_broken.py")
    await parts.inspector.inspect_root(parts.root)
    async with watch_project(parts) as project:
        parts.write_file(make_kernel_text("changed", rtol="0.5"), "tune_changed.py")
        parts.write_file(make_kernel_text("broken"), "tune_broken.py")
        (parts.project / "tune_gone.py").unlink()
        changed_kernels: set[str] = set()
        while len(changed_kernels) < 3:
            changes = await project.wait_for_change()
            changed_kernels |= {*changes.changed, *changes.added, *changes.removed}
    assert changed_kernels == {"project:changed", "project:broken", "project:gone"}


async def test_hidden_place_of_a_root_hides_nothing(parts: Parts, tmp_path: Path) -> None:
    """A root may lie in a hidden directory; a root that is added while watching is watched."""
    root_path = tmp_path / ".work" / "build" / "proj"
    root_path.mkdir(parents=True)
    async with watch_project(parts) as project:
        await project.wait_until_caught_up()
        parts.catalog.add_root(Root(str(root_path), "proj", parts.root.python))
        project.watcher.roots_changed()
        parts.catalog.add_root(parts.root)
        path = root_path / "tune_it.py"
        with anyio.fail_after(PATIENCE_S):
            # Nothing reports when the new root's watch exists, so save until a save is noticed.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(save_repeatedly, path)
                assert (await project.wait_for_change()).added == ("proj:it",)
                tasks.cancel_scope.cancel()
        parts.kill_workers()


async def save_repeatedly(path: Path) -> None:
    while True:
        path.write_text(make_kernel_text())
        await anyio.sleep(0.2)


async def test_files_that_cannot_be_read_stop_nothing(parts: Parts) -> None:
    """A file that vanishes or cannot be read affects no other file."""
    path = parts.write_file(make_kernel_text())
    async with watch_project(parts) as project:
        path.unlink()
        path.mkdir()
        assert (await project.wait_for_change()).removed == ("project:it",)
        os.symlink("tune_loop.py", parts.project / "tune_loop.py")
        await project.wait_until_caught_up()
