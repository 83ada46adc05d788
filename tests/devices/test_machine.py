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
from tests.fleet.playground import wait_until

pytestmark = pytest.mark.anyio


def add_variables(parts: Parts, **env: str) -> Environment:
    """Return the project's environment with these variables."""
    return msgspec.structs.replace(parts.environment, env=tuple(sorted(env.items())))


def catch_backend_error(machine: Machine, environment: Environment, backend: str = "fake") -> BackendError:
    """Return the error that says why a backend has no device."""
    with pytest.raises(BackendError) as caught:
        machine.find_device(environment, backend, None)
    return caught.value


async def test_devices_by_name_model_or_none(parts: Parts) -> None:
    """Without name or model, the first device is meant."""
    environment = add_variables(parts, FAKE_DEVICES="2")
    await parts.machine.environments.probe_environment(environment)
    names = [parts.machine.find_device(environment, "fake", query).name for query in (None, "cpu:1", "Fake CPU")]
    assert names == ["cpu:0", "cpu:1", "cpu:0"]
    with pytest.raises(NotFound) as caught:
        parts.machine.find_device(environment, "fake", "cuda:0")
    assert caught.value.hint == "it has cpu:0 (Fake CPU), cpu:1 (Fake CPU)"
    parts.kill_workers()


async def test_the_first_jobs_workers_start_beside_the_first_probe(parts: Parts) -> None:
    """A bench worker starts once per environment, unless the last probe found no device; an explorer and a compiler
    always start.
    """
    parts.fleet.machine.keeps_spares = True

    def count_spares() -> int:
        return sum(worker.role == "bench" for worker in parts.fleet.describe_workers())

    without_device, with_device = add_variables(parts, FAKE_DEVICES=""), add_variables(parts, FAKE_DEVICES="1")
    for environment, has_spare in ((without_device, False), (with_device, True)):
        await parts.machine.environments.probe_environment(environment)
        new_environments = Environments(parts.fleet, parts.store)
        new_environments.prepare_first_job(environment)
        new_environments.prepare_first_job(environment)
        await wait_until(lambda: bool(count_spares()) == has_spare)  # noqa: B023 - waited for at once
    parts.kill_workers()


async def test_with_a_guessed_backend_all_compile_workers_start(parts: Parts) -> None:
    """Compile workers import the backend's compiler during the inspection, not when their work arrives."""
    parts.fleet.machine.keeps_spares = True
    parts.fleet.compile_slots.total_tokens = 3
    environments = Environments(parts.fleet, parts.store)
    environments.prepare_first_job(parts.environment, "fake")

    def list_idle_roles() -> list[str]:
        idle = (worker.role for worker in parts.fleet.describe_workers() if worker.state == "idle")
        return sorted(role for role in idle if role not in ("inspect", "bench"))

    await wait_until(lambda: list_idle_roles() == ["compile", "compile", "compile", "explore"])
    parts.kill_workers()


async def test_an_announced_applications_environment_is_probed_before_its_first_record(parts: Parts) -> None:
    """The probe imports torch, as the application does at that time."""
    environments = parts.machine.environments
    environments.prepare_adoption(parts.environment, "fake", None)
    await wait_until(lambda: environments.is_probed(parts.environment))
    parts.kill_workers()


async def test_only_chosen_devices_are_used(parts: Parts) -> None:
    """Devices are chosen by name, kind or a part of the model, in any case; other devices count as absent."""
    environment = add_variables(parts, FAKE_DEVICES="cpu:0 cpu:1 cuda:0")
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
    error = catch_backend_error(machine, environment)
    assert error.message == (
        "`devices` in config.toml leaves out all devices of the backend 'fake': "
        "cpu:0 (Fake CPU), cpu:1 (Fake CPU), cuda:0 (Fake CPU)"
    )
    assert error.hint
    assert machine.choose_target(environment, "fake") == "fake"
    parts.kill_workers()


async def test_job_is_for_all_devices_that_are_alike(parts: Parts) -> None:
    """It does not matter which of them was asked for; a compile-only job needs no device."""
    environment = add_variables(parts, FAKE_DEVICES="2")
    await parts.machine.environments.probe_environment(environment)
    job_devices = parts.machine.find_job_devices(environment, "fake", "cpu:1")
    assert ([device.name for device in job_devices.devices], job_devices.target, job_devices.absence) == (
        ["cpu:0", "cpu:1"],
        "fake",
        "",
    )
    job_devices = parts.machine.find_job_devices(environment, "fake", "sm_90a", compile_only=True)
    assert (job_devices.devices, job_devices.target, job_devices.representative.model) == ((), "sm_90a", "sm_90a")
    parts.kill_workers()


async def test_absence_says_why_and_what_mends_it(parts: Parts) -> None:
    """No device, no backend, no interpreter and no probe yet each have their own line."""
    machine = parts.machine
    environment = add_variables(parts, FAKE_DEVICES="0")
    error = catch_backend_error(machine, environment)
    assert "have not been probed yet" in error.message
    await machine.environments.probe_environment(environment)
    error = catch_backend_error(machine, environment)
    assert (error.message, error.hint) == (
        "backend 'fake' cannot run here: there is no fake device",
        "set FAKE_DEVICES=1",
    )
    error = catch_backend_error(machine, parts.environment, "no_such")
    assert "has no backend 'no_such' (installed: " in error.message
    python = parts.environment.python
    assert error.hint == f"install the plugin that has it for {python}, or correct `backend=` in the kernel file"
    missing = msgspec.structs.replace(parts.environment, python="/nowhere/python")
    await machine.environments.probe_environment(missing)
    error = catch_backend_error(machine, missing)
    assert "/nowhere/python" in error.message
    assert "`python` in config.toml" in error.hint
    parts.kill_workers()


async def test_probe_is_made_once_and_kept(parts: Parts) -> None:
    """The next daemon knows the devices before its first worker is up."""
    await parts.machine.environments.probe_environment(parts.environment)
    # With another PYTHONPATH, other workers would start.
    make_base_env = {**os.environ, "PYTHONPATH": str(FAKE_BACKEND)}
    machine = Machine(Environments(parts.fleet, parts.store, base_env=make_base_env))
    assert machine.find_device(parts.environment, "fake", None).model == "Fake CPU"
    requests = sum(worker.requests for worker in parts.fleet.describe_workers())
    await parts.machine.environments.probe_environment(parts.environment)
    assert sum(worker.requests for worker in parts.fleet.describe_workers()) == requests
    await machine.environments.probe_environment(parts.environment)
    assert sum(worker.requests for worker in parts.fleet.describe_workers()) == requests + 1


async def test_failed_probe_forgets_no_device(parts: Parts, tmp_path: Path) -> None:
    """While no worker can answer, lookups use the known report; the next probe asks again."""
    machine = Machine(Environments(parts.fleet, parts.store))
    parts.fleet.deadlines["inspect"] = 0.0
    report = await machine.environments.probe_environment(parts.environment)
    assert report.error is not None
    assert "timed out after 0 s" in report.error.message
    assert machine.find_device(parts.environment, "fake", None).model == "Fake CPU"
    parts.fleet.deadlines["inspect"] = 30.0
    new_environments = Environments(parts.fleet, parts.store)
    assert (await new_environments.probe_environment(parts.environment)).error is None
    parts.kill_workers()


async def test_a_backend_installed_later_is_found_by_probing_again(parts: Parts) -> None:
    environment = add_variables(parts, FAKE_VERSION="1")
    before = await parts.machine.environments.probe_environment(environment)
    assert await parts.machine.environments.probe_environment(environment, again=True) == before
    parts.kill_workers()


async def test_each_part_makes_a_context_of_its_own(parts: Parts) -> None:
    """The parts are digest, toolchain, device and specialised problem."""
    kernel = await parts.inspect_file(make_kernel_text())
    device = parts.machine.find_device(parts.environment, "fake", None)
    context = parts.machine.build_context(kernel, parts.environment, {"n": 64}, device)
    assert context.problem == '{"n":64}'
    newer = add_variables(parts, FAKE_VERSION="2")
    await parts.machine.environments.probe_environment(newer)
    other_contexts = [
        parts.machine.build_context(replace(kernel, digest="d2"), parts.environment, {"n": 64}, device),
        parts.machine.build_context(kernel, newer, {"n": 64}, device),
        parts.machine.build_context(kernel, parts.environment, {"n": 65}, device),
        parts.machine.build_context(kernel, parts.environment, {"n": 64}, replace(device, model=DeviceModel("other"))),
        parts.machine.build_context(kernel, parts.environment, {"n": 64}, replace(device, fingerprint={"driver": "2"})),
    ]
    assert len({context, *other_contexts}) == 1 + len(other_contexts)
    parts.kill_workers()


@pytest.mark.parametrize(
    ("left", "right", "same"), [({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, True), ({}, {"a": ""}, False)]
)
def test_a_fingerprints_digest_does_not_depend_on_order(
    left: Mapping[str, str], right: Mapping[str, str], same: bool
) -> None:
    assert (fingerprint_digest(left) == fingerprint_digest(right)) is same
