"""Nodes with other toolchains or packages: their measurements are of another context, and no winner is shared."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from ktuned.backends import cpu, finding
from ktuned.devices.environments import Environments
from ktuned.devices.machine import Machine
from ktuned.fleet.executor import Environment
from ktuned.fleet.fleet import Fleet
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

    def __init__(self) -> None:
        self.watched: dict[str, Callable[[str], None]] = {}

    def renew(self, environment: Environment) -> None:
        """Have no workers that wait."""

    def watch_toolchain(self, node: str, observed: replies.Observed, ended: Callable[[str], None]) -> None:
        """Keep what is to be called when a node's toolchain is another."""
        self.watched[node] = ended

    @asynccontextmanager
    async def lend(self, role: Role, environment: Environment) -> AsyncIterator[Any]:
        """Lend a worker of a node."""
        backend = replies.BackendReport("1", {"compiler": COMPILERS[environment.node]}, devices=(DEVICE,))

        async def exchange(request: object, deadlines: Mapping[str, float]) -> tuple[replies.ProbeReport, None]:
            observed = replies.Observed({}, (), finding(os.environ), cpu.limits())
            return replies.ProbeReport("3.12", {"fake": backend}, observed=observed), None

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


async def test_a_changed_toolchain_of_a_node_is_doubted_until_it_is_probed(parts: Parts) -> None:
    """From the keeper's word on answers for the node's devices are uncertain, and those for this machine's are not."""
    fleet = Probed()
    environments = Environments(cast(Fleet, fleet), parts.store, deadlines={})
    changes: list[str] = []
    environments.when_node_changes(lambda: changes.append("changed"))
    node = replace(parts.environment, node="other")
    environments.node_up("other")
    assert "not asked yet" in environments.doubt(node)
    await environments.probe(parts.environment)
    await environments.probe(node)
    assert environments.doubt(node) == ""
    first = fleet.watched["other"]
    first("/usr/bin/gcc changed")
    assert environments.doubt(node) == environments.look(node) == "other: /usr/bin/gcc changed"
    assert (changes, environments.doubt(parts.environment)) == (["changed"], "")
    await environments.probe(node)
    assert environments.doubt(node) == ""
    assert fleet.watched["other"] is not first


async def test_a_watch_that_ended_otherwise_says_nothing(parts: Parts) -> None:
    """One whose probe is not the last compares what was seen before; with its node it is lost, which is no change."""
    fleet = Probed()
    environments = Environments(cast(Fleet, fleet), parts.store, deadlines={})
    node = replace(parts.environment, node="alike")
    environments.node_up("alike")
    await environments.probe(node)
    first = fleet.watched["alike"]
    await environments.probe(node, again=True)
    first("/usr/bin/gcc changed")
    assert environments.doubt(node) == ""
    fleet.watched["alike"]("")
    assert environments.doubt(node) == ""
