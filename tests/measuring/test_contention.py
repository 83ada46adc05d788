"""Which programs used the CPUs or the GPU while a kernel was timed."""

import pytest

from ktuned.backends import nvml
from ktuned.backends.cpu import CpuTicks
from ktuned.measuring.contention import MIN_WINDOW_TICKS, CpuTimes, is_cpu_contended, is_gpu_contended
from ktuned.measuring.samples import Samples


def make_readings(own: float = 0.0, **ticks: int) -> tuple[CpuTimes, CpuTimes]:
    """Return two readings of the CPU clocks: ``own`` and ``ticks`` passed between them."""
    start = CpuTicks(*range(1000, 1008))
    end = CpuTicks(*(value + ticks.get(kind, 0) for value, kind in zip(start, CpuTicks._fields, strict=True)))
    return CpuTimes(start, 50.0), CpuTimes(end, 50.0 + own)


@pytest.mark.parametrize(
    ("readings", "contended"),
    [
        (make_readings(own=100, user=100, idle=100), False),
        (make_readings(own=100, user=200), False),
        (make_readings(own=100, user=250, system=50), True),
        (make_readings(own=0, user=200), True),
        (make_readings(own=100, user=100, nice=500), False),
        (make_readings(own=100, user=300, nice=600), False),
        (make_readings(own=50, user=300, idle=100), False),
        (make_readings(own=50, user=300, iowait=100), False),
        (make_readings(own=50, user=50, steal=150), True),
        (make_readings(own=0, user=MIN_WINDOW_TICKS - 1), False),
        (make_readings(), False),
    ],
    ids=[
        "alone",
        "one-neighbour-on-two-cores",
        "two-neighbours-on-two-cores",
        "never-scheduled",
        "only-compiles",
        "compiles-and-a-neighbour",
        "a-core-is-idle",
        "a-core-waits-for-a-disk",
        "the-host-stole",
        "too-short-to-tell",
        "nothing-passed",
    ],
)
def test_cpus_are_contended_only_if_others_leave_no_core(readings: tuple[CpuTimes, CpuTimes], contended: bool) -> None:
    """Our own time, niced time and idle cores are no contention; other programs that take most of all CPUs are."""
    assert is_cpu_contended(*readings) is contended


def test_cpu_times_are_read_from_the_system() -> None:
    """Readings grow, and this process's own time is part of the machine's."""
    before = CpuTimes.read()
    total = sum(range(300_000))
    after = CpuTimes.read()
    assert total
    assert before.machine.total > 0
    assert all(later >= earlier for earlier, later in zip(before.machine, after.machine, strict=True))
    assert 0 <= before.own <= after.own


@pytest.mark.parametrize(
    ("latency_us", "shifted", "contended"), [(100.0, False, False), (100.0, True, True), (5_000.0, False, True)]
)
def test_an_applications_use_of_a_gpu_counts_only_if_it_moved_the_median(
    latency_us: float, shifted: bool, contended: bool
) -> None:
    """An application delays a short launch by a whole turn or not at all; it stretches every long launch."""
    samples = Samples()
    for index in range(100):
        samples.add_sample(latency_us * (1.0 if not shifted or index < 20 else 1.5))
    gpu_samples = [nvml.Sample(7, 1, 95)]
    assert is_gpu_contended(gpu_samples, samples, (7,)) is contended
    assert is_gpu_contended(gpu_samples, samples)
