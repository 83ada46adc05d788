"""The word of a compile worker that its compiler is done, before the artifact is on the disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ktuned.fleet.process import WorkerProcess
from ktuned.ipc import requests
from tests.fleet.playing import DEADLINES, PROJECT

pytestmark = pytest.mark.anyio

KERNEL = """
from ktuned import kernel, space, tensor
from ktuned_fake import Build
@kernel(backend="fake", space=space(tag=["x"]), problems=[dict(n=1)],
        inputs=lambda p: dict(x=tensor(1)), check=None)
def it(p, c):
    return Build(tag=c.tag)
"""


@pytest.fixture
def kernel(worker: WorkerProcess) -> requests.KernelRef:
    """Return a kernel in the worker's project."""
    file = Path(worker.environment.cwd) / "tune_it.py"
    file.write_text(KERNEL)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return requests.KernelRef(PROJECT, file.name, "it", "fake", (), {file.name: digest}, (file.name,))


async def story(
    worker: WorkerProcess, kernel: requests.KernelRef, *does: str, announced: bool = True, hold_s: float = 0.0
) -> list[str]:
    """Have a worker compile units; return what it said in its order."""
    units = tuple(requests.UnitRef(f"{number}", {"does": what}) for number, what in enumerate(does))
    said: list[str] = []
    await worker.send_request(
        requests.Compile(kernel, "fake", "into", units, hold_s=hold_s, announced=announced),
        DEADLINES,
        on_item=lambda item: said.append(item.key),
        on_computed=lambda: said.append("computed"),
    )
    return said


async def test_the_last_compile_of_a_request_is_announced(worker: WorkerProcess, kernel: requests.KernelRef) -> None:
    """Once, and before the last artifact is there; items that were held back until then come first, and once."""
    assert await story(worker, kernel, "work") == ["computed", "0"]
    batch = await story(worker, kernel, "work", "compile_error", "work", hold_s=60.0)
    assert sorted(batch) == ["0", "1", "2", "computed"]
    assert batch[-1] == "2"


async def test_a_compile_is_announced_only_where_it_matters(worker: WorkerProcess, kernel: requests.KernelRef) -> None:
    """Not unless it was asked for, and not where nothing is to be sealed: the reply comes at once."""
    assert await story(worker, kernel, "work", announced=False) == ["0"]
    assert await story(worker, kernel, "work", "compile_error") == ["0", "1"]
