import os
import shutil
import signal
import socket
import stat
from pathlib import Path

import anyio
import pytest

from ktuned.lookup.winner_table import WinnerTable
from ktuned.serve import listener
from ktuned.serve.listener import CannotListen, bind_socket
from ktuned_client import paths
from ktuned_client.table import TABLE_NAME
from tests.client import daemon


@pytest.fixture
def socket_path(tmp_path: Path, client_server_forker: None) -> str:
    """Return a socket's path in a directory that does not exist yet."""
    return str(tmp_path / "run" / "k.sock")


def test_socket_and_directory_are_private(socket_path: str) -> None:
    """The new directory has mode 0700, the socket 0600; the lock contains the pid."""
    with bind_socket(socket_path) as listening:
        assert listening.getsockname() == socket_path
        assert stat.S_IMODE(os.stat(os.path.dirname(socket_path)).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(socket_path).st_mode) == 0o600
    assert not os.path.exists(socket_path)


def test_a_second_daemon_gets_the_name_of_the_first(socket_path: str) -> None:
    """The lock decides."""
    with daemon.run_server(socket_path) as process:
        with (
            pytest.raises(
                CannotListen, match=rf"a daemon \(pid {process.pid}\) already serves {socket_path}"
            ) as caught,
            bind_socket(socket_path),
        ):
            pass
        assert "ktuned stop" in caught.value.hint
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(socket_path)


def test_a_socket_of_a_service_manager_is_not_taken_over(socket_path: str) -> None:
    """A process that listens there without the directory's lock is asked for, and named."""
    os.makedirs(os.path.dirname(socket_path), mode=0o700)
    holder = os.fork()
    if holder == 0:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(socket_path)
            listening.listen()
            signal.pause()
    try:
        while paths.find_server(socket_path, 1) is None:
            os.sched_yield()
        with pytest.raises(CannotListen, match=rf"\(pid {holder}\) already serves"), bind_socket(socket_path):
            pass
        assert paths.find_server(socket_path, 1) == holder
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("removed", ["directory", "socket", "table"])
async def test_what_a_cleaner_removes_comes_back(
    socket_path: str, removed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory, the lock and the socket are created again, so that no other daemon takes the path."""
    monkeypatch.setattr(listener, "LOOK_S", 0.01)
    sockets: list[socket.socket] = []
    kernel, key, stopping = "p:k", b"key", anyio.Event()

    async def listen(found: socket.socket) -> None:
        found.listen()
        sockets.append(found)

    with bind_socket(socket_path) as listening:
        listening.listen()
        table = WinnerTable(os.path.dirname(socket_path), epoch=7)
        assert table.publish_entry(kernel, key, b"payload")
        place = Path(socket_path).with_name(TABLE_NAME)
        before = place.stat().st_ino
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.keep_reachable, socket_path, listen, table.restore_file, stopping)
            await anyio.wait_all_tasks_blocked()
            if removed == "directory":
                shutil.rmtree(place.parent)
            else:
                os.unlink(socket_path if removed == "socket" else place)
            with anyio.fail_after(30):
                while not (place.exists() and paths.find_server(socket_path, 1)):  # noqa: ASYNC110 - files have no event
                    await anyio.sleep(0.01)
            with pytest.raises(CannotListen, match=rf"pid {os.getpid()}\) already serves"), bind_socket(socket_path):
                pass
            stopping.set()
        assert (place.stat().st_ino == before) == (removed == "socket")
        assert table.holds_entry(kernel, key, b"payload")
        table.close()
    for found in sockets:
        found.close()


@pytest.mark.anyio
async def test_a_daemon_whose_path_another_daemon_serves_stops(
    socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the directory was removed, another daemon was first: clients cannot reach this one, which ends."""
    monkeypatch.setattr(listener, "LOOK_S", 0.01)
    stopping = anyio.Event()
    with bind_socket(socket_path):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.keep_reachable, socket_path, NotImplemented, NotImplemented, stopping)
            await anyio.wait_all_tasks_blocked()
            shutil.rmtree(os.path.dirname(socket_path))
            with daemon.run_server(socket_path) as process:
                with anyio.fail_after(30):
                    await stopping.wait()
                listener.remove_socket(socket_path)
                assert paths.find_server(socket_path, 1) == process.pid


def test_a_stale_socket_is_replaced(socket_path: str) -> None:
    with daemon.run_server(socket_path) as process:
        process.kill()
        process.join()
        assert os.path.exists(socket_path)
        with bind_socket(socket_path) as listening:
            listening.listen()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(socket_path)


def test_a_removed_socket_file_is_no_error_at_the_end(socket_path: str) -> None:
    with bind_socket(socket_path):
        os.unlink(socket_path)
    assert not os.path.exists(socket_path)


def test_a_file_in_place_of_the_socket_is_kept(socket_path: str) -> None:
    """Only sockets are removed; any other file is an error."""
    os.makedirs(os.path.dirname(socket_path), mode=0o700)
    Path(socket_path).write_text("precious")
    with pytest.raises(CannotListen, match="is not a socket"), bind_socket(socket_path):
        pass
    assert Path(socket_path).read_text() == "precious"


def test_a_path_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    """The error has both lengths and the variable to set."""
    with pytest.raises(CannotListen, match="107 are allowed") as caught, bind_socket(str(tmp_path / ("x" * 120))):
        pass
    assert "KTUNED_SOCKET" in caught.value.hint
    assert "\n" not in caught.value.message


def test_a_directory_open_to_others_is_refused(socket_path: str) -> None:
    """An existing directory is checked and not changed."""
    os.makedirs(os.path.dirname(socket_path), mode=0o755)
    with pytest.raises(CannotListen, match="open to others") as caught, bind_socket(socket_path):
        pass
    assert "chmod 700" in caught.value.hint
    assert stat.S_IMODE(os.stat(os.path.dirname(socket_path)).st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            with bind_socket(str(tmp_path / "run" / "k.sock")):
                os._exit(1)
        except CannotListen as error:
            os._exit(0 if error.message.endswith("Permission denied") else 2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
