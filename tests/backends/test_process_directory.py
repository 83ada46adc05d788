"""Directories of processes: each process has its own, and directories of ended processes are removed."""

import os
import subprocess
import sys
from pathlib import Path

MAKE_DIRECTORY_PROGRAM = """if True:
    import sys, tempfile
    from ktuned.backends import process_directory
    tempfile.tempdir = "/nowhere"
    print(process_directory("tool"))
    if sys.argv[1:]:
        import os, signal
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def make_directory_in_process(environment: dict[str, str], *arguments: str) -> str:
    """Return the directory that another process makes; the process is killed if it has arguments."""
    command = [sys.executable, "-c", MAKE_DIRECTORY_PROGRAM, *arguments]
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=not arguments).stdout.strip()


def test_the_directory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    """The next process removes it, but not a running process's directory; an ending process removes its own."""
    start_time = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    running = tmp_path / "tool" / f"pch-{os.getpid()}-{start_time}"
    abandoned = [tmp_path / "tool" / name for name in (f"pch-{os.getpid()}-1", "pch-999999999-1", "pch-x")]
    for path in (running, *abandoned):
        path.mkdir(parents=True)
    (tmp_path / "tool").chmod(0o700)
    killed_directory = Path(make_directory_in_process({"KTUNED_CACHE": str(tmp_path)}, "killed"))
    assert killed_directory.parent == tmp_path / "tool"
    assert set(killed_directory.parent.iterdir()) == {running, killed_directory}
    make_directory_in_process({"KTUNED_CACHE": str(tmp_path)})
    assert list(killed_directory.parent.iterdir()) == [running]


def test_a_directory_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    """Another user could plant a header there that would be compiled."""
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool").chmod(0o777)
    assert make_directory_in_process({"KTUNED_CACHE": str(tmp_path)}) == "None"


def test_without_a_cache_the_directory_is_a_private_one_in_tmpdir(tmp_path: Path) -> None:
    """``tempfile`` may meanwhile point elsewhere."""
    assert Path(make_directory_in_process({"TMPDIR": str(tmp_path)})).parent == tmp_path / f"ktuned-tool-{os.getuid()}"
