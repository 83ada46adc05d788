"""Files that other users can write: a worker uses none of them, however a kernel reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.fleet.failures import RequestFailed
from ktuned.fleet.process import WorkerProcess
from ktuned.ipc import replies, requests
from ktuned.model.kernel import KernelInfo
from tests.fleet.playground import DEADLINES, KERNEL_OF_THREE_FILES, PROJECT, Playground

pytestmark = pytest.mark.anyio


@pytest.fixture
def project(playground: Playground) -> Path:
    """A project with a kernel file, a module, a source and a header, which only this user can write."""
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


async def inspect_kernel_file(worker: WorkerProcess) -> replies.InspectedFile:
    """Return what a worker found in the kernel file."""
    items: list[replies.InspectedFile] = []
    await worker.send_request(requests.Inspect(PROJECT, ("tune_it.py",)), DEADLINES, on_item=items.append)
    return items[0]


@pytest.mark.parametrize("name", ["helper.py", "one.c"])
async def test_a_file_that_others_can_write_is_an_error(worker: WorkerProcess, project: Path, name: str) -> None:
    """The error names the module or source, which is not run."""
    (project / name).chmod(0o666)
    item = await inspect_kernel_file(worker)
    assert item.kernels == ()
    (error,) = item.errors
    assert f"{project / name} can be written by others (mode 0666)" in error.message
    assert "chmod go-w" in error.hint
    assert (project / "ran").exists() == (name != "helper.py")


@pytest.mark.parametrize("name", ["helper.py", "one.c"])
async def test_a_job_checks_files_that_others_can_write_again(worker: WorkerProcess, project: Path, name: str) -> None:
    """A file that others can write since the inspection is neither imported nor compiled."""
    (kernel,) = (await inspect_kernel_file(worker)).kernels
    assert isinstance(kernel, KernelInfo)
    ref = requests.KernelRef(PROJECT, "tune_it.py", "it", "fake", kernel.sources, kernel.stamps)
    compile_request = requests.Compile(ref, "fake", "into", (requests.UnitRef("unit", {"tag": "x"}),))
    admits_request = requests.Admits(ref, {"n": 1}, ({"tag": "x"},))
    (project / name).chmod(0o666)
    with pytest.raises(RequestFailed, match="can be written by others"):
        await worker.send_request(compile_request, DEADLINES)
    with pytest.raises(RequestFailed, match="can be written by others"):
        await worker.send_request(admits_request, DEADLINES)
