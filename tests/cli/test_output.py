"""What commands print about slow requests."""

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

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


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["tune", "--help"]], ids=" ".join)
def test_a_full_disk_behind_stdout_is_one_line(words: list[str]) -> None:
    """As the kernel's own full device shows it."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ktuned", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    expected = "ktuned: stdout cannot be read or written: No space left on device\n"
    assert (done.returncode, done.stderr) == (output.Exit.NOT_REACHED, expected)


def test_a_file_replaces_nothing_but_files(tmp_path: Path) -> None:
    """A link stays and its target is written; a pipe gets the content."""
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target.name)
    for _ in range(2):
        output.write_atomically(link, "a page")
        assert (link.readlink().name, target.read_text()) == ("target", "a page")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert output.write_atomically(pipe, "a page")
        assert os.read(reader, 100) == b"a page"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert {path.name for path in tmp_path.iterdir()} == {"target", "link", "pipe"}
