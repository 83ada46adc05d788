"""The wheels of the distributions, each built once for the tests of this directory."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.packaging.distributions import PROJECTS


@pytest.fixture(scope="package")
def wheel_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that builds a distribution's wheel, from its sdist as a release would."""

    @cache
    def build(name: str) -> Path:
        into = tmp_path_factory.mktemp(name)
        project, _ = PROJECTS[name]
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into), str(project)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (built,) = into.glob("*.whl")
        return built

    return build


@pytest.fixture(scope="package")
def wheels(wheel_of: Callable[[str], Path]) -> dict[str, Path]:
    """Build the wheel of each distribution."""
    return {name: wheel_of(name) for name in PROJECTS}
