"""A cluster with Ray's token authentication: who has the token joins it, and who has none learns what is missing."""

from pathlib import Path

import anyio
import pytest

from ktuned.scheduling import TuningRequest
from tests.daemon_parts import PATIENCE_S, assemble_daemon, make_kernel_text
from tests.ray.conftest import follow, joined, running

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

TOKEN = "a" * 64


@pytest.mark.usefixtures("only_in_chaos")
async def test_a_cluster_with_a_token_lets_those_in_who_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray finds the token in the daemon's environment; without it nothing is joined, and the notice names it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    directories = [tmp_path / "without", tmp_path / "with"]
    for directory in directories:
        directory.mkdir()
    with running(1, tmp_path, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}) as nodes:
        async with assemble_daemon(directories[0], env={}) as parts:
            follow(parts, nodes.address)
            with anyio.fail_after(2 * PATIENCE_S):
                while not any("token" in line for line in parts.daemon.cluster.notices):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            assert parts.machine.environments.hosts == ()
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
        async with joined(directories[1], nodes, "n0") as parts, parts.run_jobs():
            await parts.requests.request_jobs(
                await parts.inspect_file(make_kernel_text(configs="us=[10.0, 20.0]")), TuningRequest()
            )
            (job,) = await parts.recorder.wait_for_ended_jobs()
            assert job["state"] == "done", job["message"]
