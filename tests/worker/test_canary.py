"""What a spare worker does on its GPU before it is needed."""

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
    """The rehearsal runs everything that a trial needs, so no error may cut it short."""
    problems: list[ProblemData] = []

    class RecordedData(ProblemData):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            problems.append(self)

    monkeypatch.setattr(canary, "ProblemData", RecordedData)
    rehearse_problem(CPU)
    (data,) = problems
    assert data.is_judged
    assert data.check_outputs().ok
    assert data.find_overwritten_inputs() == ()


def test_a_devices_refusal_is_raised_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of a spare that did not warm up names the lack of memory, and no kernel file."""

    def raise_failure(*arguments: Any) -> None:
        raise rehearsed.site.make_failure("inputs(p)", cause) from cause

    cause = RuntimeError("CUDA out of memory")
    monkeypatch.setattr(canary, "ProblemData", raise_failure)
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory$"):
        rehearse_problem(GPU)


def test_a_problems_data_is_free_as_soon_as_nobody_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data must not wait for the garbage collector: the lane's worker may need the GPU's memory before."""
    # Its first import keeps frames alive.
    pytest.importorskip("torch")
    problems: list[weakref.ref[ProblemData]] = []

    class RecordedData(ProblemData):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            problems.append(weakref.ref(self))

    monkeypatch.setattr(canary, "ProblemData", RecordedData)
    gc.disable()
    try:
        rehearse_problem(CPU)
        assert [data() for data in problems] == [None]
    finally:
        gc.enable()


@pytest.mark.gpu
def test_a_rehearsal_keeps_no_memory() -> None:
    """The lane's worker may need the memory."""
    torch = pytest.importorskip("torch")
    # cuBLAS keeps a workspace.
    matrix = torch.ones(16, 16, device="cuda:0")
    matrix = matrix @ matrix
    torch.cuda.empty_cache()
    reserved_bytes = torch.cuda.memory_reserved()
    rehearse_problem(GPU)
    assert torch.cuda.memory_reserved() <= reserved_bytes
