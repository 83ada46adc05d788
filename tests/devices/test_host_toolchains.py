"""Hosts with other toolchains or packages: their measurements are of another context, and no winner is shared."""

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


class Probed:
    """A fleet whose workers answer a probe as their host would."""

    def outdate_workers(self, environment: Environment) -> None:
        """Have no workers that wait."""

    def leave_cores(self, lanes: int) -> None:
        """Have no compilers that use cores."""

    @asynccontextmanager
    async def lend_worker(self, role: Role, environment: Environment) -> AsyncIterator[Any]:
        """Lend a worker of a host."""
        backend = BackendReport("1", {"compiler": COMPILERS[environment.host]}, devices=(DEVICE,))

        async def send_request(request: object, deadlines: Mapping[str, float]) -> tuple[replies.ProbeReport, None]:
            observed = replies.ProbeDependencies({}, (), select_finding_variables(os.environ), cpu.limits())
            return replies.ProbeReport("3.12", {"fake": backend}, observed=observed), None

        yield SimpleNamespace(send_request=send_request)


async def test_hosts_with_different_toolchains_do_not_share_fresh(parts: Parts) -> None:
    """A job takes the devices with its own toolchain alone, and what it finds has another context than the others'."""
    environments = Environments(cast(Fleet, Probed()), parts.store, deadlines={})
    machine = Machine(environments)
    environment = replace(parts.environment, env=(("ANOTHER", "environment"),))
    for host in COMPILERS:
        if host:
            environments.add_host(host)
        await environments.probe_environment(replace(environment, host=host))
    kernel = await parts.inspect_file(make_kernel_text())
    context = {
        str(device.name): machine.build_context(kernel, environment, {"n": 64}, device)
        for device in machine.list_devices(environment, "fake")
    }
    assert context["cpu:0"] == context["alike/cpu:0"] != context["other/cpu:0"]
    aims = {name: machine.find_job_devices(environment, "fake", name).devices for name in context}
    # By the model the first device counts, and those with its toolchain.
    found = {name: {device.name for device in devices} for name, devices in aims.items()}
    assert found == {
        "cpu:0": {"cpu:0", "alike/cpu:0"},
        "alike/cpu:0": {"cpu:0", "alike/cpu:0"},
        "other/cpu:0": {"other/cpu:0"},
    }
    sites = machine.list_compilers(environment, "fake", context["other/cpu:0"].toolchain)
    assert [site.host for site in sites] == ["other"]


async def test_a_changed_toolchain_of_a_host_is_doubted_until_it_is_probed(parts: Parts) -> None:
    """From its executor's word on answers for the host's devices are uncertain, and no others."""
    environments = Environments(cast(Fleet, Probed()), parts.store, deadlines={})
    changes: list[str] = []
    environments.when_host_changes(lambda: changes.append("changed"))
    host, second = (replace(parts.environment, host=name) for name in ("other", "alike"))
    for one in (host, second):
        environments.add_host(one.host)
        assert "not asked yet" in environments.find_doubt(one)
    for one in (parts.environment, host, second):
        await environments.probe_environment(one)
        assert environments.find_doubt(one) == ""
    environments.doubt_host("other", "/usr/bin/gcc changed")
    assert environments.find_doubt(host) == environments.check_toolchain(host) == "other: /usr/bin/gcc changed"
    assert (changes, environments.find_doubt(parts.environment), environments.find_doubt(second)) == (
        ["changed"],
        "",
        "",
    )
    await environments.probe_environment(host)
    assert environments.find_doubt(host) == ""


async def test_a_host_that_left_before_it_was_probed_is_asked_when_it_is_back(parts: Parts) -> None:
    """What changed while it was away is not known."""
    environments = Environments(cast(Fleet, Probed()), parts.store, deadlines={})
    host = replace(parts.environment, host="other")
    environments.add_host("other")
    await environments.probe_environment(host)
    environments.remove_host("other")
    assert environments.hosts == ()
    environments.add_host("other")
    assert "not asked yet" in environments.find_doubt(host)
