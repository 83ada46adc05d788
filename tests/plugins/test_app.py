"""The example application: it runs with no daemon, loads what it is given, and stops when asked."""

import signal
import subprocess
import sys
from pathlib import Path

from examples import app
from ktuned_client import Hit

APP = Path(app.__file__)


def hit(artifact: str | None) -> Hit:
    """Return an answer with this artifact."""
    return Hit("cpu_gemm:gemm", app.PROBLEM, "cpu:0", "fresh", {"THREADS": 2}, 1000.0, artifact)


def test_it_runs_without_a_daemon(tmp_path: Path) -> None:
    """It says that none is there, multiplies with torch, and ends in time with exit code 0."""
    done = subprocess.run([sys.executable, str(APP), "--seconds", "0.2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "unavailable" in line
    assert "torch.mm" in line


def test_ctrl_c_ends_it_quietly() -> None:
    """SIGINT is the ordinary end: exit code 0 and no traceback."""
    process = subprocess.Popen(
        [sys.executable, str(APP)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate()
    assert (process.returncode, complaint) == (0, "")


def test_an_artifact_that_has_gone_is_no_reason_to_fail(tmp_path: Path) -> None:
    """Between the answer and its use an artifact may be collected: torch multiplies then."""
    assert app.load(hit(None)) is app.with_torch
    assert app.load(hit(str(tmp_path / "gone"))) is app.with_torch


def test_a_line_tells_status_and_config() -> None:
    """What a person wants to see when the answer changes."""
    line = app.line(1.5, hit("/artifact"), app.with_torch, 1234.4)
    assert line == "   1.5 s  fresh       torch.mm     1234 us  THREADS=2"
