"""A daemon of another protocol: named with both versions, still shown and still stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Serve
from tests.cli.fake_daemon import Refusal

THEIRS = {"protocol": 9, "build": "7.0"}


def refuse(params: dict[str, object]) -> None:
    """Answer as a daemon that has no such method."""
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
def test_what_may_have_another_meaning_is_not_asked(run: Run, serve: Serve, words: tuple[str, ...]) -> None:
    """The line names both versions and both protocols, and what to do; the daemon is asked for nothing else."""
    daemon = serve(hello=THEIRS)
    ran = run(*words)
    assert (ran.code, ran.out) == (3, "")
    assert "the daemon is ktuned 7.0 and speaks protocol 9; this is " in ran.err
    assert "which speaks 1; `ktuned stop` ends it" in ran.err
    assert {method for method, _ in daemon.calls} == {"hello"}


def test_help_needs_no_daemon(run: Run, serve: Serve) -> None:
    """Help is this version's, whatever serves."""
    daemon = serve(hello=THEIRS)
    assert run("tune", "--help").code == 0
    assert daemon.calls == []


@pytest.mark.parametrize("tells_its_pid", [True, False])
def test_stop_ends_it_all_the_same(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tells_its_pid: bool
) -> None:
    """One without ``shutdown``, and one that does not even report its pid, gets the signal; its end is waited for."""
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
            ran = run("stop", "--json")
            assert (ran.code, ran.values) == (0, [{"pid": process.pid}])
            assert process.wait(30) == -signal.SIGTERM
        finally:
            process.kill()


def test_doctor_says_that_it_is_another(run: Run, serve: Serve) -> None:
    """The finding names both; nothing is read out of a status that may mean something else."""
    daemon = serve(hello=THEIRS)
    findings = json.loads(run("doctor", "--json").out)
    (found,) = [finding for finding in findings if finding["what"] == "daemon"]
    assert found["level"] == "warn"
    assert "is ktuned 7.0 and speaks protocol 9" in found["message"]
    assert {method for method, _ in daemon.calls} == {"hello"}


DAEMON = """
import json, os, sys
from pathlib import Path
from tests.cli.fake_daemon import FakeDaemon
from tests.cli.test_versions import refuse
hello = {key: os.getpid() if value == "$PID" else value for key, value in json.loads(sys.argv[2]).items()}
with FakeDaemon(Path(sys.argv[1]), {"hello": hello, "shutdown": refuse}) as daemon:
    print(daemon.path, flush=True)
    sys.stdin.read()
"""
