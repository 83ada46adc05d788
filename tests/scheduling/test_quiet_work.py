"""Work that waits for a quiet machine."""

from __future__ import annotations

import os
from functools import partial

import anyio
import pytest

from ktuned.scheduling import work_in_quiet

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("load", "is_working", "is_done"), [(0.0, False, True), (99.0, False, False), (0.0, True, False)]
)
async def test_work_is_done_in_quiet_only(
    monkeypatch: pytest.MonkeyPatch, load: float, is_working: bool, is_done: bool
) -> None:
    """Each piece is done while no job runs and the load is low."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    done = anyio.Event()

    async def work() -> bool:
        done.set()
        return True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(work_in_quiet, [work], is_working=lambda: is_working, look_s=0.001))
        with anyio.move_on_after(10.0 if is_done else 0.1):
            await done.wait()
        tasks.cancel_scope.cancel()
    assert done.is_set() == is_done


async def test_the_pause_doubles_as_long_as_there_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    left = [True, True, True, False]

    async def work() -> bool:
        if not left:
            raise TimeoutError
        return left.pop(0)

    monkeypatch.setattr(anyio, "sleep", sleep)
    with pytest.raises(TimeoutError):
        await work_in_quiet([work], is_working=lambda: False, look_s=60.0)
    assert pauses == [60.0, 120.0, 240.0, 480.0, 60.0]
