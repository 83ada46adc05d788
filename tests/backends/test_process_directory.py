"""Directories of processes: each has its own, and those of processes that are gone go."""

import os
import subprocess
import sys
from pathlib import Path

CODE = """if True:
    import sys, tempfile
    from ktuned.backends import process_directory
    tempfile.tempdir = "/nowhere"
    print(process_directory("tool"))
    if sys.argv[1:]:
        import os, signal
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def made(environment: dict[str, str], *arguments: str) -> str:
    """Return the directory that another process makes; it is killed if it has arguments."""
    command = [sys.executable, "-c", CODE, *arguments]
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=not arguments).stdout.strip()


def test_the_directory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    """The next process removes it, and leaves a running one's alone; its own goes with it."""
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    running = tmp_path / "tool" / f"pch-{os.getpid()}-{start}"
    left = [tmp_path / "tool" / name for name in (f"pch-{os.getpid()}-1", "pch-999999999-1", "pch-x")]
    for path in (running, *left):
        path.mkdir(parents=True)
    (tmp_path / "tool").chmod(0o700)
    killed = Path(made({"KTUNED_CACHE": str(tmp_path)}, "killed"))
    assert killed.parent == tmp_path / "tool"
    assert set(killed.parent.iterdir()) == {running, killed}
    made({"KTUNED_CACHE": str(tmp_path)})
    assert list(killed.parent.iterdir()) == [running]


def test_a_directory_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    """A header that another user plants there would be compiled."""
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool").chmod(0o777)
    assert made({"KTUNED_CACHE": str(tmp_path)}) == "None"


def test_without_a_cache_the_directory_is_a_private_one_in_tmpdir(tmp_path: Path) -> None:
    """Whatever ``tempfile`` has been made to point to meanwhile."""
    assert Path(made({"TMPDIR": str(tmp_path)})).parent == tmp_path / f"ktuned-tool-{os.getuid()}"
