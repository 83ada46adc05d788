"""Workers that begin again as a fresh process: the daemon sees the answer of one that had loaded nothing before."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.fleet.process import WorkerProcess
from ktuned.ipc import replies, requests
from ktuned.model.plan import Plan
from tests.fleet.playing import DEADLINES, Playground

pytestmark = pytest.mark.anyio

KERNEL = """
from ktuned import kernel, space, tensor
from ktuned_fake import Build
{before}
@kernel(backend="fake", space=space(n=[1]), inputs=lambda p: dict(x=tensor(1)), check=None, name="{name}")
def it(p, c):
    return Build()
"""

ONCE = """
import os, sys
assert not hasattr(sys, "operator"), "it is defined already"
sys.operator = True
os.environ["LEFT"] = "behind"
open("pid", "w").write(str(os.getpid()))
"""
"""Stands for what a process can define only once, as an operator of torch."""


async def inspect(worker: WorkerProcess, request: requests.Request[Any, Any]) -> list[replies.InspectedFile]:
    """Return what a worker found in some files."""
    items: list[replies.InspectedFile] = []
    await worker.send_request(request, DEADLINES, on_item=items.append)
    return items


async def test_a_file_that_cannot_be_loaded_twice_is_inspected_twice(
    worker: WorkerProcess, playground: Playground
) -> None:
    """What one process can do only once, a fresh one does again: the same worker, and all files of the request."""
    text = KERNEL.format(before=ONCE, name="once")
    request = playground.request(KERNEL.format(before="", name="a"), text, KERNEL.format(before="", name="b"))
    for _ in range(2):
        items = await inspect(worker, request)
        assert [[kernel.kernel for kernel in item.kernels] for item in items] == [["a"], ["once"], ["b"]]
        assert [item.errors for item in items] == [(), (), ()]
        assert await playground.read("pid") == str(worker.pid)


async def test_a_file_that_fails_in_a_fresh_process_too_is_an_error(
    worker: WorkerProcess, playground: Playground
) -> None:
    """A file that fails in a fresh process, too, is an error, and the files after it are inspected."""
    broken = KERNEL.format(before="raise ValueError('always')", name="never")
    request = playground.request(KERNEL.format(before="", name="a"), broken, KERNEL.format(before="", name="b"))
    _, failed, last = await inspect(worker, request)
    assert "ValueError: always" in failed.errors[0].message
    assert [kernel.kernel for kernel in last.kernels] == ["b"]


async def test_a_load_that_an_earlier_job_spoiled_begins_again_in_a_fresh_process(
    worker: WorkerProcess, playground: Playground
) -> None:
    """A request that loads a kernel begins again likewise, with the environment that the worker was started in."""
    playground.request(KERNEL.format(before=ONCE + "ASSERTED = os.environ.pop('LEFT')\n", name="once"))
    explore = requests.Explore(playground.kernel("once", "tune_1.py"), {}, Plan())
    for _ in range(2):
        reply, _ = await worker.send_request(explore, DEADLINES)
        assert reply.size == 1
