"""The live screen in tmux, a real terminal: pages, sizes, and the terminal afterwards."""

from __future__ import annotations

import re
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import UNHURRIED, Daemon, make_kernel_text

SPACE = """space([
    dict(us=300.0, does='work', tag='good', gate=''),
    dict(us=1.0, does='compile_error', tag='bad', gate=''),
])"""
PROBLEMS = "[dict(rows=16384, columns=16384, accumulate='float32'), dict(rows=64, columns=64, accumulate='float32')]"
DEFAULT = "dict(us=300.0, does='work', tag='good', gate='')"
SIZES = [(80, 24), (200, 50)]
POLL_S = 0.05


class Tmux:
    """A tmux server with one window that runs a command."""

    def __init__(self, directory: Path, daemon: Daemon, command: str) -> None:
        self._words = ["tmux", "-S", str(directory / "tmux.sock"), "-f", "/dev/null"]
        # A parent's line editor may export a size, which is another terminal's.
        self._env = {**daemon.env, "TERM": "xterm-256color", "SHELL": "/bin/sh", "COLUMNS": "80", "LINES": "24"}
        line = f"{command}; printf 'ended with %s' $?; cat"
        self._run_tmux("new-session", "-d", "-x", str(SIZES[0][0]), "-y", str(SIZES[0][1]), line)

    def _run_tmux(self, *words: str) -> str:
        done = subprocess.run([*self._words, *words], env=self._env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def press_keys(self, *keys: str) -> None:
        """Press keys, given by tmux's names."""
        self._run_tmux("send-keys", *keys)

    def resize_window(self, columns: int, lines: int) -> None:
        self._run_tmux("resize-window", "-x", str(columns), "-y", str(lines))

    @property
    def lines(self) -> str:
        """Return the window's lines."""
        return self._run_tmux("capture-pane", "-p")

    def wait_for_texts(self, *patterns: str) -> str:
        """Wait until the window shows all texts, and return its lines."""
        deadline = monotonic() + PATIENCE_S
        while True:
            picture = self.lines
            if all(re.search(pattern, picture) for pattern in patterns):
                return picture
            assert monotonic() < deadline, f"waited for {patterns}; the picture:\n{picture}"
            select.select([], [], [], POLL_S)

    def end_server(self) -> None:
        self._run_tmux("kill-server")


@pytest.fixture
def open_tmux(tmp_path: Path, daemon: Daemon) -> Iterator[Callable[..., Tmux]]:
    """Return a function that starts ``ktuned watch`` in tmux."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is missing: apt-get install tmux")
    opened: list[Tmux] = []

    def start(*words: str, errors: Path | None = None) -> Tmux:
        command = shlex.join([sys.executable, "-m", "ktuned", "watch", *words])
        opened.append(Tmux(tmp_path, daemon, command if errors is None else f"{command} 2> {errors}"))
        return opened[-1]

    yield start
    for tmux in opened:
        tmux.end_server()


MESSAGE_OF_CONFIG = r"(?<!compile_error: )fake\.c:1"
"""A config's message, which is shown while the configs have the keys; a kernel's begins with the outcome."""


def test_the_screen_fits_every_size(daemon: Daemon, open_tmux: Callable[..., Tmux]) -> None:
    """At 80 and 200 columns and while the window is resized, the pages show whole words."""
    path = daemon.write_kernel(make_kernel_text(SPACE, problems=PROBLEMS, deadlines=UNHURRIED, default=DEFAULT))
    broken = daemon.write_kernel("def broken(:\n    pass\n", "tune_broken.py")
    daemon.tune(path=path.parent)
    tmux = open_tmux(str(path.parent))
    for columns, lines in SIZES:
        tmux.resize_window(columns, lines)
        listed = tmux.wait_for_texts(
            r"project/tune_broken.py:1: SyntaxError:", "tuned", "1.00×", r"2/2 1✗", "winner +us=300.0"
        )
        assert {"rows=16384", "columns=16384", "accumulate=float32"} <= set(listed.split())
        opened = tmux.wait_for_texts("× best", "compile error")
        # What is the same in all configs has no column.
        assert not re.search(r"× best +.*gate", opened)
        tmux.press_keys("Enter")
        tmux.press_keys("Down")
        tmux.wait_for_texts(f"{MESSAGE_OF_CONFIG}: error: no")
        tmux.press_keys("Enter")
        tmux.wait_for_texts(r"trial \d+", "outcome +compile_error", "message:")
        # One by one: Escape and a key that follows at once would be that key with Alt.
        tmux.press_keys("Escape")
        tmux.wait_for_texts("tune now")
        tmux.press_keys("Escape")
        # Enter reaches the screen before an Escape that a table still has.
        tmux.wait_for_texts(rf"(?s)\A(?!.*{MESSAGE_OF_CONFIG})")
    tmux.press_keys("?")
    tmux.wait_for_texts("tune the kernel now, before all else")
    tmux.press_keys("Escape")
    tmux.wait_for_texts("tune now")
    tmux.press_keys("e")
    tmux.wait_for_texts(re.escape(str(broken)), r"def broken\(:", r"(?m)^ +\^")
    tmux.press_keys("Escape")
    tmux.wait_for_texts("tune now")
    tmux.press_keys("/")
    tmux.wait_for_texts("words to filter by")
    tmux.press_keys("rows=64")
    tmux.wait_for_texts("filter: rows=64")
    tmux.press_keys("Enter", "q")
    assert "continues to watch" in tmux.wait_for_texts("ended with 0").replace("\n", " ")


def test_saves_and_keys_work_on_the_screen(daemon: Daemon, open_tmux: Callable[..., Tmux]) -> None:
    """Keys pause, resume, tune and cancel; the page shows what each save gained."""
    path = daemon.write_kernel(make_text(900.0))
    daemon.tune(path=path)
    tmux = open_tmux(str(path))
    tmux.resize_window(200, 40)
    tmux.wait_for_texts(r"it n=64 +(fresh|tuned)")
    path.write_text(make_text(300.0, gate="door", body="Build(**{**c, 'us': c.us + 1.0})"))
    tmux.wait_for_texts(r"it n=64 +(tuning|queued|stale)")
    daemon.make_gate("door").wait_until_reached()
    tmux.press_keys("p")
    tmux.wait_for_texts(r"paused job \d+", r"it n=64 +paused")
    assert [job["state"] for job in daemon.client.call("jobs", state="paused")["jobs"]] == ["paused"]
    tmux.press_keys("P")
    tmux.wait_for_texts("all tuning is paused: P resumes it")
    tmux.press_keys("P")
    tmux.wait_for_texts("resumed all tuning")
    daemon.make_gate("door").open()
    tmux.press_keys("p")
    tmux.wait_for_texts(
        r"it n=64 +tuned", r"over saves +.*[▁-█]{2}.* in 2 versions", "compile_error: fake.c:1: error: no"
    )
    tmux.press_keys("t")
    tmux.wait_for_texts(r"job \d+ tunes project:it now")
    tmux.press_keys("c")
    # What is known already is soon done again: the key may come before, at or after its end.
    tmux.wait_for_texts(r"cancelled job|has no job to cancel|is done already")
    tmux.press_keys("C-c")
    tmux.wait_for_texts("ended with 0", "continues to watch")


def test_the_screen_is_drawn_if_stderr_is_a_file(
    daemon: Daemon, open_tmux: Callable[..., Tmux], tmp_path: Path
) -> None:
    path = daemon.write_kernel(make_kernel_text(SPACE))
    tmux = open_tmux(str(path.parent), errors=tmp_path / "errors")
    tmux.wait_for_texts(r"it n=64 +tuned")
    tmux.press_keys("q")
    tmux.wait_for_texts("ended with 0")
    assert "continues to watch" in (tmp_path / "errors").read_text()


def test_the_terminal_is_restored_if_the_daemon_ends(daemon: Daemon, open_tmux: Callable[..., Tmux]) -> None:
    """The command prints one line and exits with status 3."""
    daemon.client.call("pause")
    path = daemon.write_kernel(make_text(300.0))
    tmux = open_tmux(str(path))
    tmux.wait_for_texts("it n=64")
    daemon.stop()
    assert "Traceback" not in tmux.wait_for_texts("ended with 3")


def make_text(us: float, gate: str = "", **options: str) -> str:
    """Return a kernel file with a config that works and one that does not compile."""
    space = f"""space([
        dict(us={us}, does='work', tag='a', gate={gate!r}), dict(us=1.0, does='compile_error', tag='b', gate='')
    ])"""
    return make_kernel_text(space, deadlines=UNHURRIED, **options)
