"""The conformance suite of executors, run by this machine's; the cluster's runs it in tests/ray."""

import sys
from pathlib import Path

import pytest

from ktuned.fleet import Environment, LocalExecutor
from ktuned.testing.executors import check_executor
from tests.fleet.playing import base_env

pytestmark = pytest.mark.anyio


async def test_workers_of_this_machine_conform(tmp_path: Path) -> None:
    """The local executor does all that the fleet counts on."""
    root = tmp_path / "root"
    root.mkdir()
    executor = LocalExecutor(
        scratch=tmp_path / "tmp",
        cache=tmp_path / "cache",
        artifacts=tmp_path / "artifacts",
        base_env=base_env(),
    )
    async with executor.run_workers():
        await check_executor(executor, Environment(sys.executable, str(root), project="play"))
