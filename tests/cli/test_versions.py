"""A daemon of another protocol version can be shown and stopped, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import RunCli, StartDaemon
from tests.cli.fake_daemon import Refusal

THEIRS = {"protocol": 9, "build": "7.0"}


def refuse_method(params: dict[str, object]) -> None:
    raise Refusal("unknown_method", "there is no such method")


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "gemm"),
        ("lookup", "gemm"),
        ("jobs",),
        ("results", "gemm"),
        ("forget", "gemm"),
        ("watch",),
        ("status",),
    ],
    ids=lambda words: words[0],
)
def test_requests_are_refused_before_they_are_sent(
    run_cli: RunCli, start_daemon: StartDaemon, words: tuple[str, ...]
) -> None:
    """The line names both versions and protocols, and the remedy."""
    daemon = start_daemon(hello=THEIRS)
    result = run_cli(*words)
    assert (result.code, result.out) == (3, "")
    assert "the daemon is ktuned 7.0 and speaks protocol 9; this is " in result.err
    assert "which speaks 1; `ktuned stop` ends it" in result.err
    assert {method for method, _ in daemon.calls} == {"hello"}


def test_help_does_not_ask_the_daemon(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(hello=THEIRS)
    assert run_cli("tune", "--help").code == 0
    assert daemon.calls == []


@pytest.mark.parametrize("tells_its_pid", [True, False])
def test_stop_ends_a_daemon_of_another_version(
    tmp_path: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, tells_its_pid: bool
) -> None:
    """A daemon without ``shutdown``, or without a pid in its answer, gets a signal."""
    hello = {**THEIRS, "pid": "$PID"} if tells_its_pid else THEIRS
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(tmp_path), json.dumps(hello)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        try:
            assert process.stdout is not None
            monkeypatch.setenv("KTUNED_SOCKET", process.stdout.readline().strip())
            result = run_cli("stop", "--json")
            assert (result.code, result.json_lines) == (0, [{"pid": process.pid}])
            assert process.wait(30) == -signal.SIGTERM
        finally:
            process.kill()


def test_doctor_names_both_versions(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """The status, which may mean something else, is not read."""
    daemon = start_daemon(hello=THEIRS)
    findings = json.loads(run_cli("doctor", "--json").out)
    (found,) = [finding for finding in findings if finding["what"] == "daemon"]
    assert found["level"] == "warn"
    assert "is ktuned 7.0 and speaks protocol 9" in found["message"]
    assert {method for method, _ in daemon.calls} == {"hello"}


DAEMON = """
import json, os, sys
from pathlib import Path
from tests.cli.fake_daemon import FakeDaemon
from tests.cli.test_versions import refuse_method
hello = {key: os.getpid() if value == "$PID" else value for key, value in json.loads(sys.argv[2]).items()}
with FakeDaemon(Path(sys.argv[1]), {"hello": hello, "shutdown": refuse_method}) as daemon:
    print(daemon.path, flush=True)
    sys.stdin.read()
"""
