"""The daemon's side of a cluster; a scripted process takes the place of the one that joins it."""

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
from tests.fleet.playground import DEADLINE_S

pytestmark = pytest.mark.anyio

MEMBERS = Path(__file__).parent / "members"
DEADLINES: Mapping[str, float] = {Phase.LOAD: DEADLINE_S}


class Reports(list[str]):
    """The executor's reports."""

    async def await_report(self, *reports: str) -> None:
        """Wait for these reports."""
        with anyio.fail_after(DEADLINE_S):
            while not set(reports) <= set(self):  # noqa: ASYNC110 - a callback reports it
                await anyio.sleep(0.01)


@asynccontextmanager
async def join_cluster(tmp_path: Path, address: str) -> AsyncIterator[tuple[ClusterExecutor, Reports]]:
    """Join a cluster whose process behaves as the address says."""
    reports = Reports()
    executor = ClusterExecutor(
        ClusterSettings(address),
        has_memory_limits=False,
        artifacts=tmp_path,
        state=tmp_path,
        programs=Programs({**os.environ, "PYTHONPATH": str(MEMBERS), "MARK": "1"}),
        on_up=lambda host, cores: reports.append(f"{host} up with {cores}"),
        on_lost=lambda host: reports.append(f"{host} lost"),
        on_changed=lambda host, reason: reports.append(f"{host}: {reason}"),
        module="ktuned_scripted",
    )
    async with executor.run_workers():
        await executor.await_hosts()
        yield executor, reports


def make_environment(host: str) -> Environment:
    return Environment(sys.executable, "/project", (), "p", host)


def make_canary_request(device: str) -> requests.Canary:
    return requests.Canary(Device(DeviceName(device), DeviceModel("M"), Target("t")))


async def test_a_worker_is_started_on_the_lane_of_its_first_request(tmp_path: Path) -> None:
    """A GPU's lane gets one GPU, which is the first one that its worker sees."""
    async with join_cluster(tmp_path, "well") as (executor, reports):
        await reports.await_report("n1 up with 4", "n2 up with 1")
        worker = await executor.start_worker(Role.BENCH, make_environment("n1"), limit_bytes=1, deadline_s=DEADLINE_S)
        assert worker.pid == 0
        _, output = await worker.send_request(make_canary_request("n1/cuda:1"), DEADLINES)
        assert (output.stdout, worker.pid) == ("cuda:0", 101)
        await reports.await_report("n1: a compiler changed")
        worker.kill()
        await worker.gone.wait()
        assert list(executor.workers) == []
    assert set(reports[-2:]) == {"n1 lost", "n2 lost"}


@pytest.mark.parametrize(
    ("address", "reason"), [("taken", "no GPU came free"), ("dies", "head was lost"), ("shrinks", "its node died")]
)
async def test_what_is_lost_says_nothing_about_the_work(address: str, reason: str, tmp_path: Path) -> None:
    """A GPU in use, the process's end and a node's end all are a lost host."""
    async with join_cluster(tmp_path, address) as (executor, reports):
        worker = await executor.start_worker(Role.BENCH, make_environment("n1"), limit_bytes=1, deadline_s=DEADLINE_S)
        with pytest.raises(HostLost, match=reason):
            await worker.send_request(make_canary_request("n1/cuda:0"), DEADLINES)
        with anyio.fail_after(DEADLINE_S):
            await worker.gone.wait()
        if address == "shrinks":
            assert "n1 lost" in reports
            with pytest.raises(HostLost):
                await executor.start_worker(Role.COMPILE, make_environment("n1"), limit_bytes=1, deadline_s=DEADLINE_S)


async def test_a_node_on_which_nothing_starts_is_left_out(tmp_path: Path) -> None:
    """It is tried again later; the notice has the reason."""
    async with join_cluster(tmp_path, "sick") as (executor, reports):
        with pytest.raises(HostLost):
            await executor.start_worker(Role.INSPECT, make_environment("n1"), limit_bytes=1, deadline_s=DEADLINE_S)
        assert reports[-1] == "n1 lost"
        assert any("n1" in line and "no plugin there" in line for line in executor.notices)
        cluster = executor.describe_cluster()
        assert cluster is not None
        assert {host.name: host.state for host in cluster.hosts} == {"n1": "failed", "n2": "ready"}


async def test_a_cluster_that_refuses_is_a_notice(tmp_path: Path) -> None:
    """The notice has the process's last words, and nobody waits for nodes."""
    async with join_cluster(tmp_path, "refused") as (executor, reports):
        assert any("wrong token" in line for line in executor.notices)
        assert reports == []


def test_gpus_that_differ_are_left_out() -> None:
    """Ray chooses among them, so a lane would not know which model it measures. Otherwise Ray's count decides."""

    def list_usable_names(node: Node, *models: str) -> list[str]:
        gpus = [Device(DeviceName(f"cuda:{n}"), DeviceModel(model), Target("t")) for n, model in enumerate(models)]
        cpu = Device(DeviceName("cpu:0"), DeviceModel("CPU"), Target("t"))
        return [device.name for device in list_usable_devices(BackendReport("1", {}, devices=(cpu, *gpus)), node)]

    assert list_usable_names(Node("1", "n", 4, 2), "A", "A") == ["cpu:0", "cuda:0", "cuda:1"]
    assert list_usable_names(Node("1", "n", 4, 1), "A", "A") == ["cpu:0", "cuda:0"]
    assert list_usable_names(Node("1", "n", 0, 2), "A", "B") == []
