import os
import shutil
import socket
import stat
from pathlib import Path

import anyio
import pytest

from ktuned.serve import listener
from ktuned.serve.listener import CannotListen, bind_socket
from ktuned_client.paths import LOCK_NAME
from tests.client import daemon


@pytest.fixture
def path(tmp_path: Path, client_server_forker: None) -> str:
    """Return a socket's path in a directory that does not exist yet."""
    return str(tmp_path / "run" / "k.sock")


def test_socket_and_directory_are_private(path: str) -> None:
    """The directory that is made has mode 0700, the socket 0600; the lock beside it reports our pid."""
    with bind_socket(path) as listening:
        assert listening.getsockname() == path
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert Path(path).with_name(LOCK_NAME).read_text() == f"{os.getpid()}\n"
    assert not os.path.exists(path)


def test_a_second_daemon_is_told_who_serves(path: str) -> None:
    """The lock decides; its holder is named, and is not disturbed."""
    with daemon.running(path) as process:
        with (
            pytest.raises(CannotListen, match=rf"a daemon \(pid {process.pid}\) already serves {path}") as caught,
            bind_socket(path),
        ):
            pass
        assert "ktuned stop" in caught.value.hint
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_a_served_socket_is_not_taken_over_when_its_lock_is_gone(path: str) -> None:
    """A cleaner may remove the lock; the process that listens is asked for, and named."""
    with daemon.running(path) as process:
        os.unlink(Path(path).with_name(LOCK_NAME))
        with (
            pytest.raises(CannotListen, match=rf"a daemon \(pid {process.pid}\) already serves {path}"),
            bind_socket(path),
        ):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


@pytest.mark.anyio
@pytest.mark.parametrize("removed", ["directory", "lock", "socket"])
async def test_what_a_cleaner_removes_comes_back(path: str, removed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory, the lock and the socket are made again, so that no other daemon takes the place."""
    monkeypatch.setattr(listener, "LOOK_S", 0.01)
    lock = Path(path).with_name(LOCK_NAME)
    again: list[socket.socket] = []

    async def listen(found: socket.socket) -> None:
        found.listen()
        again.append(found)

    with bind_socket(path) as listening:
        listening.listen()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.keep_reachable, path, listen)
            if removed == "directory":
                shutil.rmtree(os.path.dirname(path))
            else:
                os.unlink(lock if removed == "lock" else path)
            with anyio.fail_after(30):
                while not (lock.exists() and os.path.exists(path)):  # noqa: ASYNC110 - files have no event
                    await anyio.sleep(0.01)
            with pytest.raises(CannotListen, match=rf"pid {os.getpid()}\) already serves"), bind_socket(path):
                pass
            tasks.cancel_scope.cancel()
    for found in again:
        found.close()


def test_a_stale_socket_is_replaced(path: str) -> None:
    """The file that a killed daemon left behind is in no one's way."""
    with daemon.running(path) as process:
        process.kill()
        process.join()
        assert os.path.exists(path)
        with bind_socket(path) as listening:
            listening.listen()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)


def test_a_socket_file_that_somebody_removed_is_no_error(path: str) -> None:
    """Ending without the socket's file is as good as removing it."""
    with bind_socket(path):
        os.unlink(path)
    assert not os.path.exists(path)


def test_a_file_in_the_sockets_place_is_kept(path: str) -> None:
    """Only sockets are removed: anything else is the user's, and an error."""
    os.makedirs(os.path.dirname(path), mode=0o700)
    Path(path).write_text("precious")
    with pytest.raises(CannotListen, match="is not a socket"), bind_socket(path):
        pass
    assert Path(path).read_text() == "precious"


def test_a_path_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    """The error says how long it is, how long it may be, and what to set."""
    with pytest.raises(CannotListen, match="107 are allowed") as caught, bind_socket(str(tmp_path / ("x" * 120))):
        pass
    assert "KTUNED_SOCKET" in caught.value.hint
    assert "\n" not in caught.value.message


def test_a_directory_open_to_others_is_refused(path: str) -> None:
    """A directory that was there before is checked, not changed."""
    os.makedirs(os.path.dirname(path), mode=0o755)
    with pytest.raises(CannotListen, match="open to others") as caught, bind_socket(path):
        pass
    assert "chmod 700" in caught.value.hint
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o755


def test_a_link_in_the_locks_place_is_refused(path: str, tmp_path: Path) -> None:
    """The lock is never opened through a link, so nothing else can be overwritten."""
    os.makedirs(os.path.dirname(path), mode=0o700)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    Path(path).with_name(LOCK_NAME).symlink_to(victim)
    with pytest.raises(CannotListen), bind_socket(path):
        pass
    assert victim.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    """Another user gets a sentence, not a traceback, where it may not write."""
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
