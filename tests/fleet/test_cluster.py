"""The daemon's side of a cluster, with a scripted process in the place of the one that joins it."""

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from ktuned.fleet import ClusterExecutor, ClusterSettings, Environment, HostLost, Programs
from ktuned.fleet.cluster import list_usable_devices
from ktuned.fleet.cluster_messages import Node
from ktuned.ipc import requests
from ktuned.model import BackendReport, Device, DeviceModel, DeviceName, Phase, Role, Target
from tests.fleet.playing import DEADLINE_S

pytestmark = pytest.mark.anyio

MEMBERS = Path(__file__).parent / "members"
DEADLINES: Mapping[str, float] = {Phase.LOAD: DEADLINE_S}


class Told(list[str]):
    """What the executor has reported."""

    async def await_report(self, *reports: str) -> None:
        """Wait for reports."""
        with anyio.fail_after(DEADLINE_S):
            while not set(reports) <= set(self):  # noqa: ASYNC110 - a callback reports it
                await anyio.sleep(0.01)


@asynccontextmanager
async def joined(tmp_path: Path, address: str) -> AsyncIterator[tuple[ClusterExecutor, Told]]:
    """Join a cluster whose process behaves as the address says."""
    told = Told()
    executor = ClusterExecutor(
        artifacts=tmp_path,
        state=tmp_path,
        programs=Programs({**os.environ, "PYTHONPATH": str(MEMBERS), "MARK": "1"}),
        on_up=lambda host, cores: told.append(f"{host} up with {cores}"),
        on_lost=lambda host: told.append(f"{host} lost"),
        on_changed=lambda host, reason: told.append(f"{host}: {reason}"),
        module="ktuned_scripted",
    )
    executor.apply_settings(ClusterSettings(address), has_memory_limits=False)
    async with executor.run_workers():
        await executor.await_hosts()
        yield executor, told


def _environment(host: str) -> Environment:
    return Environment(sys.executable, "/project", (), "p", host)


def _canary(device: str) -> requests.Canary:
    return requests.Canary(Device(DeviceName(device), DeviceModel("M"), Target("t")))


async def test_a_worker_is_started_on_the_lane_of_its_first_request(tmp_path: Path) -> None:
    """A GPU's lane has one GPU, the first that its worker sees, whichever lane of the node it is."""
    async with joined(tmp_path, "well") as (executor, told):
        await told.await_report("n1 up with 4", "n2 up with 1")
        worker = await executor.start_worker(Role.BENCH, _environment("n1"), limit_bytes=1, deadline_s=DEADLINE_S)
        assert worker.pid == 0
        _, output = await worker.send_request(_canary("n1/cuda:1"), DEADLINES)
        assert (output.stdout, worker.pid) == ("cuda:0", 101)
        await told.await_report("n1: a compiler changed")
        worker.kill()
        await worker.gone.wait()
        assert list(executor.workers) == []
    assert set(told[-2:]) == {"n1 lost", "n2 lost"}


@pytest.mark.parametrize(
    ("address", "reason"), [("taken", "no GPU came free"), ("dies", "head was lost"), ("shrinks", "its node died")]
)
async def test_what_is_lost_says_nothing_about_the_work(address: str, reason: str, tmp_path: Path) -> None:
    """A GPU in use, the process's end and a node's end are all a lost host."""
    async with joined(tmp_path, address) as (executor, told):
        worker = await executor.start_worker(Role.BENCH, _environment("n1"), limit_bytes=1, deadline_s=DEADLINE_S)
        with pytest.raises(HostLost, match=reason):
            await worker.send_request(_canary("n1/cuda:0"), DEADLINES)
        with anyio.fail_after(DEADLINE_S):
            await worker.gone.wait()
        if address == "shrinks":
            assert "n1 lost" in told
            with pytest.raises(HostLost):
                await executor.start_worker(Role.COMPILE, _environment("n1"), limit_bytes=1, deadline_s=DEADLINE_S)


async def test_a_node_on_which_nothing_starts_is_left_out(tmp_path: Path) -> None:
    """Until it is tried again; the notice has the reason."""
    async with joined(tmp_path, "sick") as (executor, told):
        with pytest.raises(HostLost):
            await executor.start_worker(Role.INSPECT, _environment("n1"), limit_bytes=1, deadline_s=DEADLINE_S)
        assert told[-1] == "n1 lost"
        assert any("n1" in line and "no plugin there" in line for line in executor.notices)
        cluster = executor.describe_cluster()
        assert cluster is not None
        assert {host.name: host.state for host in cluster.hosts} == {"n1": "failed", "n2": "ready"}


async def test_a_cluster_that_refuses_is_a_notice(tmp_path: Path) -> None:
    """With the last words of its process; nobody waits for its nodes."""
    async with joined(tmp_path, "refused") as (executor, told):
        assert any("wrong token" in line for line in executor.notices)
        assert told == []


def test_gpus_that_differ_are_left_out() -> None:
    """Ray chooses among them, so a lane would not know which model it measures; the others are counted by Ray."""

    def usable(node: Node, *models: str) -> list[str]:
        gpus = [Device(DeviceName(f"cuda:{n}"), DeviceModel(model), Target("t")) for n, model in enumerate(models)]
        cpu = Device(DeviceName("cpu:0"), DeviceModel("CPU"), Target("t"))
        return [device.name for device in list_usable_devices(BackendReport("1", {}, devices=(cpu, *gpus)), node)]

    assert usable(Node("1", "n", 4, 2), "A", "A") == ["cpu:0", "cuda:0", "cuda:1"]
    assert usable(Node("1", "n", 4, 1), "A", "A") == ["cpu:0", "cuda:0"]
    assert usable(Node("1", "n", 0, 2), "A", "B") == []
