"""Script that draws live_screen.svg from a real ``ktuned watch``, on this machine's CPU, in less than a minute.

A private daemon tunes copies of the CPU example, with two problems and some of its configs, and of the README's kernel
with a typing error, in a temporary directory. The picture is the command's screen in tmux (apt-get install tmux): the
GEMM's first problem is chosen and has its winner, the second one is being tuned, the dot product has failed. Only the
name of the temporary directory is replaced in it.
"""

import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURE = Path(__file__).with_name("live_screen.svg")
COLUMNS, LINES = 160, 30
DEADLINE_S = 600.0
"""Ten times what the tuning takes on two quiet cores: some 30 compiles."""

PROBLEMS = "problems=[dict(M=384, N=384, K=400)]"
TWO_PROBLEMS = "problems=[dict(M=384, N=384, K=400), dict(M=192, N=768, K=400)]"
FEW_VALUES = {
    "BLOCK_DEPTH=[96, 200]": "BLOCK_DEPTH=[48, 96, 200]",
    "BLOCK_ROWS=[48, 192]": "BLOCK_ROWS=[48]",
    "THREADS=[1, 2]": "THREADS=[1]",
    '["BLOCKED", "BROKEN_BUILD", "DROPS_TAIL", "NULL_DEREF", "ENDLESS"]': '["BLOCKED"]',
}
"""The example's axes with other values: 24 configs, which fill the screen, compiled once for both problems."""

DONE = re.compile(r"gemm M=384 .* tuned ")
UNDER_WAY = re.compile(r"gemm M=192 .*(?:tuning|final) .* (?:[3-9]|1\d|2\d)/24")
FAILED = re.compile(r"dot .* failed ")
_REMOTE_FONT = re.compile(r",\s*url\([^)]*\) format\([^)]*\)")
_POLL_S = 0.2


class Screen:
    """A running ``ktuned watch`` in a tmux server of its own."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._words = ["tmux", "-S", str(directory / "tmux.sock"), "-f", "/dev/null"]
        self._environment = environment

    def run(self, *words: str) -> str:
        """Run a command of tmux and return its output."""
        words = (*self._words, *words)
        return subprocess.run(words, env=self._environment, check=True, capture_output=True, text=True).stdout

    def frames(self) -> Iterator[str]:
        """Yield the screen with its colours, some times a second.

        Raises:
            RuntimeError: the deadline passed.
            CalledProcessError: the command ended, and tmux with it.
        """
        ends = monotonic() + DEADLINE_S
        while monotonic() < ends:
            yield self.run("capture-pane", "-p", "-e")
            select.select([], [], [], _POLL_S)
        raise RuntimeError(f"the picture is not complete after {DEADLINE_S:g} s")


@contextmanager
def watching(project: Path, directory: Path, environment: dict[str, str]) -> Iterator[Screen]:
    """Run ``ktuned watch`` of a directory in tmux, with a daemon that ends with it."""
    screen = Screen(directory, environment)
    command = shlex.join([sys.executable, "-m", "ktuned", "watch", "."])
    size = ["-x", str(COLUMNS), "-y", str(LINES)]
    screen.run("new-session", "-d", *size, "-c", str(project), command)
    try:
        yield screen
    finally:
        screen.run("kill-server")
        subprocess.run([sys.executable, "-m", "ktuned", "stop"], env=environment, check=False)


def prepare(project: Path) -> None:
    """Fill the project with the CPU example, and with the guide's kernel that cannot be compiled."""
    shutil.copytree(ROOT / "examples/cpu_gemm", project)
    for axis, shorter in {PROBLEMS: TWO_PROBLEMS, **FEW_VALUES}.items():
        edit(project / "tune_gemm.py", axis, shorter)
    guide = (ROOT / "docs/guide/first-kernel.md").read_text()
    blocks = re.findall(r"^```\w+\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    for mark, name in (("@kernel(", "tune_dot.py"), ("TVM_FFI_DLL_EXPORT", "dot.cc")):
        (project / name).write_text(next(block for block in blocks if mark in block))
    edit(project / "dot.cc", "float sum", "flaot sum")


def edit(path: Path, old: str, new: str) -> None:
    """Save a file with one piece of it replaced."""
    text = path.read_text()
    assert old in text, f"{path} does not hold {old!r}"
    path.write_text(text.replace(old, new, 1))


def is_complete(frame: str) -> bool:
    """Return whether all three rows are there."""
    plain = Text.from_ansi(frame).plain
    return all(name in plain for name in ("dot N=", "gemm M=384", "gemm M=192"))


def is_worth_showing(frame: str) -> bool:
    """Return whether one GEMM is tuned and chosen, the other one under way, and the third kernel failed."""
    plain = Text.from_ansi(frame).plain
    return "★" in plain and all(state.search(plain) for state in (DONE, UNDER_WAY, FAILED))


def draw(frame: str) -> None:
    """Write a frame as SVG, with no font from the network."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(frame.rstrip()), no_wrap=True)
    PICTURE.write_text(_REMOTE_FONT.sub("", console.export_svg(title="ktuned watch .")))


def main() -> None:
    """Tune, choose the kernel that is tuned first, and draw the screen in the middle of the second tuning."""
    with tempfile.TemporaryDirectory(prefix="ktuned-picture-") as name:
        directory = Path(name)
        project = directory / "kernels"
        prepare(project)
        home = directory / "home"
        home.mkdir(mode=0o700)
        # Other programs on the machine must not leave the picture without figures.
        (home / "config.toml").write_text("contention = false\n")
        private = {"KTUNED_HOME": str(home), "KTUNED_SOCKET": str(directory / "run/ktuned.sock")}
        environment = {**os.environ, **private, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        with watching(project, directory, environment) as screen:
            frames = screen.frames()
            next(frame for frame in frames if is_complete(frame))
            # The dot product is the first row.
            screen.run("send-keys", "j")
            draw(next(frame for frame in frames if is_worth_showing(frame)).replace(str(project), "~/kernels"))
    sys.stderr.write(f"wrote {PICTURE}\n")


if __name__ == "__main__":
    main()
