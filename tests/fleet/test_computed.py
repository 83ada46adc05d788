"""A compile worker announces that its compiler has finished before the artifact is on the disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ktuned.fleet.process import WorkerProcess
from ktuned.ipc import requests
from tests.fleet.playground import DEADLINES, PROJECT

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
    """A kernel in the worker's project."""
    file = Path(worker.environment.cwd) / "tune_it.py"
    file.write_text(KERNEL)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return requests.KernelRef(PROJECT, file.name, "it", "fake", (), {file.name: digest}, (file.name,))


async def list_events(
    worker: WorkerProcess, kernel: requests.KernelRef, *does: str, announced: bool = True, hold_s: float = 0.0
) -> list[str]:
    """Let a worker compile units; return what it reported, in order."""
    units = tuple(requests.UnitRef(f"{number}", {"does": what}) for number, what in enumerate(does))
    events: list[str] = []
    await worker.send_request(
        requests.Compile(kernel, "fake", "into", units, hold_s=hold_s, announced=announced),
        DEADLINES,
        on_item=lambda item: events.append(item.key),
        on_computed=lambda: events.append("computed"),
    )
    return events


async def test_the_last_compile_of_a_request_is_announced(worker: WorkerProcess, kernel: requests.KernelRef) -> None:
    """The announcement comes once, before the last artifact; items that were held back precede it."""
    assert await list_events(worker, kernel, "work") == ["computed", "0"]
    batch = await list_events(worker, kernel, "work", "compile_error", "work", hold_s=60.0)
    assert sorted(batch) == ["0", "1", "2", "computed"]
    assert batch[-1] == "2"


async def test_a_compile_is_announced_only_where_it_matters(worker: WorkerProcess, kernel: requests.KernelRef) -> None:
    """There is none if the request does not ask for it, or if nothing is left to be sealed."""
    assert await list_events(worker, kernel, "work", announced=False) == ["0"]
    assert await list_events(worker, kernel, "work", "compile_error") == ["0", "1"]
