"""``ktuned watch`` as an author has it: a screen on a pseudo-terminal with keys, and the check that CI runs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.e2e.harness import PATIENCE_S, UNHURRIED, Daemon, kernel_text, running
from tests.e2e.terminal import Terminal

SPACE = (
    "space([dict(us={us}, does='work', tag='a', gate={gate!r}), dict(us=1.0, does='compile_error', tag='b', gate='')])"
)
FIGURE = r"[\d.]+ [µm]s"
"""A latency as it is reported; how large it is on a busy machine is not what is tested here."""

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


def text_of(us: float = 300.0, gate: str = "", **options: str) -> str:
    """Return a kernel file with a config that works and one that does not compile."""
    return kernel_text(SPACE.format(us=us, gate=gate), deadlines=UNHURRIED, **options)


class Sitting:
    """A ``ktuned watch`` on a terminal of 30 lines and 140 columns, and all that it has written."""

    def __init__(self, daemon: Daemon, *words: str) -> None:
        self.master, self.slave = pty.openpty()
        self.terminal = Terminal(0, 0)
        self.resize(140, 30)
        self.found = termios.tcgetattr(self.slave)
        self.shown = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ktuned", "watch", *words, "--no-spawn"],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            # A parent's line editor may export a size, which is another terminal's.
            env={**daemon.env, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
            start_new_session=True,
        )

    def close(self) -> None:
        """End it, if it has not ended, and its terminal."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size; the kernel signals that to the command."""
        self.terminal = Terminal(columns, lines)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def picture(self) -> str:
        """The lines on the terminal, without their colours."""
        return self.terminal.picture

    def _read(self) -> None:
        data = os.read(self.master, 65536)
        self.shown += data
        self.terminal.feed(data)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Read what is shown until something holds."""
        deadline = monotonic() + PATIENCE_S
        while not condition():
            assert monotonic() < deadline, f"waited for {what}; the picture:\n{self.picture}"
            if select.select([self.master], [], [], 0.05)[0]:
                self._read()

    def sees(self, pattern: str) -> None:
        """Read until a line of the picture has a pattern."""
        self.until(lambda: re.search(pattern, self.picture) is not None, pattern)

    def ends(self) -> int:
        """Read until the command has ended, and return its exit status."""
        self.until(lambda: self.process.poll() is not None, "its end")
        while select.select([self.master], [], [], 0.1)[0]:
            self._read()
        return self.process.wait()

    @property
    def is_left_as_found(self) -> bool:
        """Whether the terminal is as it was, its screen and its cursor too."""
        order = self.shown.rfind(LEAVE) > self.shown.rfind(ENTER) and b"\x1b[?25h" in self.shown
        return order and termios.tcgetattr(self.slave) == self.found


@pytest.fixture
def sit(daemon: Daemon) -> Iterator[Callable[..., Sitting]]:
    """Sit down before screens that are all closed at the end."""
    sittings: list[Sitting] = []

    def start(*words: str) -> Sitting:
        sittings.append(Sitting(daemon, *words))
        return sittings[-1]

    yield start
    for sitting in sittings:
        sitting.close()


def test_author_saves_sees_and_steers(daemon: Daemon, sit: Callable[..., Sitting]) -> None:
    """A save is seen with the old figure, and tuned; keys pause, resume, tune, cancel; ``q`` leaves all as it was."""
    path = daemon.kernel_file(text_of(900.0))
    daemon.tune(path=str(path))
    screen = sit(str(path))
    screen.sees(rf"it n=64 +– +– +{FIGURE}")
    path.write_text(text_of(300.0, gate="door", body="Build(**{**c, 'us': c.us + 1.0})"))
    screen.sees(rf"it n=64 +\d.* ago +{FIGURE} +– +– +(tuning|queued|stale)")
    daemon.gate("door").wait_reached()
    screen.press("p")
    screen.sees(r"paused job \d+")
    # The config that does not compile may have failed before, and the last winner stands behind the state.
    screen.sees(rf"it n=64 +\d.* ago +{FIGURE} +– +– +paused")
    assert [job["state"] for job in daemon.client.call("jobs", state="paused")["jobs"]] == ["paused"]
    screen.press("P")
    screen.sees("all tuning is paused: P resumes it")
    screen.press("P")
    screen.sees("resumed all tuning")
    daemon.gate("door").open()
    screen.press("p")
    screen.sees(rf"it n=64 .* {FIGURE} +{FIGURE} +[\d.]+× +tuned, 1 failed")
    screen.sees("compile_error: fake.c:1: error: no")
    screen.press("t")
    screen.sees(r"job \d+ tunes project:it now")
    screen.press("\x1b[Bc")
    # What is known already is soon done again: the key may come before, at or after its end.
    screen.sees(r"cancelled job|has no job to cancel|is done already")
    screen.press("\r")
    screen.sees(r"winner +us=300.0 .*\n(.*\n)*over saves +.*[▁-█]{2}.* in 2 versions")
    screen.resize(60, 20)
    screen.sees(r"(?m)^─{60}$(.*\n)+.*compile error")
    screen.press("q")
    assert screen.ends() == 0
    assert screen.is_left_as_found
    assert b"goes on watching" in screen.shown


def test_suspended_terminal_is_the_shell_s(daemon: Daemon, sit: Callable[..., Sitting]) -> None:
    """Ctrl-Z gives the terminal back and stops; continuing takes it again; SIGTERM and Ctrl-C leave it as it was."""
    daemon.client.call("pause")
    path = daemon.kernel_file(text_of())
    screen = sit(str(path))
    screen.sees("it n=64")
    screen.process.send_signal(signal.SIGTSTP)

    def is_stopped() -> bool:
        words = Path(f"/proc/{screen.process.pid}/stat").read_text().rpartition(")")[2].split()
        return words[0] == "T"

    screen.until(is_stopped, "it to stop")
    screen.until(lambda: screen.is_left_as_found, "the terminal as it was found")
    shown = len(screen.shown)
    screen.process.send_signal(signal.SIGCONT)
    screen.until(lambda: ENTER in screen.shown[shown:] and "it n=64" in screen.picture, "the picture again")
    screen.process.send_signal(signal.SIGTERM)
    assert screen.ends() == 0
    assert screen.is_left_as_found
    again = sit()
    again.sees("it n=64")
    again.process.send_signal(signal.SIGINT)
    assert again.ends() == 0
    assert again.is_left_as_found


def test_daemon_that_goes_leaves_the_terminal_as_it_was(daemon: Daemon, sit: Callable[..., Sitting]) -> None:
    """The command ends with its one line and status 3, after the screen was given back."""
    daemon.client.call("pause")
    path = daemon.kernel_file(text_of())
    screen = sit(str(path))
    screen.sees("it n=64")
    daemon.stop()
    assert screen.ends() == 3
    assert screen.is_left_as_found
    assert b"Traceback" not in screen.shown


def test_once_is_a_regression_check(tmp_path: Path) -> None:
    """It tunes what is stale alone, and exits with 1 when a winner got slower, or when an edit does not work.

    Under the policy ``manual`` a save starts nothing: the check is what asks for it, and who waits overrides.
    """
    with running(tmp_path, config='policy = "manual"\n') as daemon:
        path = daemon.kernel_file(text_of(300.0))
        first = daemon.ktuned("watch", "--once", str(path))
        assert first.returncode == 0, first.stderr
        assert re.search(rf"project:it +n=64 .* – +{FIGURE} +– +new", first.stdout)
        again = daemon.ktuned("watch", "--once", "--json", str(path))
        (compared,) = json.loads(again.stdout.splitlines()[-1])["comparisons"]
        assert (again.returncode, compared["verdict"], compared["ratio"]) == (0, "same", 1.0)
        assert len(daemon.client.call("jobs")["jobs"]) == 1

        path.write_text(text_of(3000.0, body="Build(**{**c, 'us': c.us + 1.0})"))
        daemon.until(lambda: daemon.client.lookup("it", dict(n=64)).status != "fresh", "the save to be seen")
        daemon.until(lambda: bool(daemon.client.call("jobs", state="queued")["jobs"]), "its job")
        status = daemon.ktuned("status").stdout
        assert re.search(r"0 running, 1 queued; waiting: 1 because policy is manual: .*; policy manual", status)
        slower = daemon.ktuned("watch", "--once", str(path))
        assert slower.returncode == 1
        assert re.search(rf"{FIGURE} +{FIGURE} +0\.\d\d× +slower", slower.stdout)

        path.write_text(text_of(6000.0, body="Build(**{**c, 'us': c.us + 2.0})"))
        tolerated = daemon.ktuned("watch", "--once", "--tolerance", "10000%", str(path))
        assert tolerated.returncode == 0, tolerated.stdout

        path.write_text("def broken(:\n")
        broken = daemon.ktuned("watch", "--once", str(path))
        assert broken.returncode == 1
        assert "tune_it.py:1" in broken.stderr
        assert daemon.ktuned("watch", "--once", "--tolerance", "much", str(path)).returncode == 2


def test_once_compares_winners_by_other_objectives(daemon: Daemon) -> None:
    """Beside the winner by latency, in their own unit, and after tuning them again for the edit."""
    path = daemon.kernel_file(text_of(300.0, metrics="dict(speed=lambda p, t: p.n / t)"))
    assert daemon.ktuned("tune", str(path)).returncode == 0
    assert daemon.ktuned("tune", "it", "--objective", "max:speed").returncode == 0
    path.write_text(path.read_text().replace("Build(**c)", "Build(**{**c, 'us': c.us + 1.0})"))
    ran = daemon.ktuned("watch", "--once", "--tolerance", "10000%", str(path))
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert re.search(r"project:it +n=64 by max:speed +.* \S+ speed +\S+ speed +[\d.]+× +same", ran.stdout), ran.stdout
    assert re.search(rf"project:it +n=64  .*{FIGURE} +{FIGURE} ", ran.stdout), ran.stdout
