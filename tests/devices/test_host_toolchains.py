"""Hosts with other toolchains or packages: their measurements have another context, and no winner is shared."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from ktuned.backends import cpu, select_finding_variables
from ktuned.devices.environments import Environments
from ktuned.devices.machine import Machine
from ktuned.fleet.executor import Environment
from ktuned.fleet.fleet import Fleet
from ktuned.ipc import replies
from ktuned.model import BackendReport
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Role, Target
from tests.daemon_parts import Parts, make_kernel_text

pytestmark = pytest.mark.anyio

DEVICE = Device(DeviceName("cpu:0"), DeviceModel("Fake CPU"), Target("fake"), {"driver": "1"})
COMPILERS = {"": "1", "alike": "1", "other": "2"}
"""The compiler's version on this machine and on two hosts."""


class FakeFleet:
    """A fleet whose workers answer a probe as their host would."""

    deadlines: Mapping[str, float] = {}

    def outdate_workers(self, environment: Environment) -> None:
        """Do nothing."""

    def leave_cores(self, lanes: int) -> None:
        """Do nothing."""

    @asynccontextmanager
    async def lend_worker(self, role: Role, environment: Environment) -> AsyncIterator[Any]:
        """Lend a worker of the environment's host."""
        backend = BackendReport("1", {"compiler": COMPILERS[environment.host]}, devices=(DEVICE,))

        async def send_request(request: object, deadlines: Mapping[str, float]) -> tuple[replies.ProbeReport, None]:
            observed = replies.ProbeDependencies({}, (), select_finding_variables(os.environ), cpu.limits())
            return replies.ProbeReport("3.12", {"fake": backend}, observed=observed), None

        yield SimpleNamespace(send_request=send_request)


async def test_hosts_with_different_toolchains_do_not_share_winners(parts: Parts) -> None:
    """A job takes only the devices with its own toolchain, and its context differs from the other hosts'."""
    environments = Environments(cast(Fleet, FakeFleet()), parts.store)
    machine = Machine(environments)
    environment = replace(parts.environment, env=(("ANOTHER", "environment"),))
    for host in COMPILERS:
        if host:
            environments.add_host(host)
        await environments.probe_environment(replace(environment, host=host))
    kernel = await parts.inspect_file(make_kernel_text())
    contexts = {
        str(device.name): machine.build_context(kernel, environment, {"n": 64}, device)
        for device in machine.list_devices(environment, "fake")
    }
    assert contexts["cpu:0"] == contexts["alike/cpu:0"] != contexts["other/cpu:0"]
    devices_by_name = {name: machine.find_job_devices(environment, "fake", name).devices for name in contexts}
    # A model means the first such device and the devices with the same toolchain.
    job_devices = {name: {device.name for device in devices} for name, devices in devices_by_name.items()}
    assert job_devices == {
        "cpu:0": {"cpu:0", "alike/cpu:0"},
        "alike/cpu:0": {"cpu:0", "alike/cpu:0"},
        "other/cpu:0": {"other/cpu:0"},
    }
    sites = machine.list_compilers(environment, "fake", contexts["other/cpu:0"].toolchain)
    assert [site.host for site in sites] == ["other"]


async def test_a_changed_toolchain_of_a_host_is_doubted_until_it_is_probed(parts: Parts) -> None:
    """As soon as its executor reports the change, answers for that host's devices are uncertain, and no others."""
    environments = Environments(cast(Fleet, FakeFleet()), parts.store)
    changes: list[str] = []
    environments.when_host_changes(lambda: changes.append("changed"))
    host, second = (replace(parts.environment, host=name) for name in ("other", "alike"))
    for environment in (host, second):
        environments.add_host(environment.host)
        assert "has not been probed yet" in environments.find_doubt(environment)
    for environment in (parts.environment, host, second):
        await environments.probe_environment(environment)
        assert environments.find_doubt(environment) == ""
    environments.doubt_host("other", "/usr/bin/gcc changed")
    assert environments.find_doubt(host) == environments.check_toolchain(host) == "other: /usr/bin/gcc changed"
    assert (changes, environments.find_doubt(parts.environment), environments.find_doubt(second)) == (
        ["changed"],
        "",
        "",
    )
    await environments.probe_environment(host)
    assert environments.find_doubt(host) == ""


async def test_a_host_that_comes_back_is_probed_again(parts: Parts) -> None:
    """Its toolchain may have changed while it was away."""
    environments = Environments(cast(Fleet, FakeFleet()), parts.store)
    host = replace(parts.environment, host="other")
    environments.add_host("other")
    await environments.probe_environment(host)
    environments.remove_host("other")
    assert environments.hosts == ()
    environments.add_host("other")
    assert "has not been probed yet" in environments.find_doubt(host)
