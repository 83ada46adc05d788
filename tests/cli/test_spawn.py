"""Starting a daemon: real processes that behave like good and bad ones."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from ktuned.cli import spawn
from tests.cli.conftest import Run, Serve

LISTENS = """
import os, signal, socket
path = os.environ["KTUNED_SOCKET"]
os.mkdir(os.path.dirname(path), 0o700)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print("session", os.getsid(0) == os.getpid(), os.getcwd(), flush=True)
signal.pause()
"""


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the script that stands for the interpreter which would run the daemon."""
    script = tmp_path / "interpreter"
    monkeypatch.setattr(sys, "executable", str(script))
    return script


def behave(script: Path, text: str) -> None:
    """Write a script that can be run."""
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o700)


def test_a_daemon_is_started_in_its_own_session(tmp_path: Path, interpreter: Path) -> None:
    """Once it listens its pid is returned; it leads a session, holds no directory, and logs to ``serve.log``."""
    program = tmp_path / "daemon.py"
    program.write_text(LISTENS)
    behave(interpreter, f"exec {sys.prefix}/bin/python3 {program}")
    path = tmp_path / "s" / "ktuned.sock"
    pid = spawn.start_daemon(str(path), tmp_path / "state")
    try:
        assert spawn.is_serving(str(path))
        assert (tmp_path / "state" / spawn.LOG_NAME).read_text() == "session True /\n"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_daemon_that_ends_has_its_last_words_told(tmp_path: Path, interpreter: Path) -> None:
    """The last complaint since this start says why, and the hint where the rest is; other daemons' lines stay out."""
    (tmp_path / spawn.LOG_NAME).write_text("an old failure\n")
    behave(interpreter, "echo starting; echo 'ktuned: the disk is full' >&2; echo timestamp=1 another daemon; exit 4")
    with pytest.raises(spawn.DaemonNotStarted) as caught:
        spawn.start_daemon(str(tmp_path / "s" / "ktuned.sock"), tmp_path)
    assert caught.value.message == "the daemon ended with status 4: the disk is full"
    assert str(tmp_path / spawn.LOG_NAME) in caught.value.hint


def test_a_daemon_that_says_nothing_is_told_so(tmp_path: Path, interpreter: Path) -> None:
    """Words of an earlier start are not taken for this one's."""
    (tmp_path / spawn.LOG_NAME).write_text("an old failure\n")
    behave(interpreter, "exit 1")
    with pytest.raises(spawn.DaemonNotStarted, match="its log is empty"):
        spawn.start_daemon(str(tmp_path / "s" / "ktuned.sock"), tmp_path)


def test_a_full_log_is_emptied_before_the_next_start(tmp_path: Path, interpreter: Path) -> None:
    """The lines of this start are kept, and its last words found."""
    (tmp_path / spawn.LOG_NAME).write_text("an old failure\n" * (spawn.LOG_BYTES // 10))
    behave(interpreter, "echo the disk is full; exit 1")
    with pytest.raises(spawn.DaemonNotStarted, match="the disk is full"):
        spawn.start_daemon(str(tmp_path / "s" / "ktuned.sock"), tmp_path)
    assert (tmp_path / spawn.LOG_NAME).read_text() == "the disk is full\n"


def test_a_daemon_that_is_late_is_ended(tmp_path: Path, interpreter: Path) -> None:
    """Past the deadline the process is killed and reaped, and the line says how long was waited."""
    behave(interpreter, "exec sleep 600")
    with pytest.raises(spawn.DaemonNotStarted, match=r"did not answer within 0\.1 s"):
        spawn.start_daemon(str(tmp_path / "s" / "ktuned.sock"), tmp_path, deadline_s=0.1)


def test_the_loser_of_two_starts_takes_the_winners_daemon(tmp_path: Path, interpreter: Path, serve: Serve) -> None:
    """When the one started here ends because another serves, that is no failure."""
    behave(interpreter, "echo 'another daemon serves' >&2; exit 1")
    assert spawn.start_daemon(str(serve().path), tmp_path) == 0


def test_a_daemon_that_runs_is_not_started_again(serve: Serve, interpreter: Path) -> None:
    """Nothing is started while someone serves."""
    serve()
    assert spawn.ensure_daemon() is None


def test_tune_without_a_daemon_that_can_start_exits_3(run: Run, interpreter: Path) -> None:
    """The command's one line holds the daemon's own last words."""
    behave(interpreter, "echo 'ktuned: the store is damaged' >&2; exit 1")
    ran = run("tune", "gemm")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("ktuned: the daemon ended with status 1: the store is damaged; its log is ")


def test_a_home_that_cannot_be_written_is_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no log can be opened, the line says what to set."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "file" / "home"))
    ran = run("watch")
    assert (ran.code, ran.out) == (3, "")
    assert "set KTUNED_HOME" in ran.err
