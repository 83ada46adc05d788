"""A real daemon under a service manager: socket activation, and the end when idle."""

from __future__ import annotations

import json
import os
import shutil
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
def manager_socket(tmp_path: Path) -> Generator[socket.socket]:
    """Return the socket at which the manager receives notifications."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(PATIENCE_S)
        yield listening


def receive_states(manager: socket.socket, wanted: str) -> list[str]:
    """Receive datagrams until one begins with ``wanted``, and return their lines."""
    lines: list[str] = []
    while not lines or not lines[-1].startswith(wanted):
        lines.append(manager.recv(4096).decode())
    return lines


def is_listened_at(path: Path) -> bool:
    """Return whether the socket accepts connections; its file appears a moment earlier."""
    entries = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return any(entry[-1] == str(path) and int(entry[3], 16) & ACCEPTS for entry in entries)


@contextmanager
def activate_daemon(directory: Path, manager: socket.socket, config: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run systemd-socket-activate, which starts the daemon at the first connection."""
    assert ACTIVATE is not None
    place = directory / "run"
    place.mkdir(mode=0o700)
    (directory / "home").mkdir()
    (directory / "home" / "config.toml").write_text(config)
    environment = {
        "KTUNED_HOME": str(directory / "home"),
        "NOTIFY_SOCKET": manager.getsockname(),
        "WATCHDOG_USEC": "200000",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        # What marks our processes for the check of leaks.
        **{name: value for name, value in os.environ.items() if name.startswith("KTUNED_TEST")},
    }
    options = [f"--setenv={name}={value}" for name, value in environment.items()]
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
def test_the_first_connection_starts_the_daemon_and_is_answered(tmp_path: Path, manager_socket: socket.socket) -> None:
    """The daemon notifies the manager, and does not remove its socket."""
    path = tmp_path / "run" / "k.sock"
    with activate_daemon(tmp_path, manager_socket) as process, Client(str(path)) as client:
        assert client.call("hello", deadline_s=PATIENCE_S)["pid"] == process.pid
        assert "READY=1" in receive_states(manager_socket, "READY=1")[0]
        receive_states(manager_socket, "WATCHDOG=1")
        status = client.call("status")
        assert status["socket"] == str(path)
        assert status["idle"]["exit_s"] == 1800
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads((tmp_path / "home" / "lock").read_text())["pid"] == process.pid

        client.call("shutdown")
        receive_states(manager_socket, "STOPPING=1")
        assert process.wait(PATIENCE_S) == 0
        # The manager still listens there: who comes now waits for the next daemon.
        assert path.exists()


@pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not installed")
def test_an_activated_daemon_ends_when_idle(tmp_path: Path, manager_socket: socket.socket) -> None:
    """The exit status is 0."""
    with activate_daemon(tmp_path, manager_socket, "idle_exit_s = 0.2\n") as process:
        with Client(str(tmp_path / "run" / "k.sock")) as client:
            client.call("hello", deadline_s=PATIENCE_S)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not installed")
def test_a_socket_in_an_open_directory_is_refused(tmp_path: Path, manager_socket: socket.socket) -> None:
    with activate_daemon(tmp_path, manager_socket) as process:
        (tmp_path / "run").chmod(0o755)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "run" / "k.sock"))
            assert process.wait(PATIENCE_S) != 0
    assert "open to others" in (tmp_path / "serve.log").read_text()


def test_a_watched_directory_keeps_a_daemon_from_ending_idle(tmp_path: Path) -> None:
    """Without a limit a daemon never ends when idle."""
    with Daemon(tmp_path) as daemon:
        assert daemon.process is not None
        assert daemon.client.call("status")["idle"]["exit_s"] == 0
        path = daemon.write_kernel(make_kernel_text("space(us=[50.0], tag=['a'])"))
        daemon.tune(path=path, trials=1)
        daemon.client.lookup("nothing", {})  # over the connection that the client keeps
        (daemon.home / "config.toml").write_text("contention = false\nidle_exit_s = 0.05\n")
        daemon.stop()
        daemon.start()
        assert daemon.client.call("status")["idle"]["exit_s"] == 0.05
        assert daemon.client.call("status")["idle"]["busy"] == ["clients", "watches"]
        shutil.rmtree(path.parent)
        daemon.wait_until(lambda: daemon.client.call("status")["idle"]["busy"] == ["clients"], "the watching's end")
        daemon.client.close()
        assert daemon.process.wait(PATIENCE_S) == 0


def test_a_pending_request_is_answered_before_the_end(tmp_path: Path) -> None:
    """Later requests get an error with the reason."""
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
            output, _ = asking.communicate(timeout=PATIENCE_S)
        assert '"jobs": [{' in output
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
