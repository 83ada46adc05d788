"""Who took the CPUs while a kernel was timed."""

import pytest

from ktuned.backends import nvml
from ktuned.backends.cpu import CpuTicks
from ktuned.measuring.contention import MIN_WINDOW_TICKS, CpuTimes, is_cpu_contended, is_gpu_contended
from ktuned.measuring.samples import Samples


def window(own: float = 0.0, **ticks: int) -> tuple[CpuTimes, CpuTimes]:
    """Return two readings between which this much time of each kind passed."""
    start = CpuTicks(*range(1000, 1008))
    end = CpuTicks(*(value + ticks.get(kind, 0) for value, kind in zip(start, CpuTicks._fields, strict=True)))
    return CpuTimes(start, 50.0), CpuTimes(end, 50.0 + own)


@pytest.mark.parametrize(
    ("before_after", "contended"),
    [
        (window(own=100, user=100, idle=100), False),
        (window(own=100, user=200), False),
        (window(own=100, user=250, system=50), True),
        (window(own=0, user=200), True),
        (window(own=100, user=100, nice=500), False),
        (window(own=100, user=300, nice=600), False),
        (window(own=50, user=300, idle=100), False),
        (window(own=50, user=300, iowait=100), False),
        (window(own=50, user=50, steal=150), True),
        (window(own=0, user=MIN_WINDOW_TICKS - 1), False),
        (window(), False),
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
def test_cpus_are_contended_only_if_others_leave_no_core(
    before_after: tuple[CpuTimes, CpuTimes], contended: bool
) -> None:
    """Our own time, niced time and idle cores excuse; others that take most of all CPUs do not."""
    assert is_cpu_contended(*before_after) is contended


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
    """On short launches: a turn of its own delays one by as much, or not at all; long ones are stretched."""
    samples = Samples()
    for place in range(100):
        samples.add_sample(latency_us * (1.0 if not shifted or place < 20 else 1.5))
    busy = [nvml.Sample(7, 1, 95)]
    assert is_gpu_contended(busy, samples, (7,)) is contended
    assert is_gpu_contended(busy, samples)
