"""``simulate`` on a recorded file, and on trials that a daemon lists."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Run, Serve
from tests.cli.samples import trial_map
from tests.search.test_recorded import SPACE


def test_json_has_every_run(run: Run) -> None:
    """The optimum, and for each strategy and seed the best after each trial."""
    ran = run(
        "simulate",
        str(SPACE),
        "--strategy",
        "random",
        "--strategy",
        "local",
        "--trials",
        "12",
        "--seeds",
        "2",
        "--json",
    )
    (found,) = ran.values
    assert ran.code == 0
    assert found["optimum"] > 0
    assert [(entry["strategy"], entry["seed"], len(entry["best"])) for entry in found["runs"]] == [
        ("random", 0, 12),
        ("random", 1, 12),
        ("local", 0, 12),
        ("local", 1, 12),
    ]


def test_table_and_plot(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """People get a table of the counts, and a plot with a mark for each strategy that fits their terminal."""
    monkeypatch.setenv("COLUMNS", "60")
    ran = run("simulate", str(SPACE), "--strategy", "random", "--strategy", "auto", "--trials", "30", "--seeds", "2")
    assert ran.code == 0
    assert "auto (guided)" in ran.out
    assert "● random  ○ auto" in ran.out
    assert "30 trials" in ran.out
    assert {len(line) for line in ran.out.splitlines() if "└" in line} == {60}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((str(SPACE), "--strategy", "best"), "there is no strategy 'best'"),
        (("nowhere.json",), "cannot read nowhere.json"),
    ],
)
def test_bad_input_is_a_usage_error(run: Run, arguments: tuple[str, ...], words: str) -> None:
    """An unknown strategy or file is one line, and exit status 2."""
    ran = run("simulate", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert len(ran.err.splitlines()) == 1


def trial(number: int, **changes: Any) -> dict[str, Any]:
    """Return a trial as the daemon lists it."""
    return trial_map(number, **{"config": {"A": number}, "latency_us": 5.0 + number, **changes})


def test_kernel_of_the_store(run: Run, serve: Serve) -> None:
    """The trials of a kernel are a recorded space too."""
    serve(results={"trials": [trial(1), trial(2, outcome="mismatch", latency_us=None), trial(3)]})
    ran = run("simulate", "project:saxpy", "--strategy", "random", "--seeds", "1", "--json")
    (found,) = ran.values
    assert found["optimum"] == 6.0
    assert found["runs"][0]["best"][-1] == 6.0


def test_several_problems_have_to_be_named(run: Run, serve: Serve) -> None:
    """Trials of two problems are not one space."""
    serve(results={"trials": [trial(1), trial(2, problem={"N": 2})]})
    ran = run("simulate", "project:saxpy")
    assert ran.code == 2
    assert "2 problems and devices" in ran.err
