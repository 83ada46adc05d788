"""Files that people name: what is not a regular file is named, and never opened."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ktuned.catalog.discovery import guess_backend
from ktuned.catalog.project_file import PROJECT_FILE, digest_project_file, read_project
from ktuned.daemon import load_settings
from ktuned.declaration import load_tensors
from ktuned.ipc import ABSENT, NotRegularFile, read_regular_file, stamp
from ktuned.model import SettingsError, UsageError


def bind_socket_at(path: Path) -> None:
    """Leave a socket's file."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkfifo, "a named pipe"), (os.mkdir, "a directory"), (bind_socket_at, "a socket")],
)
def test_a_special_file_is_named(tmp_path: Path, make: Callable[[Path], None], kind: str) -> None:
    """So is a device, and a link to one."""
    path = tmp_path / "special"
    make(path)
    with pytest.raises(NotRegularFile, match=f"it is {kind}, not a regular file"):
        read_regular_file(path)
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(NotRegularFile, match="it is a device"):
        read_regular_file(tmp_path / "link")


def test_a_regular_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    """Without a limit it is read as a whole."""
    (tmp_path / "file").write_bytes(b"content")
    assert read_regular_file(tmp_path / "file") == b"content"
    assert read_regular_file(tmp_path / "file", 3) == b"con"


def test_no_pipe_that_a_project_names_is_opened(tmp_path: Path) -> None:
    """A pipe's writer would be woken: as kernel file, project file, settings, tensors, or file with a stamp."""
    pipe = tmp_path / PROJECT_FILE
    os.mkfifo(pipe)
    os.link(pipe, tmp_path / "config.toml")
    with pytest.raises(SettingsError, match="named pipe"):
        read_project(str(tmp_path))
    with pytest.raises(SettingsError, match="named pipe"):
        load_settings({"KTUNED_HOME": str(tmp_path)})
    with pytest.raises(UsageError, match="named pipe"):
        load_tensors(str(pipe))
    assert guess_backend([str(pipe)]) == digest_project_file(str(tmp_path)) == ABSENT
    assert stamp(pipe).startswith("special:")
    # A writer that does not wait finds no reader: nothing has opened the pipe, or still has it open.
    with pytest.raises(OSError, match="No such device or address"):
        os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
