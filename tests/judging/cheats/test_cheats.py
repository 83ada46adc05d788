"""No cheating candidate is right, and every honest one is: through a daemon, its compilers and one lane.

Each candidate is a file, and its first line says what it does. To add one is to add a file. The suite judges every
fourth, and ``make chaos`` all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from tests.e2e.harness import Daemon
from tests.judging.cheats.projects import HERE, judge_candidates, write_cpp_project, write_python_project

NOT_RIGHT = {"cheating", "wrong", "crashed", "hung", "refused"}

ENDS_AS = {
    "forged_answer": {"cheating"},
    "forged_noise": {"cheating"},
    "answers_patched": {"cheating"},
    "endless": {"hung"},
    "exit_when_done": {"crashed"},
    "exit_of_python": {"crashed"},
    "killed_by_itself": {"crashed"},
    "raised": {"crashed"},
}
"""How those candidates end whose end is certain."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("judge"), spares=True, tensors="torch") as daemon:
        yield daemon


@pytest.fixture
def step(request: pytest.FixtureRequest) -> int:
    """How many candidates follow each other of which one is judged."""
    return 1 if request.config.getoption("chaos", "slice") == "full" else 4


@pytest.fixture
def project(daemon: Daemon, request: pytest.FixtureRequest) -> Path:
    """An empty project of its own for each test."""
    directory = daemon.directory / re.sub(r"\W", "_", request.node.name)
    directory.mkdir()
    return directory


def list_rights(judged: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the reasons of the candidates that are right, by name."""
    return {name: candidate["reason"] for name, candidate in judged.items() if candidate["verdict"] == "right"}


def check_cheats(judged: Mapping[str, Mapping[str, Any]]) -> None:
    assert list_rights(judged) == {}
    assert {candidate["verdict"] for candidate in judged.values()} <= NOT_RIGHT
    # Each has come to the lane: a project that does not compile would hide everything.
    assert {candidate["reason"] for candidate in judged.values() if "no function" in candidate["reason"]} == set()
    wrong_ends = {
        name: (judged[name]["verdict"], judged[name]["reason"])
        for name in ENDS_AS.keys() & judged.keys()
        if judged[name]["verdict"] not in ENDS_AS[name]
    }
    assert wrong_ends == {}


def check_honest(judged: Mapping[str, Mapping[str, Any]]) -> None:
    wrongs = {
        name: (candidate["verdict"], candidate["reason"])
        for name, candidate in judged.items()
        if candidate["verdict"] != "right"
    }
    assert wrongs == {}
    assert all(candidate["problems"][0]["latency_us"] > 0 for candidate in judged.values())


def test_no_cheat_in_cpp_is_right(daemon: Daemon, project: Path, step: int) -> None:
    path, names = write_cpp_project(project, HERE / "cpp")
    check_cheats(judge_candidates(daemon.client, path, names[::step]))


def test_no_cheat_in_python_is_right(daemon: Daemon, project: Path, step: int) -> None:
    path, names = write_python_project(project, HERE / "python")
    check_cheats(judge_candidates(daemon.client, path, names[::step]))


def test_honest_candidates_in_cpp_are_right(daemon: Daemon, project: Path, step: int) -> None:
    path, names = write_cpp_project(project, HERE / "honest_cpp")
    check_honest(judge_candidates(daemon.client, path, names[::step]))


def test_honest_candidates_in_python_are_right(daemon: Daemon, project: Path, step: int) -> None:
    path, names = write_python_project(project, HERE / "honest_python")
    check_honest(judge_candidates(daemon.client, path, names[::step]))


def test_honest_candidates_with_unusual_tensors_are_right(daemon: Daemon, project: Path, step: int) -> None:
    path = Path(copy(HERE / "tune_unusual.py", project))
    names = re.findall(r"^def (\w+)\(.*\):\n    [^\"]", path.read_text(), re.MULTILINE)
    assert len(names) >= 20
    check_honest({name: daemon.client.judge(name, path=path, quick=True)["candidates"][0] for name in names[::step]})


def test_the_judge_s_own_reads_belong_to_no_kernel(daemon: Daemon) -> None:
    """A temporary directory changes all the time, and a kernel that depends on it could never be judged."""
    assert "/var/tmp" not in daemon.log.read_text()
