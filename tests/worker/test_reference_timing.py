"""The reference's figure: by the same timer as the kernels', and as little believed when others used the device."""

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


class Phases:
    """Takes the phases that are reported."""

    def begin_phase(self, name: str) -> None:
        """Take one."""


class Data:
    """A problem that has a reference, or none."""

    def __init__(self, reference: Callable[[], None] | None) -> None:
        self._reference = reference

    def make_reference_launch(self) -> Callable[[], None] | None:
        """Return what runs it."""
        return self._reference


class Watch:
    """A watch that says what a test wants."""

    absence = ""

    def __init__(self, contended: bool) -> None:
        self._contended = contended

    def is_contended(self, samples: Samples) -> bool:
        """Say it."""
        return self._contended


def timed(
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[], None] | None,
    *,
    contended: bool = False,
    judged: bool = True,
) -> TrialResult:
    """Return what a worker has measured of the reference."""
    monkeypatch.setattr(contention, "CpuWatch", lambda: Watch(contended))
    worker = Bench(Registry([]), Places({}, "", ""))
    device = Device(DeviceName("cpu:0"), DeviceModel("m"), Target("t"))
    watch = contention.ContentionWatch(device)
    opened: Any = SimpleNamespace(device=device, data=Data(reference), timer=HostTimer(), observers=watch)
    worker._open = opened
    return worker.time_reference(requests.TimeReference(PRESETS["fast"], judged), cast("Reply", Phases())).result


def test_the_reference_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In µs, by the kernels' timer; without a reference there is no figure."""
    found = timed(monkeypatch, lambda: None)
    assert (found.outcome, (found.latency_us or 0) > 0) == ("measured", True)
    assert timed(monkeypatch, None).latency_us is None


def test_the_references_timing_is_judged_for_contention(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that others disturbed is none, where that is judged."""
    found = timed(monkeypatch, lambda: None, contended=True)
    assert (found.outcome, found.latency_us) == ("contended", None)
    assert timed(monkeypatch, lambda: None, contended=True, judged=False).outcome == "measured"


def test_a_reference_that_raises_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finalists' round goes on without it, on the same worker."""

    def refuse() -> None:
        raise RuntimeError("refused")

    found = timed(monkeypatch, refuse)
    assert (found.outcome, found.latency_us) == ("launch_error", None)
