"""The wheels of the distributions, each built once."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.packaging.distributions import PROJECTS

BUILD = """
import os, sys, tarfile
from hatchling import build
project, into = sys.argv[1:]
os.chdir(project)
source = build.build_sdist(into)
os.chdir(into)
with tarfile.open(source) as archive:
    archive.extractall(filter="data")
os.chdir(source.removesuffix(".tar.gz"))
build.build_wheel(into)
"""
"""What ``python -m build`` has the build backend do, in one process instead of three; a release check does that."""


@pytest.fixture(scope="package")
def wheel_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that builds a distribution's wheel from its sdist, as a release does."""

    @cache
    def build(name: str) -> Path:
        into = tmp_path_factory.mktemp(name)
        project, _ = PROJECTS[name]
        command = [sys.executable, "-c", BUILD, str(project), str(into)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (built,) = into.glob("*.whl")
        return built

    return build


@pytest.fixture(scope="package")
def wheels(wheel_of: Callable[[str], Path]) -> dict[str, Path]:
    """Build the wheel of each distribution."""
    return {name: wheel_of(name) for name in PROJECTS}
