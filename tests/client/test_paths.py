import os
import socket
from pathlib import Path

import pytest

from ktuned_client import paths
from ktuned_client.paths import UntrustedSocket


@pytest.mark.parametrize(
    ("environ", "socket_path"),
    [
        ({"KTUNED_SOCKET": "/run/mine.sock", "XDG_RUNTIME_DIR": "/run/user/1"}, "/run/mine.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/1"}, "/run/user/1/ktuned/ktuned.sock"),
        ({"KTUNED_SOCKET": "", "XDG_RUNTIME_DIR": "", "TMPDIR": "/elsewhere"}, None),
    ],
)
def test_the_socket_is_where_the_environment_says(environ: dict[str, str], socket_path: str | None) -> None:
    """The variables are read in a fixed order; without them, the path depends on the uid alone."""
    assert paths.socket_path(environ) == (socket_path or f"/tmp/ktuned-{os.geteuid()}/ktuned.sock")


def test_a_path_that_is_too_long_says_so() -> None:
    """The error has both lengths and the variable to set."""
    paths.check_length("/" + "x" * 106)
    with pytest.raises(UntrustedSocket, match="108 bytes, and 107 are allowed") as caught:
        paths.check_length("/" + "x" * 107)
    assert "KTUNED_SOCKET" in caught.value.hint


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_the_directory_is_made_private(tmp_path: Path, umask: int) -> None:
    """Whatever the umask, the directory gets mode 0700."""
    before = os.umask(umask)
    try:
        paths.make_directory(str(tmp_path / "run"))
    finally:
        os.umask(before)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    paths.make_directory(str(tmp_path / "run"))


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    """The hint has the command that closes it."""
    (tmp_path / "run").mkdir(mode=0o755)
    with pytest.raises(UntrustedSocket, match="0755") as caught:
        paths.check_directory(str(tmp_path / "run"))
    assert caught.value.hint == f"chmod 700 {tmp_path / 'run'}"


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    """Even a symbolic link to a trusted directory is refused."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    with pytest.raises(UntrustedSocket):
        paths.make_directory(str(tmp_path / "run"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of another uid")
def test_what_belongs_to_others_is_refused(tmp_path: Path) -> None:
    """The directory or the socket belongs to another uid."""
    (tmp_path / "run").mkdir(mode=0o700)
    path = tmp_path / "run" / "k.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
    paths.check_socket(str(path))
    os.chown(path, 65534, 65534)
    with pytest.raises(UntrustedSocket, match="65534"):
        paths.check_socket(str(path))
    os.chown(tmp_path / "run", 65534, 65534)
    with pytest.raises(UntrustedSocket, match="65534"):
        paths.check_directory(str(tmp_path / "run"))


def test_a_file_in_place_of_the_socket_is_refused(tmp_path: Path) -> None:
    (tmp_path / "k.sock").touch()
    with pytest.raises(UntrustedSocket, match="is not a socket"):
        paths.check_socket(str(tmp_path / "k.sock"))


def test_the_peer_is_known_by_its_pid() -> None:
    client, server = socket.socketpair()
    with client, server:
        assert paths.check_peer(client) == os.getpid()
