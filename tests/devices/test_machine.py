from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ktuned.devices.environment_report import fingerprint_digest
from ktuned.devices.environments import Environments
from ktuned.devices.machine import Machine
from ktuned.fleet.executor import Environment
from ktuned.model.errors import BackendError, NotFound
from ktuned.model.keys import DeviceModel
from tests.daemon_parts import FAKE_BACKEND, Parts, make_kernel_text
from tests.fleet.playing import until

pytestmark = pytest.mark.anyio


def changed(parts: Parts, **env: str) -> Environment:
    """Return the project's environment with variables added."""
    return msgspec.structs.replace(parts.environment, env=tuple(sorted(env.items())))


def refusal(machine: Machine, environment: Environment, backend: str = "fake") -> BackendError:
    """Return why a backend has no device."""
    with pytest.raises(BackendError) as refused:
        machine.find_device(environment, backend, None)
    return refused.value


async def test_devices_by_name_model_or_none(parts: Parts) -> None:
    """A device is meant by its name or its model; without either it is the first."""
    environment = changed(parts, FAKE_DEVICES="2")
    await parts.machine.environments.probe_environment(environment)
    found = [parts.machine.find_device(environment, "fake", wanted).name for wanted in (None, "cpu:1", "Fake CPU")]
    assert found == ["cpu:0", "cpu:1", "cpu:0"]
    with pytest.raises(NotFound) as refused:
        parts.machine.find_device(environment, "fake", "cuda:0")
    assert refused.value.hint == "it has cpu:0 (Fake CPU), cpu:1 (Fake CPU)"
    parts.kill_workers()


async def test_the_first_jobs_workers_start_beside_the_first_probe(parts: Parts) -> None:
    """Once for an environment, and not where there was no device the last time; an explorer and a compiler always."""
    parts.fleet.machine.keeps_spares = True

    def spares() -> int:
        return sum(worker.role == "bench" for worker in parts.fleet.describe_workers())

    none, one = changed(parts, FAKE_DEVICES=""), changed(parts, FAKE_DEVICES="1")
    for environment, known in ((none, False), (one, True)):
        await parts.machine.environments.probe_environment(environment)
        again = Environments(parts.fleet, parts.store, deadlines={"inspect": 30.0})
        again.prepare_first_job(environment)
        again.prepare_first_job(environment)
        await until(lambda: bool(spares()) == known)  # noqa: B023 - waited for at once
    parts.kill_workers()


async def test_with_a_guessed_backend_all_compile_workers_start(parts: Parts) -> None:
    """Each compile worker imports what the backend compiles with beside the inspection, and not when it has work."""
    parts.fleet.machine.keeps_spares = True
    parts.fleet.compile_slots.total_tokens = 3
    environments = Environments(parts.fleet, parts.store, deadlines={"inspect": 30.0})
    environments.prepare_first_job(parts.environment, "fake")

    def ready() -> list[str]:
        idle = (worker.role for worker in parts.fleet.describe_workers() if worker.state == "idle")
        return sorted(role for role in idle if role not in ("inspect", "bench"))

    await until(lambda: ready() == ["compile", "compile", "compile", "explore"])
    parts.kill_workers()


async def test_only_chosen_devices_are_used(parts: Parts) -> None:
    """By name, kind or a part of the model, however it is written; the others are as good as absent."""
    environment = changed(parts, FAKE_DEVICES="cpu:0 cpu:1 cuda:0")
    machine = parts.machine
    await machine.environments.probe_environment(environment)
    everything = ["cpu:0", "cpu:1", "cuda:0"]
    for chosen, expected in (
        ([], everything),
        (["cpu:1"], ["cpu:1"]),
        (["cuda"], ["cuda:0"]),
        (["fake"], everything),
        (["cuda:0", "cpu:0", "cuda:9"], ["cpu:0", "cuda:0"]),
    ):
        machine.chosen = tuple(chosen)
        assert [device.name for device in machine.list_devices(environment, "fake")] == expected
    notice, *_ = machine.notices
    assert "names 'cuda:9', which no backend finds here" in notice
    assert "cpu:1 (Fake CPU)" in notice
    machine.chosen = ("H200",)
    error = refusal(machine, environment)
    assert error.message == (
        "config.toml's devices leave backend 'fake' none of cpu:0 (Fake CPU), cpu:1 (Fake CPU), cuda:0 (Fake CPU)"
    )
    assert error.hint
    assert machine.choose_target(environment, "fake") == "fake"
    parts.kill_workers()


async def test_job_is_for_all_devices_that_are_alike(parts: Parts) -> None:
    """Which of them it was asked for does not matter; what is only compiled needs none."""
    environment = changed(parts, FAKE_DEVICES="2")
    await parts.machine.environments.probe_environment(environment)
    found = parts.machine.find_job_devices(environment, "fake", "cpu:1")
    assert ([device.name for device in found.devices], found.target, found.absence) == (["cpu:0", "cpu:1"], "fake", "")
    found = parts.machine.find_job_devices(environment, "fake", "sm_90a", compile_only=True)
    assert (found.devices, found.target, found.representative.model) == ((), "sm_90a", "sm_90a")
    parts.kill_workers()


async def test_absence_says_why_and_what_mends_it(parts: Parts) -> None:
    """No device, no backend, no interpreter, not asked yet: each has its line."""
    machine = parts.machine
    without = changed(parts, FAKE_DEVICES="0")
    error = refusal(machine, without)
    assert "have not been asked yet" in error.message
    await machine.environments.probe_environment(without)
    error = refusal(machine, without)
    assert (error.message, error.hint) == (
        "backend 'fake' cannot run here: there is no fake device",
        "set FAKE_DEVICES=1",
    )
    error = refusal(machine, parts.environment, "no_such")
    assert "has no backend 'no_such' (installed: " in error.message
    python = parts.environment.python
    assert error.hint == f"install the plugin that has it for {python}, or correct `backend=` in the kernel file"
    missing = msgspec.structs.replace(parts.environment, python="/nowhere/python")
    await machine.environments.probe_environment(missing)
    error = refusal(machine, missing)
    assert "/nowhere/python" in error.message
    assert "`python` in config.toml" in error.hint
    parts.kill_workers()


async def test_probe_is_made_once_and_kept(parts: Parts) -> None:
    """The next daemon knows the devices before its first worker is up."""
    await parts.machine.environments.probe_environment(parts.environment)
    # With another PYTHONPATH other workers would start.
    base_env = {**os.environ, "PYTHONPATH": str(FAKE_BACKEND)}
    machine = Machine(Environments(parts.fleet, parts.store, deadlines={"inspect": 30.0}, base_env=base_env))
    assert machine.find_device(parts.environment, "fake", None).model == "Fake CPU"
    requests = sum(worker.requests for worker in parts.fleet.describe_workers())
    await parts.machine.environments.probe_environment(parts.environment)
    assert sum(worker.requests for worker in parts.fleet.describe_workers()) == requests
    await machine.environments.probe_environment(parts.environment)
    assert sum(worker.requests for worker in parts.fleet.describe_workers()) == requests + 1


async def test_failed_probe_forgets_no_device(parts: Parts, tmp_path: Path) -> None:
    """While no worker can answer, lookups stand on what was known; the next probe asks again."""
    machine = Machine(Environments(parts.fleet, parts.store, deadlines={"inspect": 0.0}))
    report = await machine.environments.probe_environment(parts.environment)
    assert report.error is not None
    assert "timed out after 0 s" in report.error.message
    assert machine.find_device(parts.environment, "fake", None).model == "Fake CPU"
    again = Environments(parts.fleet, parts.store, deadlines={"inspect": 30.0})
    assert (await again.probe_environment(parts.environment)).error is None
    parts.kill_workers()


async def test_a_backend_installed_later_is_found_by_probing_again(parts: Parts) -> None:
    """A backend may be installed while the daemon runs."""
    environment = changed(parts, FAKE_VERSION="1")
    before = await parts.machine.environments.probe_environment(environment)
    assert await parts.machine.environments.probe_environment(environment, again=True) == before
    parts.kill_workers()


async def test_each_part_makes_a_context_of_its_own(parts: Parts) -> None:
    """Digest, toolchain, device and specialised problem each make a context of their own."""
    kernel = await parts.inspect_file(make_kernel_text())
    device = parts.machine.find_device(parts.environment, "fake", None)
    ground = parts.machine.build_context(kernel, parts.environment, {"n": 64}, device)
    assert ground.problem == '{"n":64}'
    newer = changed(parts, FAKE_VERSION="2")
    await parts.machine.environments.probe_environment(newer)
    grounds = [
        parts.machine.build_context(replace(kernel, digest="d2"), parts.environment, {"n": 64}, device),
        parts.machine.build_context(kernel, newer, {"n": 64}, device),
        parts.machine.build_context(kernel, parts.environment, {"n": 65}, device),
        parts.machine.build_context(kernel, parts.environment, {"n": 64}, replace(device, model=DeviceModel("other"))),
        parts.machine.build_context(kernel, parts.environment, {"n": 64}, replace(device, fingerprint={"driver": "2"})),
    ]
    assert len({ground, *grounds}) == 1 + len(grounds)
    parts.kill_workers()


@pytest.mark.parametrize(
    ("left", "right", "same"), [({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, True), ({}, {"a": ""}, False)]
)
def test_a_fingerprints_digest_does_not_depend_on_order(
    left: Mapping[str, str], right: Mapping[str, str], same: bool
) -> None:
    """The order of its parts does not matter."""
    assert (fingerprint_digest(left) == fingerprint_digest(right)) is same
