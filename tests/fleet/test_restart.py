"""Workers that restart as a fresh process: the daemon gets the answer of a process that has loaded nothing."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.fleet.process import WorkerProcess
from ktuned.ipc import replies, requests
from ktuned.model.plan import Plan
from tests.fleet.playground import DEADLINES, Playground

pytestmark = pytest.mark.anyio

KERNEL = """
from ktuned import kernel, space, tensor
from ktuned_fake import Build
{before}
@kernel(backend="fake", space=space(n=[1]), inputs=lambda p: dict(x=tensor(1)), check=None, name="{name}")
def it(p, c):
    return Build()
"""

ONLY_ONCE = """
import os, sys
assert not hasattr(sys, "operator"), "it is defined already"
sys.operator = True
os.environ["LEFT"] = "behind"
open("pid", "w").write(str(os.getpid()))
"""
"""Stands for what a process can define only once, such as an operator of torch."""


async def inspect_files(worker: WorkerProcess, request: requests.Request[Any, Any]) -> list[replies.InspectedFile]:
    """Return what a worker found in some files."""
    items: list[replies.InspectedFile] = []
    await worker.send_request(request, DEADLINES, on_item=items.append)
    return items


async def test_a_file_that_cannot_be_loaded_twice_is_inspected_twice(
    worker: WorkerProcess, playground: Playground
) -> None:
    """The same worker repeats all files of the request in a fresh process."""
    text = KERNEL.format(before=ONLY_ONCE, name="once")
    request = playground.write_and_request(KERNEL.format(before="", name="a"), text, KERNEL.format(before="", name="b"))
    for _ in range(2):
        items = await inspect_files(worker, request)
        assert [[kernel.kernel for kernel in item.kernels] for item in items] == [["a"], ["once"], ["b"]]
        assert [item.errors for item in items] == [(), (), ()]
        assert await playground.read_file("pid") == str(worker.pid)


async def test_a_file_that_fails_in_a_fresh_process_too_is_an_error(
    worker: WorkerProcess, playground: Playground
) -> None:
    """The files after it are inspected."""
    broken = KERNEL.format(before="raise ValueError('always')", name="never")
    request = playground.write_and_request(
        KERNEL.format(before="", name="a"), broken, KERNEL.format(before="", name="b")
    )
    _, failed, last = await inspect_files(worker, request)
    assert "ValueError: always" in failed.errors[0].message
    assert [kernel.kernel for kernel in last.kernels] == ["b"]


async def test_a_load_that_an_earlier_job_spoiled_begins_again_in_a_fresh_process(
    worker: WorkerProcess, playground: Playground
) -> None:
    """The fresh process has the environment in which the worker was started."""
    playground.write_and_request(KERNEL.format(before=ONLY_ONCE + "ASSERTED = os.environ.pop('LEFT')\n", name="once"))
    explore = requests.Explore(playground.make_kernel_ref("once", "tune_1.py"), {}, Plan())
    for _ in range(2):
        reply, _ = await worker.send_request(explore, DEADLINES)
        assert reply.size == 1
