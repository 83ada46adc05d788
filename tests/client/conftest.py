"""Fixtures of the client's tests: a trusted path for a socket, and a daemon that serves it."""

from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.client import daemon


@pytest.fixture
def socket_path(tmp_path: Path, client_server_forker: None) -> str:
    """Return a socket's path in a directory that the client trusts."""
    (tmp_path / "run").mkdir(mode=0o700)
    return str(tmp_path / "run" / "k.sock")


@pytest.fixture
def server_process(socket_path: str) -> Iterator[BaseProcess]:
    """Run a daemon on ``socket_path`` and yield its process."""
    with daemon.run_server(socket_path) as process:
        yield process
