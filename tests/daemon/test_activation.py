"""A real daemon under a service manager's hand: activated by its socket, asked to reload, ending by itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ktuned_client import Client
from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import Daemon, make_kernel_text

ACTIVATE = shutil.which("systemd-socket-activate")
ACCEPTS = 0x10000
"""``__SO_ACCEPTCON``, the flag in /proc/net/unix of a socket at which someone listens."""


@pytest.fixture
def manager(tmp_path: Path) -> Generator[socket.socket]:
    """Return the socket at which a manager would be notified."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(PATIENCE_S)
        yield listening


def heard(manager: socket.socket, wanted: str) -> list[str]:
    """Return what is said up to and with the datagram that begins with ``wanted``."""
    said: list[str] = []
    while not said or not said[-1].startswith(wanted):
        said.append(manager.recv(4096).decode())
    return said


def is_listened_at(path: Path) -> bool:
    """Return whether someone accepts connections there: the file appears a moment before."""
    entries = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return any(entry[-1] == str(path) and int(entry[3], 16) & ACCEPTS for entry in entries)


@contextmanager
def activated(directory: Path, manager: socket.socket, config: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run systemd-socket-activate, which becomes the daemon when someone connects."""
    assert ACTIVATE is not None
    place = directory / "run"
    place.mkdir(mode=0o700)
    (directory / "home").mkdir()
    (directory / "home" / "config.toml").write_text(config)
    given = {
        "KTUNED_HOME": str(directory / "home"),
        "NOTIFY_SOCKET": manager.getsockname(),
        "WATCHDOG_USEC": "200000",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        # What marks our processes for the check of leaks.
        **{name: value for name, value in os.environ.items() if name.startswith("KTUNED_TEST")},
    }
    options = [f"--setenv={name}={value}" for name, value in given.items()]
    with (directory / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [
                ACTIVATE,
                f"--listen={place / 'k.sock'}",
                *options,
                sys.executable,
                "-m",
                "ktuned",
                "start",
                "--foreground",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        while not is_listened_at(place / "k.sock"):
            assert process.poll() is None, (directory / "serve.log").read_text()
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not installed")
def test_the_first_connection_starts_the_daemon_and_is_answered(tmp_path: Path, manager: socket.socket) -> None:
    """The first connection starts it and is answered; it reports how it is, and leaves the manager's socket alone."""
    path = tmp_path / "run" / "k.sock"
    with activated(tmp_path, manager) as process, Client(str(path)) as client:
        assert client.call("hello", deadline_s=PATIENCE_S)["pid"] == process.pid
        assert "READY=1" in heard(manager, "READY=1")[0]
        heard(manager, "WATCHDOG=1")
        status = client.call("status")
        assert status["socket"] == str(path)
        assert status["idle"]["exit_s"] == 1800
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads((tmp_path / "home" / "lock").read_text())["pid"] == process.pid

        (tmp_path / "home" / "config.toml").write_text("idle_exit_s = 0\n")
        process.send_signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in heard(manager, "RELOADING=1")[-1]
        heard(manager, "READY=1")
        assert client.call("status")["idle"]["exit_s"] == 0

        client.call("shutdown")
        heard(manager, "STOPPING=1")
        assert process.wait(PATIENCE_S) == 0
        # The manager still listens there: who comes now waits for the next daemon.
        assert path.exists()


@pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not installed")
def test_an_activated_daemon_ends_when_idle(tmp_path: Path, manager: socket.socket) -> None:
    """Once its client has gone and nothing is left to do it ends, with success."""
    with activated(tmp_path, manager, "idle_exit_s = 0.2\n") as process:
        with Client(str(tmp_path / "run" / "k.sock")) as client:
            client.call("hello", deadline_s=PATIENCE_S)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not installed")
def test_a_socket_in_an_open_directory_is_refused(tmp_path: Path, manager: socket.socket) -> None:
    """A handed-over socket is checked as our own is: one that others can replace is not served."""
    with activated(tmp_path, manager) as process:
        (tmp_path / "run").chmod(0o755)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "run" / "k.sock"))
            assert process.wait(PATIENCE_S) != 0
    assert "open to others" in (tmp_path / "serve.log").read_text()


def test_a_watched_directory_keeps_a_daemon_from_ending_idle(tmp_path: Path) -> None:
    """A plain daemon has no limit; one with a limit stays while a directory is watched, and ends without."""
    with Daemon(tmp_path) as daemon:
        assert daemon.process is not None
        assert daemon.client.call("status")["idle"]["exit_s"] == 0
        path = daemon.write_kernel(make_kernel_text("space(us=[50.0], tag=['a'])"))
        daemon.tune(path=str(path), trials=1)
        daemon.client.lookup("nothing", {})  # over the connection that the client keeps
        (daemon.home / "config.toml").write_text("contention = false\nidle_exit_s = 0.05\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_until(lambda: daemon.client.call("status")["idle"]["exit_s"] == 0.05, "the reload")
        assert daemon.client.call("status")["idle"]["busy"] == ["clients", "watches"]
        shutil.rmtree(path.parent)
        daemon.wait_until(lambda: daemon.client.call("status")["idle"]["busy"] == ["clients"], "the watching's end")
        daemon.client.close()
        assert daemon.process.wait(PATIENCE_S) == 0


def test_a_request_that_waits_is_answered_before_the_end(tmp_path: Path) -> None:
    """`shutdown` drains: what was asked before it gets its answer, what comes after is reported why it does not."""
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(SLOW.format(gates=str(daemon.gates)) + make_kernel_text("space(us=[50.0])"))
        with subprocess.Popen(
            [sys.executable, "-m", "ktuned", "tune", "--detach", "--json", str(path)],
            env=daemon.env,
            stdout=subprocess.PIPE,
            text=True,
        ) as asking:
            daemon.wait_until((daemon.gates / "import.reached").exists, "the kernel file's import")
            daemon.client.call("shutdown")
            (daemon.gates / "import").touch()
            said, _ = asking.communicate(timeout=PATIENCE_S)
        assert '"jobs": [{' in said
        assert daemon.process is not None
        assert daemon.process.wait(PATIENCE_S) == 0


SLOW = """\
import pathlib
import select
gates = pathlib.Path({gates!r})
(gates / "import.reached").touch()
while not (gates / "import").exists():
    select.select([], [], [], 0.01)
"""
