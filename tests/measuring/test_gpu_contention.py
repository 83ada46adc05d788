"""Which programs used a GPU while a kernel was timed, as NVML reports it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from time import monotonic, time_ns
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ktuned.backends.nvml import NOT_INSTALLED, Sample
from ktuned.ipc import replies
from ktuned.measuring import contention
from ktuned.measuring.contention import FOREIGN_PIDS, GpuWatch, is_gpu_contended
from ktuned.measuring.samples import Samples
from ktuned.worker import probe
from ktuned.worker.probe import count_gpu_users
from tests.clocks import SettableClock

OWN_PID, OTHER_PID = os.getpid(), 1
STEADY_TIMING = Samples([100.0] * 18 + [400.0] * 2)
"""Samples of a timing, in µs: two launches were delayed."""

MEDIAN_MOVED = Samples([100.0] * 6 + [250.0] * 14)
"""Most launches were delayed, but not all."""

LONG_LAUNCHES = Samples([5_000.0] * 20)

NEIGHBOUR_PROGRAM = """
import sys, torch
x = torch.ones(4096, 4096, device="cuda")
x @ x
torch.cuda.synchronize()
print("works", flush=True)
while True:
    for _ in range(20):
        x @ x
    torch.cuda.synchronize()
"""


class NVMLError(Exception):
    """NVML's base exception."""


class NotFoundError(NVMLError):
    """NVML has no samples."""


class NotSupportedError(NVMLError):
    """The device is a partition, which reports no samples."""


class FakeNvml(ModuleType):
    """NVML of one GPU with the given processes and samples; ``users=None`` is a driver that is not loaded."""

    NVMLError = NVMLError
    NVMLError_NotFound = NotFoundError
    NVMLError_NotSupported = NotSupportedError

    def __init__(self, users: Sequence[int] | None = (OWN_PID,)) -> None:
        super().__init__("pynvml")
        self.users = users
        self.is_partition = False
        self.samples: list[tuple[int, int, int]] | None = []
        self.queries = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        if self.users is None:
            raise NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802 - NVML's name
        """End."""

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:  # noqa: N802 - NVML's name
        return uuid.decode()

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802 - NVML's name
        return [SimpleNamespace(pid=pid) for pid in self.users or ()]

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> list[Any]:  # noqa: N802 - NVML's name
        """Return the samples after a time: (pid, time, percent of the multiprocessors)."""
        self.queries += 1
        if self.is_partition:
            raise NotSupportedError("Not Supported")
        if self.samples is None:
            raise NVMLError("GPU is lost")
        found = [SimpleNamespace(pid=p, timeStamp=at, smUtil=share) for p, at, share in self.samples if at > since]
        if not found:
            raise NotFoundError("Not Found")
        return found


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """A fake NVML in the place of the real module."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    contention._find_watched_gpu.cache_clear()
    yield fake
    contention._find_watched_gpu.cache_clear()


@pytest.mark.parametrize(
    ("later_samples", "contended"),
    [
        ([], False),
        ([(OWN_PID, 20, 90)], False),
        ([(OWN_PID, 20, 60), (OTHER_PID, 20, 30)], True),
        ([(OWN_PID, 20, 60), (OTHER_PID, 20, 3)], False),
        ([(OTHER_PID, 20, 0)], False),
        ([(0, 20, 50)], False),
    ],
    ids=["no-one", "ourselves", "another", "a-compositor", "an-idle-one", "none-known"],
)
def test_work_of_others_since_the_watch_began_is_contention(
    nvml: FakeNvml, later_samples: list[tuple[int, int, int]], contended: bool
) -> None:
    """Work before the watch, idle processes and our own work are no contention."""
    nvml.samples = [(OTHER_PID, 10, 80)]
    watch = GpuWatch("a")
    assert not watch.absence
    nvml.samples += later_samples
    assert watch.is_contended(STEADY_TIMING) is contended


def test_watches_in_a_row_ask_nvml_once_per_sample(nvml: FakeNvml) -> None:
    """NVML samples ten times a second, so short timings in a row share queries; the next watch that asks counts the
    sample.
    """
    clock = SettableClock(10.0)
    nvml.samples = []
    contended_numbers = []
    for number in range(1, 51):
        watch = GpuWatch("a", clock=clock)
        clock.now += 0.011
        nvml.samples += [(OTHER_PID, number, 80 if number in (1, 13, 14, 30) else 0)]
        if watch.is_contended(STEADY_TIMING):
            contended_numbers.append(number)
    assert contended_numbers == [1, 21, 31]
    assert nvml.queries == 2 + 4


def test_a_watch_after_a_pause_asks_at_its_end(nvml: FakeNvml) -> None:
    """No other watch would judge this timing, however short it was."""
    clock = SettableClock(10.0)
    nvml.samples = [(OTHER_PID, 20, 80)]
    for number in (21, 22):
        watch = GpuWatch("a", clock=clock)
        nvml.samples += [(OTHER_PID, number, 80)]
        assert watch.is_contended(STEADY_TIMING)
        clock.now += 1.0


@pytest.mark.parametrize(
    ("percents", "samples", "contended"),
    [
        ((), MEDIAN_MOVED, False),
        ((0,), MEDIAN_MOVED, False),
        ((3,), STEADY_TIMING, False),
        ((29,), STEADY_TIMING, False),
        ((30,), STEADY_TIMING, True),
        ((15, 15), STEADY_TIMING, True),
        ((1,), MEDIAN_MOVED, True),
        ((4,), LONG_LAUNCHES, False),
        ((5,), LONG_LAUNCHES, True),
        ((100,), Samples(), False),
    ],
    ids=["alone", "idle", "compositor", "light", "heavy", "two-are-heavy", "median-moved", "long", "stretched", "none"],
)
def test_a_neighbour_on_the_gpu_counts_only_if_it_moved_the_median(
    percents: tuple[int, ...], samples: Samples, contended: bool
) -> None:
    """A light neighbour counts if the median moved, or if launches are so long that it must have stretched all."""
    others = [Sample(pid, 20, percent) for pid, percent in enumerate(percents, start=1)]
    assert is_gpu_contended(others, samples) is contended


def test_a_gpu_that_cannot_be_judged_says_why(nvml: FakeNvml) -> None:
    """Without a driver, or where a container sees only foreign process ids, no timing is called contended."""
    for users, reason in ((None, "NVML: Driver Not Loaded"), ((7_000_001,), FOREIGN_PIDS)):
        contention._find_watched_gpu.cache_clear()
        nvml.users = users
        watch = GpuWatch("a")
        assert (watch.absence, watch.is_contended(STEADY_TIMING)) == (reason, False)


def test_processes_at_work_on_a_gpu_are_counted(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own, idle and invisible processes do not count; a partition reports no processes."""
    monkeypatch.setattr(probe, "gpu_uuids", lambda: {"cuda:0": "GPU-a"})
    now_us = time_ns() // 1000
    nvml.samples = [(OWN_PID, now_us, 50), (OTHER_PID, now_us, 50), (os.getppid(), now_us, 0), (2**22 + 1, now_us, 50)]
    assert count_gpu_users([OWN_PID]) == replies.GpuUsers({"cuda:0": 1})
    nvml.is_partition = True
    assert count_gpu_users([OWN_PID]) == replies.GpuUsers({"cuda:0": 0})
    nvml.users = None
    assert count_gpu_users([OWN_PID]) == replies.GpuUsers({}, "NVML: Driver Not Loaded")


def test_a_gpu_that_is_lost_during_a_timing_is_not_contended(nvml: FakeNvml) -> None:
    """The timing itself reports the lost GPU; the watch only says that it saw nothing."""
    watch = GpuWatch("a")
    nvml.samples = None
    assert not watch.is_contended(STEADY_TIMING)
    assert watch.absence == "NVML: GPU is lost"


def test_without_nvml_the_watch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    contention._find_watched_gpu.cache_clear()
    assert GpuWatch("a").absence == NOT_INSTALLED
    contention._find_watched_gpu.cache_clear()


@pytest.mark.gpu(alone=True)
def test_a_real_neighbour_is_seen() -> None:
    """A process that computes on the same GPU makes a timing contended; without it the timing is not."""
    import torch

    contention._find_watched_gpu.cache_clear()
    x = torch.ones(2048, 2048, device="cuda")
    uuid = str(torch.cuda.get_device_properties("cuda:0").uuid)
    if absence := GpuWatch(uuid).absence:
        pytest.skip(absence)

    def compute_under_watch(seconds: float) -> GpuWatch:
        watch = GpuWatch(uuid)
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            x @ x
            torch.cuda.synchronize()
        return watch

    assert not compute_under_watch(2.0).is_contended(STEADY_TIMING)
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR_PROGRAM], stdout=subprocess.PIPE, text=True) as neighbour:
        try:
            assert neighbour.stdout is not None
            assert neighbour.stdout.readline() == "works\n"
            assert compute_under_watch(3.0).is_contended(STEADY_TIMING)
        finally:
            neighbour.kill()
