from __future__ import annotations

import pytest

from ktuned.backends import CpuTicks
from ktuned.cli.watch.load import Load, TimeLeft, compute_load, estimate_time_left, sample_load, summarise_load
from ktuned.protocol import JobInfo, StatusAnswer
from tests.cli.samples import job_info, status_of


def status(busy_s: float, state: str = "busy") -> StatusAnswer:
    """Return a daemon's status with one lane."""
    lane = {"device": "cuda:0", "model": "H200", "state": state, "reason": "it hangs", "busy_s": busy_s}
    return status_of(lanes=[lane])


def ticks(busy: int, idle: int) -> CpuTicks:
    """Return CPU time."""
    return CpuTicks(busy, 0, 0, idle, 0, 0, 0, 0)


def test_load_is_what_happened_between_two_samples() -> None:
    """Of a lane's busy seconds and of the CPUs' ticks; the rate of trials is the daemon's own."""
    before, now = sample_load(status(10.0), ticks(100, 100), 5.0), sample_load(status(11.5), ticks(400, 200), 7.0)
    assert compute_load(before, now, status(11.5)) == Load({"cuda:0": 0.75}, 0.75, 2.5)
    assert compute_load(None, now, status(11.5)) == Load({}, None, 2.5)


def test_load_stays_within_its_bounds() -> None:
    """A batch that ends after it began before the sample, a daemon that began again, a machine without ticks."""
    early = sample_load(status(1.0), None, 5.0)
    assert compute_load(early, sample_load(status(9.0), None, 7.0), status(9.0)).lanes == {"cuda:0": 1.0}
    assert compute_load(early, sample_load(status(0.0), None, 7.0), status(0.0)).lanes == {"cuda:0": 0.0}
    assert compute_load(early, sample_load(status(1.1), ticks(1, 1), 7.0), status(1.1)).cpus is None
    assert compute_load(early, sample_load(status(1.1), None, 5.1), status(1.1)).lanes == {}


def test_sick_lanes_have_their_reason() -> None:
    """Instead of a share."""
    load = compute_load(sample_load(status(1.0), None, 1.0), sample_load(status(1.0), None, 3.0), status(1.0, "sick"))
    assert load.sick == {"cuda:0": "it hangs"}
    assert summarise_load(load, TimeLeft(), running=0, waiting=0) == "2.5 trials/s · no jobs"


RUNNING = job_info(1, done=20, total=40, left_s=10.0)
PLAN = {"trials": 1000, "time_limit_s": None}


@pytest.mark.parametrize(
    ("jobs", "sizes", "left"),
    [
        ([], {}, TimeLeft()),
        ([RUNNING], {}, TimeLeft(10.0)),
        # Another device's job runs beside it.
        ([RUNNING, job_info(2, device="H200", left_s=4.0)], {}, TimeLeft(10.0)),
        # Half a second a config, for as many as the space has.
        ([RUNNING, job_info(2, state="queued", total=None, plan=PLAN)], {"project:gemm": 60}, TimeLeft(40.0)),
        ([RUNNING, job_info(2, state="queued", total=None, plan=PLAN)], {}, TimeLeft(510.0)),
        (
            [RUNNING, job_info(2, state="queued", total=None, plan=PLAN | {"time_limit_s": 5.0})],
            {},
            TimeLeft(15.0),
        ),
        # On a device of which nothing is known, at the pace of the others.
        ([RUNNING, job_info(2, state="queued", device="H200", total=4)], {}, TimeLeft(10.0)),
        ([job_info(2, state="queued", total=4)], {}, TimeLeft(None, 1)),
        # One that runs and has measured nothing yet, too.
        ([RUNNING, job_info(2, done=0, total=30, left_s=None)], {}, TimeLeft(25.0)),
        ([job_info(2, done=0, total=30, left_s=None)], {}, TimeLeft(None, 1)),
        ([RUNNING, job_info(2, state="paused", total=4), job_info(3, state="done")], {}, TimeLeft(10.0)),
    ],
)
def test_time_left_over_all_jobs(jobs: list[JobInfo], sizes: dict[str, int], left: TimeLeft) -> None:
    """Jobs of one device follow each other, devices work beside each other; what is unknown is counted."""
    assert estimate_time_left(jobs, sizes) == left


def test_the_summary_is_one_line_of_figures() -> None:
    """One line of figures; a time that leaves jobs out says so."""
    load = Load({"cuda:0": 0.97, "cuda:1": 0.5}, 0.7, 12.345)
    assert summarise_load(load, TimeLeft(70.0, 1), running=2, waiting=3) == (
        "12.3 trials/s · cuda:0 97 % · cuda:1 50 % · CPUs 70 % · 2 running, 3 waiting · more than 1 min 10 s left"
    )
