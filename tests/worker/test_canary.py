"""What a spare does on its GPU before it is needed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from ktuned.checking.problem_data import ProblemData
from ktuned.model import Device, DeviceModel, DeviceName, Target
from ktuned.worker import canary
from ktuned.worker.canary import rehearse_problem, rehearsed

CPU = Device(DeviceName("cpu:0"), DeviceModel("cpu-x"), Target("x86_64"))
GPU = Device(DeviceName("cuda:0"), DeviceModel("H100"), Target("sm_90a"))


def test_the_rehearsed_problem_is_opened_and_judged_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs are expected and judged: nothing that a trial needs is left out because of an error."""
    opened: list[ProblemData] = []

    class Watched(ProblemData):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(self)

    monkeypatch.setattr(canary, "ProblemData", Watched)
    rehearse_problem(CPU)
    (data,) = opened
    assert data.is_judged
    assert data.check_outputs().ok
    assert data.find_overwritten_inputs() == ()


def test_a_devices_refusal_is_raised_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that announces a cold spare names the want of memory, and no kernel file of ours."""

    def refuse(*arguments: Any) -> None:
        raise rehearsed.site.make_failure("inputs(p)", cause) from cause

    cause = RuntimeError("CUDA out of memory")
    monkeypatch.setattr(canary, "ProblemData", refuse)
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory$"):
        rehearse_problem(GPU)


def test_a_problems_data_is_free_as_soon_as_nobody_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when Python looks for circles: the lane's worker may need a GPU's memory before."""
    # Its first import keeps frames.
    pytest.importorskip("torch")
    opened: list[weakref.ref[ProblemData]] = []

    class Watched(ProblemData):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            opened.append(weakref.ref(self))

    monkeypatch.setattr(canary, "ProblemData", Watched)
    gc.disable()
    try:
        rehearse_problem(CPU)
        assert [data() for data in opened] == [None]
    finally:
        gc.enable()


@pytest.mark.gpu
def test_a_rehearsal_keeps_no_memory() -> None:
    """What was allocated is given back: the lane's worker may need it."""
    torch = pytest.importorskip("torch")
    # The library of matrix products keeps a workspace.
    some = torch.ones(16, 16, device="cuda:0")
    some = some @ some
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    rehearse_problem(GPU)
    assert torch.cuda.memory_reserved() <= before
