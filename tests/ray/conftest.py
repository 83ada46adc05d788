"""A Ray cluster of three nodes on this machine, shared by all tests of this directory."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from ktuned.fleet import ClusterSettings, warden
from tests.daemon_parts import FAKE_BACKEND, PATIENCE_S, Parts, assemble_daemon

NODES = 3
_MARK = "KTUNED_TEST_CLUSTER"


@dataclass(frozen=True)
class Nodes:
    """The cluster: its address, the pid of its head's server, its raylets by node name, and the directory of its gates.

    ``client`` is the address of its client server, which runs in `make chaos` alone.
    """

    address: str
    head: int
    raylets: dict[str, int]
    gates: Path
    client: str

    async def wait_until_reached(self, gate: str) -> None:
        """Wait until a config has reached a gate."""
        with anyio.fail_after(PATIENCE_S):
            while not (self.gates / f"{gate}.reached").exists():  # noqa: ASYNC110 - a file reports it, no event
                await anyio.sleep(0.01)

    def open_gate(self, gate: str) -> None:
        """Open a gate for all configs."""
        (self.gates / gate).touch()

    def list_descendants(self, node: str, words: str) -> list[int]:
        """Return the descendants of a node's raylet whose command contains some words."""
        import psutil

        processes = []
        for process in psutil.Process(self.raylets[node]).children(recursive=True):
            try:
                if words in " ".join(process.cmdline()):
                    processes.append(process.pid)
            except psutil.NoSuchProcess:
                continue
        return processes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Run the cluster and stop all its processes."""
    is_full = request.config.getoption("chaos", "slice") == "full"
    with run_cluster(NODES, tmp_path_factory.mktemp("gates"), {}, has_client_server=is_full) as cluster:
        yield cluster


@contextmanager
def run_cluster(
    count: int, gates: Path, variables: Mapping[str, str], *, has_client_server: bool = False
) -> Iterator[Nodes]:
    """Run a cluster with this number of nodes, whose processes have further variables."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed; pip install 'ktuned[ray]'")
    # A socket's path must be short.
    directory = Path("/tmp", f"kt-ray-{uuid.uuid4().hex[:8]}")
    mark = uuid.uuid4().hex
    script = Path(__file__).with_name("cluster_process.py")
    command = [sys.executable, str(script), str(count), str(directory)]
    port = 0
    if has_client_server:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command += ["--client-port", str(port)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, _MARK: mark, "PYTHONPATH": str(FAKE_BACKEND), "FAKE_GATE": str(gates), **variables},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            pytest.fail("the Ray cluster did not start")
        described = json.loads(line)
        raylets = {node["name"]: node["pid"] for node in described["nodes"]}
        yield Nodes(described["address"], described["head"], raylets, gates, f"ray://127.0.0.1:{port}")
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        warden.kill_marked(f"{_MARK}={mark}")
        subprocess.run(["rm", "-rf", str(directory)])


@asynccontextmanager
async def assemble_member(
    tmp_path: Path,
    nodes: Nodes,
    *chosen: str,
    address: str = "",
    runtime_env: str = "",
) -> AsyncIterator[Parts]:
    """Assemble a daemon that has joined the cluster and may use these devices alone."""
    cluster = ClusterSettings(address or nodes.address, runtime_env=runtime_env)
    async with assemble_daemon(tmp_path, env={}, cluster=cluster) as parts, anyio.create_task_group() as tasks:
        tasks.start_soon(parts.daemon.probes.run_until_cancelled)
        parts.machine.chosen = chosen
        with anyio.fail_after(2 * PATIENCE_S):
            # Ray's client server was seen to refuse the first one; the daemon tries again.
            hosts = {name.partition("/")[0] for name in chosen}
            while not hosts <= set(parts.machine.environments.hosts):  # noqa: ASYNC110 - Ray's to say
                await anyio.sleep(0.05)
            await parts.machine.environments.probe_hosts(parts.environment)
        yield parts
        tasks.cancel_scope.cancel()
