"""Starts daemons: real processes that behave like good and bad ones."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from ktuned.cli import spawn
from tests.cli.conftest import RunCli, StartDaemon

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
def interpreter_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the script that replaces the daemon's interpreter."""
    script = tmp_path / "interpreter"
    monkeypatch.setattr(sys, "executable", str(script))
    return script


def write_script(script: Path, text: str) -> None:
    """Write an executable script."""
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o700)


def test_a_daemon_is_started_in_its_own_session(tmp_path: Path, interpreter_script: Path) -> None:
    """``start_daemon`` returns its pid; it leads a session, has ``/`` as its directory, and logs to ``serve.log``."""
    program = tmp_path / "daemon.py"
    program.write_text(LISTENS)
    write_script(interpreter_script, f"exec {sys.prefix}/bin/python3 {program}")
    path = tmp_path / "s" / "ktuned.sock"
    pid = spawn.start_daemon(str(path), tmp_path / "state")
    try:
        assert spawn.is_serving(str(path))
        assert (tmp_path / "state" / spawn.LOG_NAME).read_text() == "session True /\n"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_error_has_the_last_words_of_a_daemon_that_ended(tmp_path: Path, interpreter_script: Path) -> None:
    """Other daemons' lines and earlier starts are ignored."""
    (tmp_path / spawn.LOG_NAME).write_text("an old failure\n")
    write_script(
        interpreter_script,
        "echo starting; echo 'ktuned: the disk is full' >&2; echo timestamp=1 another daemon; exit 4",
    )
    with pytest.raises(spawn.DaemonNotStarted) as caught:
        spawn.start_daemon(str(tmp_path / "s" / "ktuned.sock"), tmp_path)
    assert caught.value.message == "the daemon ended with status 4: the disk is full"
    assert str(tmp_path / spawn.LOG_NAME) in caught.value.hint


def test_the_error_says_that_a_daemon_ended_silently(tmp_path: Path, interpreter_script: Path) -> None:
    (tmp_path / spawn.LOG_NAME).write_text("an old failure\n")
    write_script(interpreter_script, "exit 1")
    with pytest.raises(spawn.DaemonNotStarted, match="its log is empty"):
        spawn.start_daemon(str(tmp_path / "s" / "ktuned.sock"), tmp_path)


def test_a_full_log_is_emptied_before_the_next_start(tmp_path: Path, interpreter_script: Path) -> None:
    (tmp_path / spawn.LOG_NAME).write_text("an old failure\n" * (spawn.LOG_BYTES // 10))
    write_script(interpreter_script, "echo the disk is full; exit 1")
    with pytest.raises(spawn.DaemonNotStarted, match="the disk is full"):
        spawn.start_daemon(str(tmp_path / "s" / "ktuned.sock"), tmp_path)
    assert (tmp_path / spawn.LOG_NAME).read_text() == "the disk is full\n"


def test_a_daemon_that_does_not_answer_is_killed(tmp_path: Path, interpreter_script: Path) -> None:
    write_script(interpreter_script, "exec sleep 600")
    with pytest.raises(spawn.DaemonNotStarted, match=r"did not answer within 0\.1 s"):
        spawn.start_daemon(str(tmp_path / "s" / "ktuned.sock"), tmp_path, deadline_s=0.1)


def test_the_loser_of_two_starts_uses_the_winner_s_daemon(
    tmp_path: Path, interpreter_script: Path, start_daemon: StartDaemon
) -> None:
    """The started process ends because another daemon serves."""
    write_script(interpreter_script, "echo 'another daemon serves' >&2; exit 1")
    assert spawn.start_daemon(str(start_daemon().path), tmp_path) == 0


def test_a_running_daemon_is_not_started_again(start_daemon: StartDaemon, interpreter_script: Path) -> None:
    start_daemon()
    assert spawn.ensure_daemon() is None


def test_tune_exits_3_if_the_daemon_cannot_start(run_cli: RunCli, interpreter_script: Path) -> None:
    """The line has the daemon's last words."""
    write_script(interpreter_script, "echo 'ktuned: the store is damaged' >&2; exit 1")
    result = run_cli("tune", "gemm")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("ktuned: the daemon ended with status 1: the store is damaged; its log is ")


def test_a_home_that_cannot_be_written_is_one_line(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says which variable to set."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "file" / "home"))
    result = run_cli("watch")
    assert (result.code, result.out) == (3, "")
    assert "set KTUNED_HOME" in result.err
