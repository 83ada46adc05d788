"""The demo with a small budget; a failed step is one line and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples import demo

SMALL = ("--trials", "3", "--seconds", "1")


def start_demo(directory: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
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
def short_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty directory with a short name, because a socket's path below it must fit."""
    return tmp_path_factory.mktemp("d")


@pytest.mark.timeout(300)
def test_the_demo_runs_to_its_end(short_directory: Path) -> None:
    """It reports the result of every step, and leaves neither files nor processes."""
    process = start_demo(short_directory, *SMALL)
    output, complaint = process.communicate()
    assert process.returncode == 0, output + complaint
    names = [line.split("  ")[0] for line in output.splitlines()]
    assert {"winner", "default", "slowest", "torch.matmul"} <= set(names)
    assert "There is no new job, and the winner is still fresh." in output
    _, _, after = output.partition("saved gemm.cc")
    statuses = [demo.status_in(line) for line in after.splitlines() if " us  " in line]
    assert "stale" in statuses
    assert statuses[-1] == "fresh"
    assert "processes before, none now." in output
    assert list(short_directory.iterdir()) == []


def test_a_failed_step_is_one_line(short_directory: Path) -> None:
    """Without a compiler the exit status is 1, and nothing is left behind."""
    process = start_demo(short_directory, *SMALL, CXX="/nowhere/c++")
    output, complaint = process.communicate()
    assert process.returncode == 1
    assert "/nowhere/c++" in output + complaint
    (line,) = [line for line in complaint.splitlines() if line.startswith("demo: ")]
    assert "`ktuned tune` found no winner" in line
    assert "Traceback" not in complaint
    assert list(short_directory.iterdir()) == []


def test_ctrl_c_stops_the_demo_s_daemon(short_directory: Path) -> None:
    process = start_demo(short_directory, *SMALL)
    assert process.stdout is not None
    # Not earlier: a terminal's Ctrl-C also reaches a command that is just being started, and this signal does not.
    for line in process.stdout:
        if "tunes" in line:
            break
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate()
    assert process.returncode == 130, complaint
    assert "Traceback" not in complaint
    assert list(short_directory.iterdir()) == []


def test_the_demo_s_edit_matches_one_line_of_the_example() -> None:
    """The edited file still contains the line's replacement once."""
    source = (demo.EXAMPLES / "cpu_gemm" / "gemm.cc").read_text()
    assert source.count(demo.LINE) == 1
    assert demo.EDITED_LINE.startswith(demo.LINE)
