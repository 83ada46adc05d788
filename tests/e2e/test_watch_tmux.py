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
    """A tmux server of its own, with one window that runs a command."""

    def __init__(self, directory: Path, daemon: Daemon, command: list[str]) -> None:
        self._words = ["tmux", "-S", str(directory / "tmux.sock"), "-f", "/dev/null"]
        # A parent's line editor may export a size, which is another terminal's.
        self._env = {**daemon.env, "TERM": "xterm-256color", "SHELL": "/bin/sh", "COLUMNS": "80", "LINES": "24"}
        line = f"{shlex.join(command)}; printf 'ended with %s' $?; cat"
        self._run("new-session", "-d", "-x", str(SIZES[0][0]), "-y", str(SIZES[0][1]), line)

    def _run(self, *words: str) -> str:
        done = subprocess.run([*self._words, *words], env=self._env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def press(self, *keys: str) -> None:
        """Type keys, by tmux's names."""
        self._run("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        """Give the window another size."""
        self._run("resize-window", "-x", str(columns), "-y", str(lines))

    @property
    def picture(self) -> str:
        """The window's lines."""
        return self._run("capture-pane", "-p")

    def sees(self, *patterns: str) -> str:
        """Wait until the window shows each of these, and return it."""
        deadline = monotonic() + PATIENCE_S
        while True:
            picture = self.picture
            if all(re.search(pattern, picture) for pattern in patterns):
                return picture
            assert monotonic() < deadline, f"waited for {patterns}; the picture:\n{picture}"
            select.select([], [], [], POLL_S)

    def close(self) -> None:
        """End the server with its window."""
        self._run("kill-server")


@pytest.fixture
def open_tmux(tmp_path: Path, daemon: Daemon) -> Iterator[Callable[..., Tmux]]:
    """Start tmux with ``ktuned watch`` in it."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is missing: apt-get install tmux")
    opened: list[Tmux] = []

    def start(*words: str) -> Tmux:
        opened.append(Tmux(tmp_path, daemon, [sys.executable, "-m", "ktuned", "watch", *words]))
        return opened[-1]

    yield start
    for tmux in opened:
        tmux.close()


MESSAGE_OF_CONFIG = r"(?<!compile_error: )fake\.c:1"
"""A config's message, which is shown while the configs have the keys; a kernel's begins with the outcome."""


def test_screen_at_every_size(daemon: Daemon, open_tmux: Callable[..., Tmux]) -> None:
    """At 80 and 200 columns, also as the window is resized: problems, whole words, each page, and the way back."""
    path = daemon.write_kernel(make_kernel_text(SPACE, problems=PROBLEMS, deadlines=UNHURRIED, default=DEFAULT))
    broken = daemon.write_kernel("def broken(:\n    pass\n", "tune_broken.py")
    daemon.tune(path=str(path.parent))
    tmux = open_tmux(str(path.parent))
    for columns, lines in SIZES:
        tmux.resize(columns, lines)
        listed = tmux.sees(r"project/tune_broken.py:1: SyntaxError:", "tuned", "1.00×", r"2/2 1✗", "winner +us=300.0")
        assert {"rows=16384", "columns=16384", "accumulate=float32"} <= set(listed.split())
        opened = tmux.sees("× best", "compile error")
        # What is the same in all configs has no column.
        assert not re.search(r"× best +.*gate", opened)
        tmux.press("Enter")
        tmux.press("Down")
        tmux.sees(f"{MESSAGE_OF_CONFIG}: error: no")
        tmux.press("Enter")
        tmux.sees(r"trial \d+", "outcome +compile_error", "message:")
        # One by one: Escape and a key that follows at once would be that key with Alt.
        tmux.press("Escape")
        tmux.sees("tune now")
        tmux.press("Escape")
        # Enter reaches the screen before an Escape that a table still has.
        tmux.sees(rf"(?s)\A(?!.*{MESSAGE_OF_CONFIG})")
    tmux.press("?")
    tmux.sees("tune the kernel now, before all else")
    tmux.press("Escape")
    tmux.sees("tune now")
    tmux.press("e")
    tmux.sees(re.escape(str(broken)), r"def broken\(:", r"(?m)^ +\^")
    tmux.press("Escape")
    tmux.sees("tune now")
    tmux.press("/")
    tmux.sees("words to filter by")
    tmux.press("rows=64")
    tmux.sees("filter: rows=64")
    tmux.press("Enter", "q")
    assert "continues to watch" in tmux.sees("ended with 0").replace("\n", " ")


def test_author_saves_sees_and_steers(daemon: Daemon, open_tmux: Callable[..., Tmux]) -> None:
    """A save is seen and tuned; keys pause, resume, tune and cancel; over saves the page shows what they gained."""
    path = daemon.write_kernel(_saved(900.0))
    daemon.tune(path=str(path))
    tmux = open_tmux(str(path))
    tmux.resize(200, 40)
    tmux.sees(r"it n=64 +(fresh|tuned)")
    path.write_text(_saved(300.0, gate="door", body="Build(**{**c, 'us': c.us + 1.0})"))
    tmux.sees(r"it n=64 +(tuning|queued|stale)")
    daemon.make_gate("door").wait_until_reached()
    tmux.press("p")
    tmux.sees(r"paused job \d+", r"it n=64 +paused")
    assert [job["state"] for job in daemon.client.call("jobs", state="paused")["jobs"]] == ["paused"]
    tmux.press("P")
    tmux.sees("all tuning is paused: P resumes it")
    tmux.press("P")
    tmux.sees("resumed all tuning")
    daemon.make_gate("door").open()
    tmux.press("p")
    tmux.sees(r"it n=64 +tuned", r"over saves +.*[▁-█]{2}.* in 2 versions", "compile_error: fake.c:1: error: no")
    tmux.press("t")
    tmux.sees(r"job \d+ tunes project:it now")
    tmux.press("c")
    # What is known already is soon done again: the key may come before, at or after its end.
    tmux.sees(r"cancelled job|has no job to cancel|is done already")
    tmux.press("C-c")
    tmux.sees("ended with 0", "continues to watch")


def test_daemon_that_goes_leaves_the_terminal_as_it_was(daemon: Daemon, open_tmux: Callable[..., Tmux]) -> None:
    """The command ends with its one line and status 3, after the screen was given back."""
    daemon.client.call("pause")
    path = daemon.write_kernel(_saved(300.0))
    tmux = open_tmux(str(path))
    tmux.sees("it n=64")
    daemon.stop()
    assert "Traceback" not in tmux.sees("ended with 3")


def _saved(us: float, gate: str = "", **options: str) -> str:
    """Return a kernel file with a config that works and one that does not compile."""
    space = f"""space([
        dict(us={us}, does='work', tag='a', gate={gate!r}), dict(us=1.0, does='compile_error', tag='b', gate='')
    ])"""
    return make_kernel_text(space, deadlines=UNHURRIED, **options)
