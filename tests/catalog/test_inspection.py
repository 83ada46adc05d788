from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ktuned.catalog.inspection import FileInspector
from ktuned.fleet.failures import Output, WorkerDied
from ktuned.fleet.quiet import QuietGate
from ktuned.ipc import replies, requests
from ktuned.model.errors import StoreError
from ktuned.model.kernel import KernelInfo
from ktuned.model.keys import Phase
from ktuned.store.database import Store
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text

HANGS = "import signal\nwhile True:\n    signal.pause()\n"
CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"


@pytest.mark.anyio
async def test_hanging_and_crashing_files_hide_no_other(parts: Parts) -> None:
    """Each is an error of that file; all other files are inspected."""
    for name in ("a", "c", "e"):
        parts.write_file(make_kernel_text(name), f"tune_{name}.py")
    parts.write_file(HANGS, "tune_b.py")
    parts.write_file(CRASHES, "tune_d.py")
    parts.write_file("def (", "tune_f.py")
    parts.fleet.deadlines["inspect"] = 3.0
    inspector = FileInspector(parts.catalog, parts.fleet, parts.store)
    changes = await inspector.inspect_root(parts.root)
    assert changes.added == ("project:a", "project:c", "project:e")
    messages = {Path(error.path).name: error.message for error in parts.catalog.errors}
    assert "timed out after 3 s" in messages["tune_b.py"]
    assert "was killed by SIGSEGV" in messages["tune_d.py"]
    assert "tune_f.py:1:" in messages["tune_f.py"]
    assert [kernel.name for kernel in parts.store.load_kernels()] == ["project:a", "project:c", "project:e"]

    for name in "abdef":
        (parts.project / f"tune_{name}.py").unlink()
    changes = await inspector.inspect_root(parts.root)
    assert changes.removed == ("project:a", "project:e")
    assert parts.catalog.errors == []
    assert [kernel.name for kernel in parts.store.load_kernels()] == ["project:c"]
    parts.kill_workers()


@pytest.mark.anyio
async def test_missing_interpreter_is_an_error_of_each_file(parts: Parts) -> None:
    """The line names the interpreter and where it is set."""
    path = parts.write_file(make_kernel_text())
    (root,) = parts.catalog.roots
    broken = type(root)(root.path, root.name, "/nowhere/python")
    parts.catalog.add_root(broken)
    (error,) = (await parts.inspector.inspect_files(broken, [str(path)])).errors
    assert error.message.startswith(f"{path}: cannot start a worker with /nowhere/python")
    assert "config.toml" in error.hint


class _LastBreath:
    """A fleet whose one worker sends every item and dies before it says that it is done."""

    gate = QuietGate()
    deadlines: Mapping[str, float] = {}

    @asynccontextmanager
    async def lend_worker(self, role: str, environment: object) -> AsyncIterator[_LastBreath]:
        """Lend itself."""
        yield self

    async def send_request(
        self, request: requests.Inspect, *args: object, on_item: Callable[[Any], None], **more: object
    ) -> None:
        """Send an item for each file, and die."""
        for file in request.files:
            on_item(replies.InspectedFile(file, (), (), {}))
        raise WorkerDied(3, Phase.INSPECT, Output())


@pytest.mark.anyio
async def test_worker_that_dies_after_the_last_file_blames_none(parts: Parts) -> None:
    """Everything was inspected, so no file has an error."""
    inspector = FileInspector(parts.catalog, _LastBreath(), parts.store)  # type: ignore[arg-type]
    files = [str(parts.root.path) + "/tune_a.py", str(parts.root.path) + "/tune_b.py"]
    changes = await inspector.inspect_files(parts.root, files)
    assert changes.errors == ()
    assert all(map(parts.catalog.has_inspected, files))


class _FullDisk(Store):
    async def save_kernels(self, infos: Any, removed: Any = ()) -> None:
        raise StoreError("the disk is full")


@pytest.mark.anyio
async def test_full_disk_hides_no_change(tmp_path: Path) -> None:
    """A change that cannot be recorded is still reported."""
    async with assemble_daemon(tmp_path, store_type=_FullDisk) as parts:
        path = parts.write_file(make_kernel_text())
        changes = await parts.inspector.inspect_files(parts.root, [str(path)])
        assert changes.added == ("project:it",)
        assert isinstance(parts.catalog.resolve_kernel("it"), KernelInfo)


@pytest.mark.anyio
async def test_what_cannot_be_a_kernel_file_is_an_error_of_its_own(parts: Parts) -> None:
    """Examples are an undecodable name and a pipe: each is reported after every survey, and other files are
    inspected.
    """
    parts.write_file(make_kernel_text("a"), "tune_a.py")
    project = os.fsencode(parts.root.path)
    (Path(os.fsdecode(project)) / os.fsdecode(b"tune_\xff.py")).write_text("x = 1")
    os.mkfifo(project + b"/tune_pipe.py")
    inspector = FileInspector(parts.catalog, parts.fleet, parts.store)
    for _ in range(2):
        await inspector.inspect_root(parts.root)
        messages = {Path(error.path).name: error.message for error in parts.catalog.errors}
        assert set(messages) == {"tune_\\xff.py", "tune_pipe.py"}
        assert "not UTF-8" in messages["tune_\\xff.py"]
        assert "not a regular file" in messages["tune_pipe.py"]
    assert [kernel.name for kernel in parts.catalog.kernels] == ["project:a"]
    os.unlink(project + b"/tune_\xff.py")
    await inspector.inspect_root(parts.root)
    assert [Path(error.path).name for error in parts.catalog.errors] == ["tune_pipe.py"]


@pytest.mark.anyio
async def test_a_file_that_an_editor_has_emptied_keeps_its_kernels(parts: Parts) -> None:
    """Editors that save in place empty the file first; a file that never declared a kernel is no error."""
    kernel = await parts.inspect_file(make_kernel_text())
    parts.write_file("", "tune_none.py")
    parts.write_file("")
    files = [kernel.file, str(parts.project / "tune_none.py")]
    emptied = await parts.inspector.inspect_files(parts.root, files)
    assert [error.message for error in emptied.errors] == [f"{kernel.file} is empty"]
    assert parts.catalog.find_kernel(kernel.name) is not None
    parts.write_file(make_kernel_text())
    mended = await parts.inspector.inspect_files(parts.root, [kernel.file])
    assert (mended.errors, mended.mended) == ((), (kernel.file,))
