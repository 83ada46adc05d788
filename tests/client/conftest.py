"""What the client's tests share: a trusted place for a socket, and a daemon on it."""

from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.client import daemon


@pytest.fixture
def path(tmp_path: Path, client_server_forker: None) -> str:
    """Return a socket's path in a directory that is trusted."""
    (tmp_path / "run").mkdir(mode=0o700)
    return str(tmp_path / "run" / "k.sock")


@pytest.fixture
def served(path: str) -> Iterator[BaseProcess]:
    """Run a daemon on ``path``."""
    with daemon.running(path) as process:
        yield process
