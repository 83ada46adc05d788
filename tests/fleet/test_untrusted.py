"""Files that other users could write: a worker uses none of them, however a kernel reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.fleet.failures import RequestFailed
from ktuned.fleet.process import WorkerProcess
from ktuned.ipc import replies, requests
from ktuned.model.kernel import KernelInfo
from tests.fleet.playing import DEADLINES, KERNEL_OF_THREE_FILES, PROJECT, Playground

pytestmark = pytest.mark.anyio


@pytest.fixture
def project(playground: Playground) -> Path:
    """Return a project with a kernel file, a module, a source and a header, which are this user's alone."""
    files = {
        "tune_it.py": KERNEL_OF_THREE_FILES,
        "helper.py": "open('ran', 'w').close()\n",
        "one.c": '#include "one.h"\n',
        "one.h": "int x;\n",
    }
    for name, text in files.items():
        path = playground.root / name
        path.write_text(text)
        path.chmod(0o644)
    return playground.root


async def inspect(worker: WorkerProcess) -> replies.InspectedFile:
    """Return what a worker found in the kernel file."""
    items: list[replies.InspectedFile] = []
    await worker.send_request(requests.Inspect(PROJECT, ("tune_it.py",)), DEADLINES, on_item=items.append)
    return items[0]


@pytest.mark.parametrize("name", ["helper.py", "one.c"])
async def test_a_file_that_others_can_write_is_an_error(worker: WorkerProcess, project: Path, name: str) -> None:
    """A module or a source that others could write makes the kernel an error that names it; it is not run."""
    (project / name).chmod(0o666)
    found = await inspect(worker)
    assert found.kernels == ()
    (error,) = found.errors
    assert f"{project / name} can be written by others (mode 0666)" in error.message
    assert "chmod go-w" in error.hint
    assert (project / "ran").exists() == (name != "helper.py")


@pytest.mark.parametrize("name", ["helper.py", "one.c"])
async def test_a_job_checks_files_that_others_can_write_again(worker: WorkerProcess, project: Path, name: str) -> None:
    """What others can write since the inspection is neither imported nor compiled."""
    (kernel,) = (await inspect(worker)).kernels
    assert isinstance(kernel, KernelInfo)
    ref = requests.KernelRef(PROJECT, "tune_it.py", "it", "fake", kernel.sources, kernel.stamps)
    compiling = requests.Compile(ref, "fake", "into", (requests.UnitRef("unit", {"tag": "x"}),))
    opening = requests.Admits(ref, {"n": 1}, ({"tag": "x"},))
    (project / name).chmod(0o666)
    with pytest.raises(RequestFailed, match="can be written by others"):
        await worker.send_request(compiling, DEADLINES)
    with pytest.raises(RequestFailed, match="can be written by others"):
        await worker.send_request(opening, DEADLINES)
