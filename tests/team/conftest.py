"""Homes of a team, daemons over equal projects which share one store; real servers for such stores."""

from __future__ import annotations

import importlib.util
import select
import shutil
import socket
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.assembled import PATIENCE_S
from tests.e2e.harness import Daemon

Home = Callable[..., Daemon]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Return a function that starts a member's daemon with a ``[share]`` table, over a project that all have alike."""
    with ExitStack() as stack:

        def start(name: str, table: str, **env: str) -> Daemon:
            directory = tmp_path / name
            directory.mkdir()
            (directory / "project").mkdir()
            (directory / "project" / "ktuned.toml").write_text('name = "shop"\n')
            return stack.enter_context(Daemon(directory, config=f"[share]\n{table}\n", env=env))

        yield start


@dataclass(frozen=True)
class Server:
    """A storage's server: a URL below which nothing is yet, and what its clients need; or why it is ``missing``."""

    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Run a Redis of 16 MiB that refuses what does not fit, and an S3 server with a bucket; return both by kind."""
    with ExitStack() as stack:
        yield {
            "redis": stack.enter_context(_redis(tmp_path_factory.mktemp("redis"))),
            "s3": stack.enter_context(_s3()),
        }


@contextmanager
def _redis(directory: Path) -> Iterator[Server]:
    program = shutil.which("redis-server")
    if program is None or importlib.util.find_spec("redis") is None:
        yield Server(missing="no Redis: apt install redis-server, pip install redis")
        return
    place = directory / "redis.sock"
    words = ["--port", "0", "--unixsocket", str(place), "--save", "", "--appendonly", "no"]
    limits = ["--maxmemory", "16mb", "--maxmemory-policy", "noeviction"]
    with _running([program, *words, *limits], place.exists):
        yield Server(f"unix://{place}?db=0")


@contextmanager
def _s3() -> Iterator[Server]:
    if any(importlib.util.find_spec(name) is None for name in ("moto", "flask_cors", "yaml", "obstore")):
        yield Server(missing="no S3 server: pip install 'moto[s3]' flask flask-cors obstore")
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/team", method="PUT"), timeout=5).close()
        except OSError:
            return False
        return True

    with _running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], answers):
        # The library's threads start with its first request, and stay.
        import obstore.store

        warm: Any = obstore.store.S3Store(
            "team", endpoint=url, skip_signature=True, region="us-east-1", client_options={"allow_http": True}
        )
        obstore.list_with_delimiter(warm)
        env = {"ENDPOINT_URL": url, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1"}
        yield Server("s3://team", {f"AWS_{name}": value for name, value in env.items()})


@pytest.fixture(params=["directory", "redis", "s3"])
def store(request: pytest.FixtureRequest, servers: dict[str, Server], tmp_path: Path) -> Server:
    """Return an empty storage of each kind."""
    if request.param == "directory":
        (tmp_path / "store").mkdir()
        return Server(f"file://{tmp_path}/store")
    server = servers[request.param]
    if server.missing:
        pytest.skip(server.missing)
    if request.param == "redis":
        import redis

        with redis.Redis.from_url(server.url) as client:
            client.flushall()
        return server
    return replace(server, url=f"{server.url}/{uuid.uuid4().hex}")


@contextmanager
def _running(command: list[str], is_ready: Callable[[], bool]) -> Iterator[None]:
    """Run a server for the length of a block."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ends = monotonic() + PATIENCE_S
        while not is_ready():
            assert process.poll() is None, f"{command[0]} ended"
            assert monotonic() < ends, f"{command[0]} does not answer"
            select.select([], [], [], 0.05)
        yield
    finally:
        process.kill()
        process.wait()
