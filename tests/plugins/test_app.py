"""The example application: it runs without a daemon, loads what it gets, and stops when asked."""

import signal
import subprocess
import sys
from pathlib import Path

from examples import app
from ktuned_client import Hit

APP = Path(app.__file__)


def make_hit(artifact: str | None) -> Hit:
    return Hit("cpu_gemm:gemm", app.PROBLEM, "cpu:0", "fresh", {"THREADS": 2}, 1000.0, artifact)


def test_the_application_runs_without_a_daemon(tmp_path: Path) -> None:
    """It says that there is no daemon, multiplies with torch, and ends in time with exit code 0."""
    process = subprocess.run([sys.executable, str(APP), "--seconds", "0.2"], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    (line,) = process.stdout.splitlines()
    assert "unavailable" in line
    assert "torch.mm" in line


def test_ctrl_c_ends_it_quietly() -> None:
    """SIGINT gives exit code 0 and no traceback."""
    process = subprocess.Popen(
        [sys.executable, str(APP)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")


def test_an_artifact_that_has_gone_is_no_reason_to_fail(tmp_path: Path) -> None:
    """An artifact may be collected between the answer and its use; then torch multiplies."""
    assert app.load(make_hit(None)) is app.with_torch
    assert app.load(make_hit(str(tmp_path / "gone"))) is app.with_torch


def test_a_line_shows_status_and_config() -> None:
    line = app.line(1.5, make_hit("/artifact"), app.with_torch, 1234.4)
    assert line == "   1.5 s  fresh       torch.mm     1234 us  THREADS=2"
