"""Ray's token authentication: a daemon with the token joins, and another one learns what is missing."""

from pathlib import Path

import anyio
import pytest

from ktuned.fleet import ClusterSettings
from ktuned.scheduling import TuningRequest
from tests.daemon_parts import PATIENCE_S, assemble_daemon, make_kernel_text
from tests.ray.conftest import assemble_member, run_cluster

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

TOKEN = "a" * 64


@pytest.mark.usefixtures("only_in_chaos")
async def test_a_cluster_with_a_token_lets_those_in_who_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray reads the token from the daemon's environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    directories = [tmp_path / "without", tmp_path / "with"]
    for directory in directories:
        directory.mkdir()
    with run_cluster(1, tmp_path, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}) as nodes:
        async with assemble_daemon(directories[0], env={}, cluster=ClusterSettings(nodes.address)) as parts:
            with anyio.fail_after(2 * PATIENCE_S):
                while not any("token" in line for line in parts.daemon.cluster.notices):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            assert parts.machine.environments.hosts == ()
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
        async with assemble_member(directories[1], nodes, "n0") as parts, parts.run_jobs():
            await parts.requests.request_jobs(
                await parts.inspect_file(make_kernel_text(configs="us=[10.0, 20.0]")), TuningRequest()
            )
            job = await parts.wait_for_job()
            assert job["state"] == "done", job["message"]
