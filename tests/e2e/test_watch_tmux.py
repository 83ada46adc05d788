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

from tests.e2e.harness import PATIENCE_S, UNHURRIED, Daemon, kernel_text

SPACE = """space([
    dict(us=300.0, does='work', tag='good', gate=''),
    dict(us=1.0, does='compile_error', tag='bad', gate=''),
])"""
PROBLEMS = "[dict(rows=16384, columns=16384, accumulate='float32'), dict(rows=64, columns=64, accumulate='float32')]"
SIZES = [(60, 20), (80, 24), (200, 50)]
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
        opened.append(Tmux(tmp_path, daemon, [sys.executable, "-m", "ktuned", "watch", *words, "--no-spawn"]))
        return opened[-1]

    yield start
    for tmux in opened:
        tmux.close()


def test_screen_at_every_size(daemon: Daemon, open_tmux: Callable[..., Tmux]) -> None:
    """At 60, 80 and 200 columns, also as the window is resized: problems, whole words, each page, and the way back."""
    path = daemon.kernel_file(kernel_text(SPACE, problems=PROBLEMS, deadlines=UNHURRIED))
    broken = daemon.kernel_file("def broken(:\n    pass\n", "tune_broken.py")
    daemon.tune(path=str(path.parent))
    tmux = open_tmux(str(path.parent))
    for columns, lines in SIZES:
        tmux.resize(columns, lines)
        whole = rf"(?m)^─{{{columns}}}$"
        listed = tmux.sees(whole, "1 problem", r"tune_broken.py:1:\s+SyntaxError:", r"tuned,\s+1\s+failed")
        assert {"rows=16384", "columns=16384", "accumulate=float32"} <= set(listed.split())
        tmux.press("Enter")
        opened = tmux.sees(whole, r"winner +us=300.0 does=work tag=good", "best so far", "compile error")
        assert re.search(r"▸ +\* \d+ .*measured", opened)
        tmux.press("Down")
        tmux.sees(r"▸ +\d+ .*compile error", "(?m)^fake.c:1: error: no")
        tmux.press("Enter")
        tmux.sees(r"trial \d+ of it", "(?m)^outcome +compile_error", "(?m)^message:")
        tmux.press("?")
        tmux.sees("choose a line, or scroll")
        # One by one: Escape and a key that follows at once would be that key with Alt.
        for back in (r"(?m)^outcome +compile_error", "best so far", r"▸ it"):
            tmux.press("Escape")
            tmux.sees(back)
    tmux.press("e")
    tmux.sees(re.escape(str(broken)), r"def broken\(:", r"(?m)^ +\^")
    tmux.press("Left")
    tmux.press("/", "rows=64")
    tmux.sees("1 of 2 shown", "filter rows=64")
    tmux.press("Enter", "q")
    assert "goes on watching" in tmux.sees("ended with 0").replace("\n", " ")
