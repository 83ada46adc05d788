"""Imports of what is installed: bytecode where packages have none, and no collections of garbage."""

import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.worker import imports

USE = """
import sys
from ktuned.worker import imports
imports.keep_bytecode({{"XDG_CACHE_HOME": {cache!r}}}, ["installed"])
sys.dont_write_bytecode = True
with imports.of_installed():
    import installed
import project
"""

OPEN = """
import sys
from ktuned.worker import imports
from ktuned.model import Device, DeviceModel, DeviceName, Target
from ktuned.worker.problem import ProblemData
imports.keep_bytecode({{"XDG_CACHE_HOME": {cache!r}}}, ["installed"])
sys.dont_write_bytecode = True
class Kernel:
    name, has_tensors = "it", True
ProblemData(Kernel(), {{}}, Device(DeviceName("cpu:0"), DeviceModel("CPU"), Target("cpu")))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with an installed module and one of a project."""
    for name in ("installed", "project"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    return tmp_path


def run(place: Path, code: str) -> list[str]:
    """Run code beside both modules; return the names of all bytecode files, relative to the directory."""
    env = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    return sorted(str(path.relative_to(place)).split(".")[0] for path in place.rglob("*.pyc"))


def test_bytecode_of_what_is_installed_is_kept_in_the_cache(place: Path) -> None:
    """Only that: nothing beside the sources, and nothing of a project, whose bytecode could be of an older save."""
    cache = place / "cache"
    found = run(place, USE.format(cache=str(cache)))
    assert found == [str(Path(f"cache/ktuned/bytecode{place}/installed"))]


def test_no_garbage_is_looked_for_meanwhile() -> None:
    """Afterwards it is as before, also where an import fails, and where it was off."""
    for was_on in (True, False):
        (gc.enable if was_on else gc.disable)()
        try:
            with imports.of_installed():
                assert not gc.isenabled()
            assert gc.isenabled() == was_on
            with pytest.raises(ImportError), imports.of_installed():
                importlib.import_module("no_such_module")
            assert gc.isenabled() == was_on
        finally:
            gc.enable()


def test_bytecode_beside_the_sources_is_used(place: Path) -> None:
    """Where the installation has bytecode the cache is not used: it would hide that."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(place / "installed.py")], check=True, timeout=60)
    found = run(place, USE.format(cache=str(place / "cache")))
    assert found == ["__pycache__/installed"]


def test_torch_is_kept_by_the_worker_that_opens_a_problem(place: Path) -> None:
    """A worker that was no spare has not imported torch before its first problem: its bytecode is kept, too."""
    (place / "torch.py").write_text("def manual_seed(seed):\n    raise SystemExit(0)\n")
    cache = place / "cache"
    found = run(place, OPEN.format(cache=str(cache)))
    assert found == [str(Path(f"cache/ktuned/bytecode{place}/torch"))]
