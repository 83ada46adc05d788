"""Who used a GPU while a kernel was timed, as NVML reports it."""

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

OWN, OTHER = os.getpid(), 1
STEADY = Samples([100.0] * 18 + [400.0] * 2)
"""A timing of which two launches were delayed."""

SHIFTED = Samples([100.0] * 6 + [250.0] * 14)
"""A timing of which most were, but not all."""

LONG = Samples([5_000.0] * 20)

NEIGHBOUR = """
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
    """What NVML raises."""


class NotFoundError(NVMLError):
    """It has no samples."""


class NotSupportedError(NVMLError):
    """The device is a partition."""


class PlayedNvml(ModuleType):
    """NVML of one GPU: who has a context, and which samples there are; ``None`` for a driver that fails."""

    NVMLError = NVMLError
    NVMLError_NotFound = NotFoundError
    NVMLError_NotSupported = NotSupportedError

    def __init__(self, users: Sequence[int] | None = (OWN,)) -> None:
        super().__init__("pynvml")
        self.users = users
        self.is_partition = False
        self.samples: list[tuple[int, int, int]] | None = []
        self.questions = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        """Begin."""
        if self.users is None:
            raise NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802 - NVML's name
        """End."""

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:  # noqa: N802 - NVML's name
        """Return the device."""
        return uuid.decode()

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802 - NVML's name
        """Return who has a context."""
        return [SimpleNamespace(pid=pid) for pid in self.users or ()]

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> list[Any]:  # noqa: N802 - NVML's name
        """Return the samples since a moment: (pid, moment, share of the multiprocessors)."""
        self.questions += 1
        if self.is_partition:
            raise NotSupportedError("Not Supported")
        if self.samples is None:
            raise NVMLError("GPU is lost")
        found = [SimpleNamespace(pid=p, timeStamp=at, smUtil=share) for p, at, share in self.samples if at > since]
        if not found:
            raise NotFoundError("Not Found")
        return found


class Now:
    """A clock that stands."""

    def __init__(self) -> None:
        self.s = 10.0

    def __call__(self) -> float:
        """Return the time, in s."""
        return self.s


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedNvml]:
    """Put an NVML in the place of the real one."""
    played = PlayedNvml()
    monkeypatch.setitem(sys.modules, "pynvml", played)
    contention._find_watched_gpu.cache_clear()
    yield played
    contention._find_watched_gpu.cache_clear()


@pytest.mark.parametrize(
    ("later", "contended"),
    [
        ([], False),
        ([(OWN, 20, 90)], False),
        ([(OWN, 20, 60), (OTHER, 20, 30)], True),
        ([(OWN, 20, 60), (OTHER, 20, 3)], False),
        ([(OTHER, 20, 0)], False),
        ([(0, 20, 50)], False),
    ],
    ids=["no-one", "ourselves", "another", "a-compositor", "an-idle-one", "none-known"],
)
def test_work_of_others_since_the_watch_began_is_contention(
    nvml: PlayedNvml, later: list[tuple[int, int, int]], contended: bool
) -> None:
    """What others did before does not count, nor that they are there, nor what is our own."""
    nvml.samples = [(OTHER, 10, 80)]
    watch = GpuWatch("a")
    assert not watch.absence
    nvml.samples += later
    assert watch.is_contended(STEADY) is contended


def test_watches_in_a_row_ask_nvml_once_per_sample(nvml: PlayedNvml) -> None:
    """A row of short timings asks ten times a second; each sample is counted once, by the watch that asks next."""
    now = Now()
    nvml.samples = []
    found = []
    for number in range(1, 51):
        watch = GpuWatch("a", clock=now)
        now.s += 0.011
        nvml.samples += [(OTHER, number, 80 if number in (1, 13, 14, 30) else 0)]
        if watch.is_contended(STEADY):
            found.append(number)
    assert found == [1, 21, 31]
    assert nvml.questions == 2 + 4


def test_a_watch_after_a_pause_asks_at_its_end(nvml: PlayedNvml) -> None:
    """However short its timing was: nothing else would judge it."""
    now = Now()
    nvml.samples = [(OTHER, 20, 80)]
    for number in (21, 22):
        watch = GpuWatch("a", clock=now)
        nvml.samples += [(OTHER, number, 80)]
        assert watch.is_contended(STEADY)
        now.s += 1.0


@pytest.mark.parametrize(
    ("percents", "samples", "contended"),
    [
        ((), SHIFTED, False),
        ((0,), SHIFTED, False),
        ((3,), STEADY, False),
        ((29,), STEADY, False),
        ((30,), STEADY, True),
        ((15, 15), STEADY, True),
        ((1,), SHIFTED, True),
        ((4,), LONG, False),
        ((5,), LONG, True),
        ((100,), Samples(), False),
    ],
    ids=["alone", "idle", "compositor", "light", "heavy", "two-are-heavy", "median-moved", "long", "stretched", "none"],
)
def test_a_neighbour_on_the_gpu_counts_only_if_it_moved_the_median(
    percents: tuple[int, ...], samples: Samples, contended: bool
) -> None:
    """A light one counts if it moved the median, or if launches are so long that it must have stretched them all."""
    foreign = [Sample(pid, 20, percent) for pid, percent in enumerate(percents, start=1)]
    assert is_gpu_contended(foreign, samples) is contended


def test_a_gpu_that_cannot_be_judged_says_why(nvml: PlayedNvml) -> None:
    """No driver, or processes of which only others' ids are reported: nothing is called contended."""
    for users, reason in ((None, "NVML: Driver Not Loaded"), ((7_000_001,), FOREIGN_PIDS)):
        contention._find_watched_gpu.cache_clear()
        nvml.users = users
        watch = GpuWatch("a")
        assert (watch.absence, watch.is_contended(STEADY)) == (reason, False)


def test_processes_at_work_on_a_gpu_are_counted(nvml: PlayedNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, idle ones and those that cannot be seen do not count; a partition, which reports none, has none."""
    monkeypatch.setattr(probe, "gpu_uuids", lambda: {"cuda:0": "GPU-a"})
    now_us = time_ns() // 1000
    nvml.samples = [(OWN, now_us, 50), (OTHER, now_us, 50), (os.getppid(), now_us, 0), (2**22 + 1, now_us, 50)]
    assert count_gpu_users([OWN]) == replies.GpuUsers({"cuda:0": 1})
    nvml.is_partition = True
    assert count_gpu_users([OWN]) == replies.GpuUsers({"cuda:0": 0})
    nvml.users = None
    assert count_gpu_users([OWN]) == replies.GpuUsers({}, "NVML: Driver Not Loaded")


def test_a_gpu_that_is_lost_meanwhile_is_not_judged(nvml: PlayedNvml) -> None:
    """The timing's own failure reports it; the watch only says that it saw nothing."""
    watch = GpuWatch("a")
    nvml.samples = None
    assert not watch.is_contended(STEADY)
    assert watch.absence == "NVML: GPU is lost"


def test_without_nvml_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's name is in the reason."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    contention._find_watched_gpu.cache_clear()
    assert GpuWatch("a").absence == NOT_INSTALLED
    contention._find_watched_gpu.cache_clear()


@pytest.mark.gpu(alone=True)
def test_a_real_neighbour_is_seen() -> None:
    """Another process that computes on the same GPU makes a timing contended; alone it is not."""
    import torch

    contention._find_watched_gpu.cache_clear()
    x = torch.ones(2048, 2048, device="cuda")
    uuid = str(torch.cuda.get_device_properties("cuda:0").uuid)
    if absence := GpuWatch(uuid).absence:
        pytest.skip(absence)

    def busy(seconds: float) -> GpuWatch:
        watch = GpuWatch(uuid)
        until = monotonic() + seconds
        while monotonic() < until:
            x @ x
            torch.cuda.synchronize()
        return watch

    assert not busy(2.0).is_contended(STEADY)
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdout=subprocess.PIPE, text=True) as neighbour:
        try:
            assert neighbour.stdout is not None
            assert neighbour.stdout.readline() == "works\n"
            assert busy(3.0).is_contended(STEADY)
        finally:
            neighbour.kill()
