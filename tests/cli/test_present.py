"""Lines in a pipe: news at once, and the standing of open jobs where there is none."""

from __future__ import annotations

import io
import sys
from threading import Event

import pytest

from ktuned.cli.lines import MAX_STANDING, describe_open_jobs
from ktuned.cli.present import LinePresenter
from ktuned.cli.progress import View, begin_view
from tests.cli.samples import DEVICE, KERNEL, job_info

NAME = f"{KERNEL} [M=64 dtype=float32] on {DEVICE}"


class Page(io.StringIO):
    """A stdout that says when a line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_line = Event()

    def write(self, text: str) -> int:
        """Keep the text, and note that there is some."""
        written = super().write(text)
        self.has_line.set()
        return written


def test_silence_is_broken_while_jobs_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an event a line says how far the job is; its thread ends with the presenter."""
    page = Page()
    monkeypatch.setattr(sys, "stdout", page)
    with LinePresenter(silence_s=0.01) as presenter:
        presenter.show_event(None, begin_view([job_info(done=3, best_us=40.0, left_s=75.0)]), ())
        assert page.has_line.wait(20.0)
    line = page.getvalue().splitlines()[0]
    assert line.startswith(f"{NAME}: 3/4 tried in ")
    assert line.endswith(", best 40.00 µs, 1 min 15 s left")


def test_standing_of_jobs() -> None:
    """Running jobs come first, waiting ones have their reason, and many are counted; none without open jobs."""
    waiting = [
        job_info(number, state="queued", waits_for="its device is paused" if number == 1 else "")
        for number in range(1, MAX_STANDING + 3)
    ]
    said = describe_open_jobs(begin_view([*waiting, job_info(99)]))
    assert said[:3] == [f"{NAME}: 0/4 tried", f"{NAME}: queued, its device is paused", f"{NAME}: queued"]
    assert said[-1] == "and 3 more jobs"
    assert describe_open_jobs(begin_view([job_info(started=60.0)]), now=92.0) == [f"{NAME}: 0/4 tried in 32 s"]
    assert describe_open_jobs(View()) == describe_open_jobs(begin_view([job_info(state="done")])) == []
