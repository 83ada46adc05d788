"""Idle workers, by what they have opened. No processes."""

from collections.abc import Mapping
from typing import Any

import pytest

from ktuned.fleet import Environment, KernelCode, Worker
from ktuned.fleet.failures import Output
from ktuned.fleet.idle import IdleWorkers
from ktuned.model import Role

HERE = Environment(python="/usr/bin/python3", cwd="/")
GPU = "cuda:0"


class Idle(Worker):
    """A worker that only waits."""

    def __init__(self, device: str = "", code: KernelCode | None = None) -> None:
        super().__init__(Role.BENCH, HERE, 1)
        self.device, self.code = device, code

    @property
    def is_alive(self) -> bool:
        return not self.gone.is_set()

    async def exchange(self, request: Any, deadlines: Mapping[str, float], **callbacks: Any) -> Any:
        raise NotImplementedError

    def kill(self) -> None:
        self.gone.set()

    def stop(self, why: str) -> None:
        self.kill()

    def measure_memory(self) -> None: ...

    def output(self) -> Output:
        return Output()

    def timeline(self) -> Mapping[str, float]:
        return {}


def edits(count: int) -> list[KernelCode]:
    """Return the states of a kernel file after so many edits."""
    return [KernelCode("tune_it.py", str(number)) for number in range(count)]


@pytest.mark.parametrize("ends", ["taken", "outdated", "killed"])
def test_edits_leave_nothing_behind(ends: str) -> None:
    """A daemon that lives through many edits of a kernel file keeps nothing of those whose workers are gone."""
    idle = IdleWorkers()
    codes = edits(50)
    for code, following in zip(codes, [*codes[1:], codes[0]], strict=True):
        worker = Idle(GPU, code)
        idle.put(worker)
        if ends == "taken":
            assert idle.take(Role.BENCH, HERE, GPU, code) is worker
        elif ends == "outdated":
            assert idle.take_outdated(Role.BENCH, HERE, following) == [worker]
        else:
            worker.kill()
            assert idle.take(Role.BENCH, HERE, GPU, code) is None
    assert not any(idle._waiting.values())


def test_the_newest_of_the_best_state_is_taken() -> None:
    """The one that has opened the file comes first, then one with a context, then one that has nothing."""
    idle = IdleWorkers()
    (code,) = edits(1)
    older, newer, warm, cold = Idle(GPU, code), Idle(GPU, code), Idle(GPU), Idle()
    for worker in (cold, warm, older, newer, Idle("cuda:1", code)):
        idle.put(worker)
    assert [idle.take(Role.BENCH, HERE, GPU, code) for _ in range(5)] == [newer, older, warm, cold, None]
