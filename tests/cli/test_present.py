"""The lines of a tuning in a pipe: news at once, and the state of open jobs after a pause."""

from __future__ import annotations

import io
import sys
from threading import Event

import pytest

from ktuned.cli.lines import MAX_STANDING, describe_open_jobs
from ktuned.cli.present import LinePresenter
from ktuned.cli.progress import View, begin_view
from tests.cli.samples import DEVICE, KERNEL, make_job_info

NAME = f"{KERNEL} [M=64 dtype=float32] on {DEVICE}"


class SignallingStdout(io.StringIO):
    """A stdout that signals when a line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_line = Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        self.has_line.set()
        return count


def test_a_quiet_job_prints_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that prints the line ends with the presenter."""
    page = SignallingStdout()
    monkeypatch.setattr(sys, "stdout", page)
    with LinePresenter(silence_s=0.01) as presenter:
        presenter.show_event(None, begin_view([make_job_info(done=3, best_us=40.0, left_s=75.0)]), ())
        assert page.has_line.wait(20.0)
    line = page.getvalue().splitlines()[0]
    assert line.startswith(f"{NAME}: 3/4 tried in ")
    assert line.endswith(", best 40.00 µs, 1 min 15 s left")


def test_the_state_of_open_jobs_is_one_line() -> None:
    """Running jobs come first, queued jobs have their reason, and many jobs are counted."""
    waiting = [
        make_job_info(number, state="queued", waits_for="its device is paused" if number == 1 else "")
        for number in range(1, MAX_STANDING + 3)
    ]
    line = describe_open_jobs(begin_view([*waiting, make_job_info(99)]))
    assert line[:3] == [f"{NAME}: 0/4 tried", f"{NAME}: queued, its device is paused", f"{NAME}: queued"]
    assert line[-1] == "and 3 more jobs"
    assert describe_open_jobs(begin_view([make_job_info(started=60.0)]), now=92.0) == [f"{NAME}: 0/4 tried in 32 s"]
    assert describe_open_jobs(View()) == describe_open_jobs(begin_view([make_job_info(state="done")])) == []
