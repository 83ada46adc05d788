"""``report``: its requests, its file, its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import RunCli, StartDaemon
from tests.cli.samples import make_kernel_map, make_standing_map, make_status_map
from tests.report.sample_store import MODEL, SampleStore

PROBLEM = {"N": 8}


@pytest.fixture
def daemon_answers(tmp_path: Path) -> dict[str, Any]:
    """Return the answers of a daemon whose store has trials of two kernels."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add_kernel("p:gemm", PROBLEM, 20)
    store.add_kernel("p:dot", PROBLEM, 20)
    why = [make_standing_map(problem=PROBLEM, device=MODEL, status="stale", message="it changed")]
    return {"status": make_status_map(home=str(tmp_path)), "kernels": {"kernels": [make_kernel_map("p:gemm", why=why)]}}


def test_report_writes_one_file(
    run_cli: RunCli, start_daemon: StartDaemon, daemon_answers: dict[str, Any], tmp_path: Path
) -> None:
    """The file has all kernels, with the daemon's reason for stale ones; stdout has its size."""
    start_daemon(**daemon_answers)
    output = tmp_path / "out.html"
    result = run_cli("report", "--output", str(output))
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{output}  2 problems, 40 trials, ")
    text = output.read_text()
    assert '"kernel":"p:dot"' in text
    assert "it changed" in text
    assert list(tmp_path.glob(".out*")) == []


def test_report_of_a_kernel_leaves_the_others_out(
    run_cli: RunCli, start_daemon: StartDaemon, daemon_answers: dict[str, Any], tmp_path: Path
) -> None:
    """The daemon resolves the kernel's name."""
    start_daemon(**daemon_answers)
    result = run_cli("report", "gemm", "-o", str(tmp_path / "out.html"))
    assert result.out.startswith(f"{tmp_path}/out.html  1 problem, 20 trials, ")
    assert "p:dot" not in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere/tune_x.py",), 2, "there is no file or directory nowhere/tune_x.py"),
        (("-o", "/nowhere/out.html"), 2, "/nowhere/out.html cannot be written: No such file or directory"),
    ],
)
def test_report_with_a_wrong_path_is_one_line(
    run_cli: RunCli,
    start_daemon: StartDaemon,
    daemon_answers: dict[str, Any],
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    start_daemon(**daemon_answers)
    result = run_cli("report", *arguments)
    assert (result.code, result.out) == (code, "")
    assert words in result.err
    assert len(result.err.splitlines()) == 1


def test_without_trials_no_report_is_written(run_cli: RunCli, start_daemon: StartDaemon, tmp_path: Path) -> None:
    SampleStore(tmp_path / "ktuned.sqlite")
    start_daemon(status=make_status_map(home=str(tmp_path)), kernels={"kernels": []})
    result = run_cli("report", "-o", str(tmp_path / "out.html"))
    assert (result.code, result.out) == (1, "")
    assert "ktuned tune" in result.err
    assert not (tmp_path / "out.html").exists()
