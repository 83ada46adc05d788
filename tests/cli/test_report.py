"""``report``: what is asked of the daemon, what is written, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, Serve
from tests.cli.samples import kernel_map, standing_map, status_map
from tests.report.sample_store import MODEL, SampleStore

PROBLEM = {"N": 8}


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, Any]:
    """The answers of a daemon whose store has trials of two kernels."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add("p:gemm", PROBLEM, 20)
    store.add("p:dot", PROBLEM, 20)
    why = [standing_map(problem=PROBLEM, device=MODEL, status="stale", message="it changed")]
    return {"status": status_map(home=str(tmp_path)), "kernels": {"kernels": [kernel_map("p:gemm", why=why)]}}


def test_writes_one_file(run: Run, serve: Serve, answers: dict[str, Any], tmp_path: Path) -> None:
    """The whole store is in it, with the daemon's word on what is stale; the line says how much that is."""
    serve(**answers)
    place = tmp_path / "out.html"
    ran = run("report", "--output", str(place))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{place}  2 problems, 40 trials, ")
    text = place.read_text()
    assert '"kernel":"p:dot"' in text
    assert "it changed" in text
    assert list(tmp_path.glob(".out*")) == []


def test_a_report_of_named_kernels_leaves_the_others_out(
    run: Run, serve: Serve, answers: dict[str, Any], tmp_path: Path
) -> None:
    """A kernel's name is resolved by the daemon, and the others are left out."""
    serve(**answers)
    ran = run("report", "gemm", "-o", str(tmp_path / "out.html"))
    assert ran.out.startswith(f"{tmp_path}/out.html  1 problem, 20 trials, ")
    assert "p:dot" not in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere/tune_x.py",), 2, "there is no file or directory nowhere/tune_x.py"),
        (("-o", "/nowhere/out.html"), 2, "/nowhere/out.html cannot be written: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(
    run: Run, serve: Serve, answers: dict[str, Any], arguments: tuple[str, ...], code: int, words: str
) -> None:
    """A path that is not there, and a place that cannot be written."""
    serve(**answers)
    ran = run("report", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err
    assert len(ran.err.splitlines()) == 1


def test_without_trials_there_is_no_file(run: Run, serve: Serve, tmp_path: Path) -> None:
    """An empty store is a line that says what to do, and nothing is written."""
    SampleStore(tmp_path / "ktuned.sqlite")
    serve(status=status_map(home=str(tmp_path)), kernels={"kernels": []})
    ran = run("report", "-o", str(tmp_path / "out.html"))
    assert (ran.code, ran.out) == (1, "")
    assert "ktuned tune" in ran.err
    assert not (tmp_path / "out.html").exists()
