"""What commands print beside their results."""

import io
import sys
import threading

import pytest

from ktuned.cli import output


class _Watched(io.StringIO):
    """Standard error that notes its second line."""

    def __init__(self) -> None:
        super().__init__()
        self.has_two_lines = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") == 2:
            self.has_two_lines.set()
        return written


def test_a_long_request_is_mentioned_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it takes a line follows after each interval; none comes after it, and none for a short one."""
    said = _Watched()
    monkeypatch.setattr(sys, "stderr", said)
    with output.report_waiting("checking", every_s=0.01):
        assert said.has_two_lines.wait(10)
    lines = said.getvalue().splitlines()
    assert all(line.startswith("checking: ") and line.endswith(" so far") for line in lines)
    with output.report_waiting("checking"):
        pass
    assert said.getvalue().splitlines() == lines
