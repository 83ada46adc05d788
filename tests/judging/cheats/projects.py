"""Projects of candidates, made of this directory's files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copy, copytree
from typing import Any

from ktuned_client import Client

HERE = Path(__file__).parent


def write_cpp_project(directory: Path, candidates: Path) -> tuple[Path, list[str]]:
    """Write a project of C++ candidates; return its kernel file and the candidates' names."""
    copytree(candidates, directory / "candidates")
    names = sorted(path.stem for path in candidates.glob("*.cc"))
    copy(HERE / "candidates.cc", directory)
    copy(HERE / "common.h", directory)
    return Path(copy(HERE / "tune_cpp.py", directory)), names


def write_python_project(directory: Path, candidates: Path) -> tuple[Path, list[str]]:
    """Write a project of Python candidates; return its kernel file and the candidates' names."""
    copytree(candidates, directory / "candidates", ignore=lambda *_: {"__pycache__"})
    copy(HERE / "work.py", directory)
    return Path(copy(HERE / "tune_python.py", directory)), sorted(path.stem for path in candidates.glob("*.py"))


def judge_candidates(client: Client, path: Path, names: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    """Return the answer for each candidate, by name."""
    answer = client.judge(path=path, configs=[{"candidate": name} for name in names], quick=True)
    return {candidate["config"]["candidate"]: candidate for candidate in answer["candidates"]}


def name_end(candidate: Mapping[str, Any]) -> str:
    """Return a candidate's verdict. Whether wrong outputs show a trick depends on what is drawn at random."""
    return "wrong" if candidate["verdict"] == "cheating" else str(candidate["verdict"])
