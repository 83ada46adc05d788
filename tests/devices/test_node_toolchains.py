"""Nodes with other toolchains or packages: their measurements are of another context, and no winner is shared."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ktuned.devices.environments import Environments
from ktuned.devices.machine import Machine
from ktuned.fleet.executor import Environment
from ktuned.fleet.pool import Fleet
from ktuned.ipc import replies
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Role, Target
from tests.assembled import Parts, kernel_text

pytestmark = pytest.mark.anyio

DEVICE = Device(DeviceName("cpu:0"), DeviceModel("Fake CPU"), Target("fake"), {"driver": "1"})
COMPILERS = {"": "1", "alike": "1", "other": "2"}
"""The compiler's version on this machine and on two nodes."""


class Probed:
    """A fleet whose workers answer a probe as their node would."""

    @asynccontextmanager
    async def lend(self, role: Role, environment: Environment) -> AsyncIterator[Any]:
        """Lend a worker of a node."""
        backend = replies.BackendReport("1", {"compiler": COMPILERS[environment.node]}, devices=(DEVICE,))

        async def exchange(request: object, deadlines: Mapping[str, float]) -> tuple[replies.ProbeReport, None]:
            return replies.ProbeReport("3.12", {"fake": backend}), None

        yield SimpleNamespace(exchange=exchange)


async def test_nodes_with_different_toolchains_do_not_share_fresh(parts: Parts) -> None:
    """A job takes the devices with its own toolchain alone, and what it finds has another context than the others'."""
    environments = Environments(cast(Fleet, Probed()), parts.store, deadlines={})
    machine = Machine(environments)
    environment = replace(parts.environment, env=(("ANOTHER", "environment"),))
    for node in COMPILERS:
        if node:
            environments.node_up(node)
        await environments.probe(replace(environment, node=node))
    kernel = await parts.inspect(kernel_text())
    context = {
        str(device.name): machine.context(kernel, environment, {"n": 64}, device)
        for device in machine.devices(environment, "fake")
    }
    assert context["cpu:0"] == context["alike/cpu:0"] != context["other/cpu:0"]
    aims = {name: machine.aim(environment, "fake", name).devices for name in context}
    # By the model the first device counts, and those with its toolchain.
    found = {name: {device.name for device in devices} for name, devices in aims.items()}
    assert found == {
        "cpu:0": {"cpu:0", "alike/cpu:0"},
        "alike/cpu:0": {"cpu:0", "alike/cpu:0"},
        "other/cpu:0": {"other/cpu:0"},
    }
    sites = machine.compilers(environment, "fake", context["other/cpu:0"].toolchain)
    assert [site.node for site in sites] == ["other"]
