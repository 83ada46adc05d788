from __future__ import annotations

import pytest

from ktuned.backends import CpuTicks
from ktuned.cli.watch.load import Load, TimeLeft, compute_load, estimate_time_left, sample_load, summarise_load
from ktuned.protocol import JobInfo, StatusAnswer
from tests.cli.samples import make_job_info, make_status


def make_lane_status(busy_s: float, state: str = "busy") -> StatusAnswer:
    lane = {"device": "cuda:0", "model": "H200", "state": state, "reason": "it hangs", "busy_s": busy_s}
    return make_status(lanes=[lane])


def make_cpu_times(busy: int, idle: int) -> CpuTicks:
    return CpuTicks(busy, 0, 0, idle, 0, 0, 0, 0)


def test_load_is_the_difference_of_two_samples() -> None:
    """The shares are of a lane's busy seconds and of CPU ticks; the rate of trials is the daemon's."""
    before, now = (
        sample_load(make_lane_status(10.0), make_cpu_times(100, 100), 5.0),
        sample_load(make_lane_status(11.5), make_cpu_times(400, 200), 7.0),
    )
    assert compute_load(before, now, make_lane_status(11.5)) == Load({"cuda:0": 0.75}, 0.75, 2.5)
    assert compute_load(None, now, make_lane_status(11.5)) == Load({}, None, 2.5)


def test_load_stays_within_its_bounds() -> None:
    """Cases: a batch that began before the sample, a restarted daemon, a machine without ticks."""
    early = sample_load(make_lane_status(1.0), None, 5.0)
    assert compute_load(early, sample_load(make_lane_status(9.0), None, 7.0), make_lane_status(9.0)).lanes == {
        "cuda:0": 1.0
    }
    assert compute_load(early, sample_load(make_lane_status(0.0), None, 7.0), make_lane_status(0.0)).lanes == {
        "cuda:0": 0.0
    }
    assert (
        compute_load(early, sample_load(make_lane_status(1.1), make_cpu_times(1, 1), 7.0), make_lane_status(1.1)).cpus
        is None
    )
    assert compute_load(early, sample_load(make_lane_status(1.1), None, 5.1), make_lane_status(1.1)).lanes == {}


def test_a_sick_lane_shows_its_reason() -> None:
    load = compute_load(
        sample_load(make_lane_status(1.0), None, 1.0),
        sample_load(make_lane_status(1.0), None, 3.0),
        make_lane_status(1.0, "sick"),
    )
    assert load.sick == {"cuda:0": "it hangs"}
    assert summarise_load(load, TimeLeft(), running=0, waiting=0) == "2.5 trials/s · no jobs"


RUNNING = make_job_info(1, done=20, total=40, left_s=10.0)
PLAN = {"trials": 1000, "time_limit_s": None}


@pytest.mark.parametrize(
    ("jobs", "sizes", "left"),
    [
        ([], {}, TimeLeft()),
        ([RUNNING], {}, TimeLeft(10.0)),
        # Another device's job runs beside it.
        ([RUNNING, make_job_info(2, device="H200", left_s=4.0)], {}, TimeLeft(10.0)),
        # Half a second a config, for as many as the space has.
        ([RUNNING, make_job_info(2, state="queued", total=None, plan=PLAN)], {"project:gemm": 60}, TimeLeft(40.0)),
        ([RUNNING, make_job_info(2, state="queued", total=None, plan=PLAN)], {}, TimeLeft(510.0)),
        (
            [RUNNING, make_job_info(2, state="queued", total=None, plan=PLAN | {"time_limit_s": 5.0})],
            {},
            TimeLeft(15.0),
        ),
        # On a device of which nothing is known, at the pace of the others.
        ([RUNNING, make_job_info(2, state="queued", device="H200", total=4)], {}, TimeLeft(10.0)),
        ([make_job_info(2, state="queued", total=4)], {}, TimeLeft(None, 1)),
        # One that runs and has measured nothing yet, too.
        ([RUNNING, make_job_info(2, done=0, total=30, left_s=None)], {}, TimeLeft(25.0)),
        ([make_job_info(2, done=0, total=30, left_s=None)], {}, TimeLeft(None, 1)),
        ([RUNNING, make_job_info(2, state="paused", total=4), make_job_info(3, state="done")], {}, TimeLeft(10.0)),
    ],
)
def test_time_left_sums_jobs_of_a_device(jobs: list[JobInfo], sizes: dict[str, int], left: TimeLeft) -> None:
    """Devices work in parallel; jobs without an estimate are counted."""
    assert estimate_time_left(jobs, sizes) == left


def test_the_summary_is_one_line_of_figures() -> None:
    """The time says how many jobs it leaves out."""
    load = Load({"cuda:0": 0.97, "cuda:1": 0.5}, 0.7, 12.345)
    assert summarise_load(load, TimeLeft(70.0, 1), running=2, waiting=3) == (
        "12.3 trials/s · cuda:0 97 % · cuda:1 50 % · CPUs 70 % · 2 running, 3 waiting · more than 1 min 10 s left"
    )
