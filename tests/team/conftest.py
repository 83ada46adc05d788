"""A team: daemons over equal projects that share a store, and a real S3 server for it."""

from __future__ import annotations

import importlib.util
import select
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest

from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import Daemon

StartMember = Callable[..., Daemon]


@pytest.fixture
def start_member(tmp_path: Path) -> Iterator[StartMember]:
    """Return a function that starts a member's daemon with a ``[share]`` table."""
    with ExitStack() as stack:

        def start_daemon(name: str, table: str, **env: str) -> Daemon:
            directory = tmp_path / name
            (directory / "project").mkdir(parents=True)
            (directory / "project" / "ktuned.toml").write_text('name = "shop"\n')
            return stack.enter_context(Daemon(directory, config=f"[share]\n{table}\n", env=env))

        yield start_daemon


@pytest.fixture
def team_store(tmp_path: Path) -> Path:
    directory = tmp_path / "store"
    directory.mkdir()
    return directory


@pytest.fixture
def s3_variables() -> Iterator[dict[str, str]]:
    """Run an S3 server with a bucket ``team``; return the variables of its clients."""
    if any(importlib.util.find_spec(name) is None for name in ("moto", "flask_cors", "yaml")):
        pytest.skip("no S3 server: pip install 'moto[s3]' flask flask-cors")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ends = monotonic() + PATIENCE_S
        while not has_bucket(f"{url}/team"):
            assert process.poll() is None, "the S3 server ended"
            assert monotonic() < ends, "the S3 server does not answer"
            select.select([], [], [], 0.05)
        env = {"ENDPOINT_URL": url, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1"}
        yield {f"AWS_{name}": value for name, value in env.items()}
    finally:
        process.kill()
        process.wait()


def has_bucket(url: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5).close()
    except OSError:
        return False
    return True
