"""Sources that move: a half-seen edit, and an edit that is undone during a compilation."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import anyio
import pytest

from ktuned.fleet.process import WorkerProcess
from ktuned.ipc import replies, requests
from tests.fleet.conftest import StartWorker
from tests.fleet.playground import DEADLINES, KERNEL_OF_THREE_FILES, PROJECT, Playground, wait_for_file

pytestmark = pytest.mark.anyio


@pytest.fixture
def project(playground: Playground) -> Path:
    """A project with a kernel file, a module and a source."""
    for name, text in {"tune_it.py": KERNEL_OF_THREE_FILES, "helper.py": "SIZE = 1\n", "one.c": "int one;\n"}.items():
        (playground.root / name).write_text(text)
    return playground.root


def make_kernel_ref(root: Path) -> requests.KernelRef:
    """Return the kernel with the present digests of its files."""
    names = ("tune_it.py", "helper.py", "one.c")
    digests = {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names}
    return requests.KernelRef(PROJECT, "tune_it.py", "it", "fake", ("one.c",), digests, ("one.c",))


async def compile_unit(worker: WorkerProcess, kernel: requests.KernelRef, **build: str) -> replies.CompiledUnit:
    """Let a worker compile one config."""
    items: list[replies.CompiledUnit] = []
    request = requests.Compile(kernel, "fake", "into", (requests.UnitRef("unit", build),))
    await worker.send_request(request, DEADLINES, on_item=items.append)
    return items[0]


async def test_a_worker_compiles_after_an_edit_of_what_it_imported(worker: WorkerProcess, project: Path) -> None:
    """The worker drops the old modules and does not refuse the new state."""
    old_ref = make_kernel_ref(project)
    await worker.send_request(requests.Admits(old_ref, {"n": 1}, ({"tag": "x"},)), DEADLINES)
    (project / "helper.py").write_text("SIZE = 2\n")
    assert (await compile_unit(worker, make_kernel_ref(project), tag="x")).outcome is None


async def test_a_source_edited_and_restored_during_a_compile_is_compiled_again(
    start_worker: StartWorker, project: Path, tmp_path: Path
) -> None:
    """Equal bytes before and after prove nothing if the source was written meanwhile."""
    gates, log = tmp_path / "gates", tmp_path / "log"
    gates.mkdir()
    worker = await start_worker(FAKE_GATE=str(gates), FAKE_LOG=str(log))
    source = project / "one.c"
    os.utime(source, ns=(0, 0))
    items: list[replies.CompiledUnit] = []

    async def compile_it() -> None:
        items.append(await compile_unit(worker, make_kernel_ref(project), does="gate_compile", gate="open"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(compile_it)
        await wait_for_file(gates / "open.reached")
        text = source.read_text()
        source.write_text("int other;\n")
        source.write_text(text)
        # The editor restores the time, too.
        os.utime(source, ns=(0, 0))
        (gates / "open").touch()
    assert items[0].outcome is None
    assert log.read_text().count("compile unit") == 2
