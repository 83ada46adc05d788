"""The demo: to its end with a small budget; one line and nothing left behind when a step fails."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples import demo

SMALL = ("--trials", "3", "--seconds", "1")


def start(directory: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Start the demo as ``make demo`` does, with its temporary files below ``directory``."""
    return subprocess.Popen(
        [sys.executable, demo.__file__, *words],
        env={**os.environ, "TMPDIR": str(directory), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty directory; named shortly, because a socket's path must fit below it."""
    return tmp_path_factory.mktemp("d")


@pytest.mark.timeout(300)
def test_it_tunes_edits_tunes_again_looks_up_and_stops(short: Path) -> None:
    """Exit code 0, with every step's result reported, and neither a file nor (the leak check) a process left."""
    process = start(short, *SMALL)
    said, complaint = process.communicate()
    assert process.returncode == 0, said + complaint
    names = [line.split("  ")[0] for line in said.splitlines()]
    assert {"winner", "default", "slowest", "torch.matmul"} <= set(names)
    assert "There is no new job, and the winner is still fresh." in said
    _, _, after = said.partition("saved gemm.cc")
    statuses = [demo.status_in(line) for line in after.splitlines() if " us  " in line]
    assert "stale" in statuses
    assert statuses[-1] == "fresh"
    assert "processes before, none now." in said
    assert list(short.iterdir()) == []


def test_a_step_that_fails_is_one_line(short: Path) -> None:
    """Without a compiler nothing is tuned: exit code 1, one line that says so, nothing left behind."""
    process = start(short, *SMALL, CXX="/nowhere/c++")
    said, complaint = process.communicate()
    assert process.returncode == 1
    assert "/nowhere/c++" in said + complaint
    (line,) = [line for line in complaint.splitlines() if line.startswith("demo: ")]
    assert "`ktuned tune` found no winner" in line
    assert "Traceback" not in complaint
    assert list(short.iterdir()) == []


def test_ctrl_c_ends_the_daemon_too(short: Path) -> None:
    """Interrupted at its first step the demo takes its daemon down, and says nothing."""
    process = start(short, *SMALL)
    assert process.stdout is not None
    for line in process.stdout:
        if "runs as pid" in line:
            break
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate()
    assert process.returncode == 130, complaint
    assert "Traceback" not in complaint
    assert list(short.iterdir()) == []


def test_the_edit_is_one_of_the_source() -> None:
    """The line that the demo edits is in the example, once, and the edit keeps it."""
    source = (demo.EXAMPLES / "cpu_gemm" / "gemm.cc").read_text()
    assert source.count(demo.LINE) == 1
    assert demo.EDITED_LINE.startswith(demo.LINE)
