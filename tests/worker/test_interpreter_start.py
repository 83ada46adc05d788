"""What an interpreter runs at its start may change while it starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_parts import FAKE_BACKEND
from tests.e2e.harness import Daemon, make_kernel_text

LOOK = """
import builtins
from ktuned.dependencies import ACCESSES
from ktuned.worker.restart import find_start_time

ACCESSES.start_recording(find_start_time([]))
print(builtins.ROWS, ACCESSES.has_stale_start)
"""

FIRST, SECOND = "import builtins\nbuiltins.ROWS = 1\n", "import builtins\nbuiltins.ROWS = 2\n"

CHANGES = {
    "edited": f"import pathlib\npathlib.Path(__file__).write_text({SECOND!r})\n",
    "removed": "import pathlib\npathlib.Path(__file__).unlink()\n",
}
"""What the file does to itself after it was read, as an edit in the next moment would."""


def look(directory: Path) -> list[str]:
    """Return what a new process has run at its start, and whether another one would start otherwise."""
    command = [sys.executable, "-c", LOOK]
    ran = subprocess.run(command, env={"PYTHONPATH": str(directory)}, capture_output=True, text=True, check=True)
    return ran.stdout.split()


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_the_interpreter_starts_is_noticed(tmp_path: Path, change: str) -> None:
    """The interpreter has run the earlier content."""
    (tmp_path / "sitecustomize.py").write_text(FIRST + CHANGES[change])
    assert look(tmp_path) == ["1", "True"]


def test_an_older_file_leaves_the_process_as_it_is(tmp_path: Path) -> None:
    """No process is started again without need: the first of the two processes starts after the edit."""
    (tmp_path / "sitecustomize.py").write_text(SECOND)
    look(tmp_path)
    assert look(tmp_path) == ["2", "False"]


def test_a_worker_that_ran_the_earlier_content_starts_again(tmp_path: Path) -> None:
    """The file changes while the worker starts that proposes configs; its next start is the last."""
    library = tmp_path / "library"
    library.mkdir()
    changing = f"import sys\nif 'explore' in sys.orig_argv:\n    {CHANGES['edited'].replace(chr(10), chr(10) + '    ')}"
    (library / "sitecustomize.py").write_text(FIRST + changing)
    text = "import builtins\n" + make_kernel_text(
        "space(us=[50.0])", body="Build(us=c.us, tag=f'rows {builtins.ROWS}')"
    )
    with Daemon(tmp_path, env={"PYTHONPATH": f"{library}:{FAKE_BACKEND}"}, forked=False) as daemon:
        daemon.tune(path=daemon.write_kernel(text))
        daemon.wait_until(lambda: daemon.look_up().status == "fresh", "the winner")
        (trial, *_) = daemon.client.call("results", kernel="it", order="newest")["trials"]
        assert daemon.fetch_trial(trial["id"])["detail"]["compiled"]["build"]["tag"] == "rows 2"
