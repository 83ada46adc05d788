"""Imports in workers: bytecode where packages have none, and no collections of garbage."""

import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.worker import imports

USE = """
from pathlib import Path
from ktuned.dependencies import OBSERVER
from ktuned.worker import imports
imports.keep_bytecode({{"XDG_CACHE_HOME": {cache!r}}}, ["installed"])
project = Path({place!r}, "project")
OBSERVER.observe_kernel_file(project / "tune.py", project)
import kernels, installed
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with an installed module, one of a project, and one that is beside the project."""
    for module in ("site-packages/installed.py", "project/kernels.py", "beside.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).write_text("import beside\n" if "kernels" in module else "x = 1\n")
    record = tmp_path / "site-packages/installed-1.0.dist-info/RECORD"
    record.parent.mkdir()
    record.write_text("installed.py,,\n")
    return tmp_path


def run(place: Path, code: str) -> list[str]:
    """Run code that finds all modules; return the bytecode files of these, without their suffixes."""
    env = {**os.environ, "PYTHONPATH": f"{place}/site-packages:{place}", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    found = (str(path.relative_to(place)) for path in place.rglob("*.pyc"))
    return sorted(name.split(".")[0] for name in found if not name.startswith("cache") or str(place) in f"/{name}")


def test_bytecode_of_what_is_installed_is_kept_in_the_cache(place: Path) -> None:
    """Wherever it is imported; and nothing of the project's code, whose bytecode could be of an older save."""
    found = run(place, USE.format(cache=str(place / "cache"), place=str(place)))
    assert found == [f"cache/ktuned/bytecode{place}/site-packages/installed"]


def test_the_standard_library_is_kept_too(place: Path) -> None:
    """Python looks for its bytecode in the cache as well: without it each worker would compile it."""
    code = USE.format(cache=str(place / "cache"), place=str(place)) + "import email.message, zipfile"
    run(place, code)
    stdlib = place / f"cache/ktuned/bytecode{Path(os.__file__).parent}"
    assert {"message", "zipfile"} <= {path.name.split(".")[0] for path in stdlib.rglob("*.pyc")}


def test_garbage_collection_pauses_during_imports() -> None:
    """Afterwards it is as before, also where an import fails, and where it was off."""
    for was_on in (True, False):
        (gc.enable if was_on else gc.disable)()
        try:
            with imports.pause_garbage_collection():
                assert not gc.isenabled()
            assert gc.isenabled() == was_on
            with pytest.raises(ImportError), imports.pause_garbage_collection():
                importlib.import_module("no_such_module")
            assert gc.isenabled() == was_on
        finally:
            gc.enable()


def test_bytecode_beside_the_sources_is_used(place: Path) -> None:
    """Where the installation has bytecode the cache is not used: it would hide that."""
    module = place / "site-packages/installed.py"
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(module)], check=True, timeout=60)
    found = run(place, USE.format(cache=str(place / "cache"), place=str(place)))
    assert found == ["site-packages/__pycache__/installed"]
