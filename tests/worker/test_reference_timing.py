"""The reference's figure: timed and checked for contention like a kernel's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ktuned.backends.registry import Registry
from ktuned.ipc import Places, requests
from ktuned.measuring import contention
from ktuned.measuring.host_timer import HostTimer
from ktuned.measuring.samples import Samples
from ktuned.model import TrialResult
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.model.plan import PRESETS
from ktuned.worker.bench import Bench
from ktuned.worker.reply import Reply


class FakeReply:
    """Ignores phases."""

    def begin_phase(self, name: str) -> None:
        """Do nothing."""


class FakeProblemData:
    """A problem with a reference or without."""

    def __init__(self, reference: Callable[[], None] | None) -> None:
        self._reference = reference

    def make_reference_launch(self) -> Callable[[], None] | None:
        return self._reference


class FakeCpuWatch:
    """A watch of the CPUs with a given verdict."""

    absence = ""

    def __init__(self, contended: bool) -> None:
        self._contended = contended

    def is_contended(self, samples: Samples) -> bool:
        return self._contended


def time_reference(
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[], None] | None,
    *,
    contended: bool = False,
    judged: bool = True,
) -> TrialResult:
    """Return what a worker measures for the reference."""
    monkeypatch.setattr(contention, "CpuWatch", lambda: FakeCpuWatch(contended))
    bench = Bench(Registry([]), Places({}, "", ""))
    device = Device(DeviceName("cpu:0"), DeviceModel("m"), Target("t"))
    watch = contention.ContentionWatch(device)
    problem: Any = SimpleNamespace(device=device, data=FakeProblemData(reference), timer=HostTimer(), observers=watch)
    bench._open = problem
    return bench.time_reference(requests.TimeReference(PRESETS["fast"], judged), cast("Reply", FakeReply())).result


def test_the_reference_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a reference there is no figure."""
    result = time_reference(monkeypatch, lambda: None)
    assert (result.outcome, (result.latency_us or 0) > 0) == ("measured", True)
    assert time_reference(monkeypatch, None).latency_us is None


def test_the_references_timing_is_judged_for_contention(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disturbed figure is dropped if the request asks for the check."""
    result = time_reference(monkeypatch, lambda: None, contended=True)
    assert (result.outcome, result.latency_us) == ("contended", None)
    assert time_reference(monkeypatch, lambda: None, contended=True, judged=False).outcome == "measured"


def test_a_reference_that_raises_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finalists' round continues on the same worker."""

    def refuse() -> None:
        raise RuntimeError("refused")

    result = time_reference(monkeypatch, refuse)
    assert (result.outcome, result.latency_us) == ("launch_error", None)
