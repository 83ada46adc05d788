"""What commands print about slow requests."""

import io
import sys
import threading

import pytest

from ktuned.cli import output


class TimedStderr(io.StringIO):
    """A stderr that records when its second line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_two_lines = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if self.getvalue().count("\n") == 2:
            self.has_two_lines.set()
        return count


def test_a_slow_request_prints_a_line_after_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast request prints none, and none follows the answer."""
    stderr = TimedStderr()
    monkeypatch.setattr(sys, "stderr", stderr)
    with output.report_waiting("checking", every_s=0.01):
        assert stderr.has_two_lines.wait(10)
    lines = stderr.getvalue().splitlines()
    assert all(line.startswith("checking: ") and line.endswith(" so far") for line in lines)
    with output.report_waiting("checking"):
        pass
    assert stderr.getvalue().splitlines() == lines
