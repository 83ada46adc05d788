"""Imports in workers: bytecode where packages have none, and no garbage collection meanwhile."""

import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.worker import imports

IMPORTING_PROGRAM = """
from pathlib import Path
from ktuned.dependencies import OBSERVER
from ktuned.worker import imports
imports.keep_bytecode({{"XDG_CACHE_HOME": {cache!r}}}, ["installed"])
project = Path({place!r}, "project")
OBSERVER.observe_kernel_file(project / "tune.py", project)
import kernels, installed
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with an installed module, a project's module, and a module beside the project."""
    for module in ("site-packages/installed.py", "project/kernels.py", "beside.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).write_text("import beside\n" if "kernels" in module else "x = 1\n")
    record = tmp_path / "site-packages/installed-1.0.dist-info/RECORD"
    record.parent.mkdir()
    record.write_text("installed.py,,\n")
    return tmp_path


def run_and_list_bytecode(directory: Path, code: str) -> list[str]:
    """Run code that can import all modules; return the modules' bytecode files without suffixes."""
    env = {**os.environ, "PYTHONPATH": f"{directory}/site-packages:{directory}", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    files = (str(path.relative_to(directory)) for path in directory.rglob("*.pyc"))
    return sorted(name.split(".")[0] for name in files if not name.startswith("cache") or str(directory) in f"/{name}")


def test_bytecode_of_what_is_installed_is_kept_in_the_cache(directory: Path) -> None:
    """The project's own code gets no bytecode, which could be of an older save."""
    bytecode = run_and_list_bytecode(
        directory, IMPORTING_PROGRAM.format(cache=str(directory / "cache"), place=str(directory))
    )
    assert bytecode == [f"cache/ktuned/bytecode{directory}/site-packages/installed"]


def test_a_full_disk_leaves_no_part_of_a_file(directory: Path) -> None:
    """A file's size limit ends a write as a full disk does: after a part, which Python takes for the whole."""
    program = IMPORTING_PROGRAM.format(cache=str(directory / "cache"), place=str(directory))
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60, 60)){program}"
    assert run_and_list_bytecode(directory, limited) == []
    assert run_and_list_bytecode(directory, program) != []


def test_the_standard_library_is_kept_too(directory: Path) -> None:
    """Python looks for its bytecode in the cache as well; otherwise each worker would compile it."""
    code = (
        IMPORTING_PROGRAM.format(cache=str(directory / "cache"), place=str(directory)) + "import email.message, zipfile"
    )
    run_and_list_bytecode(directory, code)
    stdlib = directory / f"cache/ktuned/bytecode{Path(os.__file__).parent}"
    assert {"message", "zipfile"} <= {path.name.split(".")[0] for path in stdlib.rglob("*.pyc")}


def test_garbage_collection_pauses_during_imports() -> None:
    """Afterwards it is as before, also if an import fails or if collection was off."""
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


def test_bytecode_beside_the_sources_is_used(directory: Path) -> None:
    """The cache is not used then, because it would hide the installed bytecode."""
    module = directory / "site-packages/installed.py"
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(module)], check=True, timeout=60)
    bytecode = run_and_list_bytecode(
        directory, IMPORTING_PROGRAM.format(cache=str(directory / "cache"), place=str(directory))
    )
    assert bytecode == ["site-packages/__pycache__/installed"]
