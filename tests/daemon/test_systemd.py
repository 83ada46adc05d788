"""Messages to a service manager and sockets from it, with real sockets and systemd's environment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from ktuned.daemon.systemd import FIRST_DESCRIPTOR, Handover, Notifier
from ktuned.model.errors import SettingsError

PID = 4711


def test_without_a_manager_there_is_no_socket() -> None:
    """The environment is unchanged."""
    environ = {"PATH": "/bin"}
    assert Handover.take_from_environ(environ, PID) == Handover()
    assert environ == {"PATH": "/bin"}


def test_the_managers_variables_are_removed_from_the_environment() -> None:
    """Workers must not take the manager's socket for theirs."""
    environ = {
        "LISTEN_PID": str(PID + 1),
        "LISTEN_FDS": "1",
        "LISTEN_FDNAMES": "ktuned.socket",
        "NOTIFY_SOCKET": "/run/notify",
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(PID),
        "HOME": "/root",
    }
    assert Handover.take_from_environ(environ, PID) == Handover(None, "/run/notify", 30.0)
    assert environ == {"HOME": "/root"}


@pytest.mark.parametrize("pid", ["", "0", "1", str(PID + 1), f" {PID}", f"{PID}x"])
def test_sockets_for_another_process_are_ignored(pid: str) -> None:
    """LISTEN_PID names the process: the variables outlive an exec."""
    assert Handover.take_from_environ({"LISTEN_PID": pid, "LISTEN_FDS": "1"}, PID).descriptor is None


@pytest.mark.parametrize("pid", ["1", "x"])
def test_a_watchdog_for_another_process_is_ignored(pid: str) -> None:
    """Without WATCHDOG_PID it is for every process."""
    assert Handover.take_from_environ({"WATCHDOG_PID": pid, "WATCHDOG_USEC": "1000"}, PID).watchdog_s == 0
    assert Handover.take_from_environ({"WATCHDOG_USEC": "1000"}, PID).watchdog_s == 0.001


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"LISTEN_FDS": "x"}, "LISTEN_FDS is 'x'"),
        ({"LISTEN_FDS": "0"}, "LISTEN_FDS is '0'"),
        ({"LISTEN_FDS": "-1"}, "LISTEN_FDS is '-1'"),
        ({"LISTEN_FDS": "99999999999999999999"}, "LISTEN_FDS is"),
        ({"WATCHDOG_USEC": "soon"}, "WATCHDOG_USEC is 'soon'"),
        ({"WATCHDOG_USEC": "0"}, "WATCHDOG_USEC is '0'"),
    ],
)
def test_broken_variables_are_one_line_of_error(variables: dict[str, str], complaint: str) -> None:
    """The daemon does not listen somewhere else instead."""
    with pytest.raises(SettingsError, match=complaint) as caught:
        Handover.take_from_environ({"LISTEN_PID": str(PID), **variables}, PID)
    assert caught.value.hint


HANDED = """
import os, socket, sys
from ktuned.model.errors import KtunedError
from ktuned.daemon.systemd import Handover
made = []
for number, kind in enumerate(sys.argv[2].split(",")):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if kind == "dgram" else socket.SOCK_STREAM)
    if kind == "listening":
        one.bind(f"{sys.argv[1]}/{number}")
        one.listen()
    made.append(one)
for number, one in enumerate(made):
    os.dup2(one.fileno(), 100 + number)
for number in range(len(made)):
    os.dup2(100 + number, 3 + number)
try:
    given = {"LISTEN_PID": "1", "LISTEN_FDS": sys.argv[3], "LISTEN_FDNAMES": sys.argv[4]}
    taken = Handover.take_from_environ(os.environ | given, 1)
    print(taken.descriptor, os.get_inheritable(3))
except KtunedError as error:
    print(error.message)
"""


@pytest.mark.parametrize(
    ("kinds", "count", "names", "said"),
    [
        ("listening", "1", "unknown", "3 False"),
        ("listening,listening", "2", "other:ktuned.socket", "4 False"),
        ("listening,listening", "2", "ktuned:other", "3 False"),
        ("listening,listening", "2", "a:b", "2 sockets were handed over, 0 of them named ktuned"),
        ("listening,listening", "2", "ktuned:ktuned", "2 sockets were handed over, 2 of them named ktuned"),
        ("stream", "1", "ktuned", "descriptor 3 is not a listening Unix stream socket"),
        ("dgram", "1", "ktuned", "descriptor 3 is not a listening Unix stream socket"),
        ("listening", "50", "ktuned", "which LISTEN_FDS promises, is not there"),
    ],
)
def test_the_one_listening_socket_is_chosen(tmp_path: Path, kinds: str, count: str, names: str, said: str) -> None:
    """One socket is taken whatever its name, one of several by its name; anything else is an error."""
    done = subprocess.run(
        [sys.executable, "-c", HANDED, str(tmp_path), kinds, count, names],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said in done.stdout


@pytest.fixture
def manager_socket(tmp_path: Path) -> Generator[socket.socket]:
    """Return a manager's notification socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        yield listening


def test_each_state_is_one_datagram(manager_socket: socket.socket) -> None:
    """The assignments are those of sd_notify(3), one a line; a status is one line whatever it contains."""
    with Notifier(manager_socket.getsockname()) as notifier:
        assert notifier.has_service_manager
        notifier.report_ready("2 jobs\nrunning")
        notifier.report_alive()
        notifier.report_stopping()
    datagrams = [manager_socket.recv(4096).decode() for _ in range(3)]
    assert datagrams[0] == "READY=1\nSTATUS=2 jobs running"
    assert datagrams[1] == "WATCHDOG=1"
    assert datagrams[2] == "STOPPING=1\nSTATUS=stopping"


def test_an_abstract_address_is_understood() -> None:
    """A leading @ stands for the zero byte."""
    name = f"ktuned-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(30)
        with Notifier(f"@{name}") as notifier:
            notifier.report_alive()
        assert listening.recv(100) == b"WATCHDOG=1"


def test_a_missing_or_full_manager_is_no_error(manager_socket: socket.socket, tmp_path: Path) -> None:
    """Nothing waits for a manager that does not read."""
    with Notifier(str(tmp_path / "nobody")) as nobody, Notifier(manager_socket.getsockname()) as full:
        nobody.report_alive()
        for _ in range(2000):
            full.report_alive()
    with Notifier() as silent:
        silent.report_ready("x")
        assert not silent.has_service_manager


def test_the_first_descriptor_is_three() -> None:
    """The constant is SD_LISTEN_FDS_START of sd-daemon.h."""
    assert FIRST_DESCRIPTOR == 3
