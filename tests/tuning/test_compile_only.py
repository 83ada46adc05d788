"""Jobs that only compile: on request, or because there is no device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ktuned.ipc.manifest import MANIFEST_NAME
from ktuned.model.errors import BackendError
from ktuned.protocol.jobs import Job, JobState
from ktuned.scheduling.job_requests import TuningRequest
from ktuned.tuning.limits import MAX_BATCH
from tests.daemon_parts import Parts, make_kernel_text

pytestmark = pytest.mark.anyio

DOES = {50.0: "work", 60.0: "compile_error", 70.0: "unsupported_here", 90.0: "work"}
MIXED = str([{"us": us, "does": does} for us, does in DOES.items()])
COMPILE = TuningRequest(compile_only=True)


def hide_devices(parts: Parts, **env: str) -> None:
    """Let the project's workers find no device."""
    parts.set_variables(FAKE_DEVICES="0", **env)


async def request_job(parts: Parts, request: TuningRequest) -> Job:
    """Have the kernel ``it`` tuned or compiled as requested."""
    (job,) = await parts.requests.request_jobs(parts.catalog.resolve_kernel("it"), request)
    return job


async def run_requests(parts: Parts, *requests: TuningRequest) -> dict[str, Any]:
    """Make requests one after the other, and return the last job when it has ended."""
    async with parts.run_jobs():
        for number, request in enumerate(requests, len(parts.recorder.list_events("job_done")) + 1):
            await request_job(parts, request)
            jobs = await parts.recorder.wait_for_ended_jobs(number)
    return jobs[-1]


def list_compiled_configs(parts: Parts, job: Mapping[str, Any]) -> dict[float, dict[str, Any]]:
    """Return the events of a job's configs by their ``us``."""
    return {
        event["config"]["us"]: event
        for event in parts.recorder.list_events("config_compiled")
        if event["job"] == job["id"]
    }


async def test_every_config_is_published(parts: Parts) -> None:
    """Each config has its artifact, cost and facts, or its outcome and the compiler's message; there is no trial."""
    await parts.inspect_file(make_kernel_text(configs=MIXED))
    job = await run_requests(parts, COMPILE)
    assert (job["state"], job["message"], job["device"]) == ("done", "2 artifacts are ready for fake", "fake")
    assert (job["done"], job["outcomes"]) == (4, {"compiled": 2, "compile_error": 1, "unsupported": 1})
    configs = list_compiled_configs(parts, job)
    assert {us: event["outcome"] for us, event in configs.items()} == {
        50.0: None,
        60.0: "compile_error",
        70.0: "unsupported",
        90.0: None,
    }
    good, bad = configs[50.0], configs[60.0]
    assert (good["facts"], good["compile_s"], good["reused"]) == ({"registers": 32, "target": "fake"}, 0.001, False)
    assert (bad["message"], bad["artifact"]) == ("fake.c:1: error: no", None)
    assert Path(good["artifact"], "kernel.json").is_file()
    assert not parts.store.list_trials(kernel="project:it")


async def test_a_sealed_artifact_is_not_compiled_again(parts: Parts, tmp_path: Path) -> None:
    """The next job uses it with its facts."""
    log = tmp_path / "compiles"
    await parts.inspect_file(make_kernel_text())
    parts.set_variables(FAKE_LOG=str(log))
    second_job = await run_requests(parts, msgspec.structs.replace(COMPILE, arch="fake"), COMPILE)
    assert [event["reused"] for event in list_compiled_configs(parts, second_job).values()] == [True, True]
    assert [event["facts"]["registers"] for event in list_compiled_configs(parts, second_job).values()] == [32, 32]
    assert len(log.read_text().splitlines()) == 2


async def test_a_damaged_artifact_is_compiled_again(parts: Parts) -> None:
    """A missing or changed file and an unreadable manifest count as damage."""
    await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0), dict(us=60.0), dict(us=70.0), dict(us=80.0)]"))
    first = list_compiled_configs(parts, await run_requests(parts, COMPILE))
    paths = {us: Path(event["artifact"]) for us, event in first.items()}
    (paths[50.0] / "kernel.json").unlink()
    (paths[60.0] / "kernel.json").chmod(0o600)
    (paths[60.0] / "kernel.json").write_text("{}")
    (paths[70.0] / MANIFEST_NAME).chmod(0o600)
    (paths[70.0] / MANIFEST_NAME).write_text("{")
    second = list_compiled_configs(parts, await run_requests(parts, COMPILE))
    assert {us: event["reused"] for us, event in second.items()} == {50.0: False, 60.0: False, 70.0: False, 80.0: True}
    assert all((path / "kernel.json").stat().st_size > 2 for path in paths.values())


async def test_another_target_has_another_artifact(parts: Parts) -> None:
    await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0)]"))
    job = await run_requests(parts, COMPILE, msgspec.structs.replace(COMPILE, arch="sm_100a"))
    assert (job["device"], job["message"]) == ("sm_100a", "1 artifact is ready for sm_100a")
    assert len({event["artifact"] for event in parts.recorder.list_events("config_compiled")}) == 2
    assert list_compiled_configs(parts, job)[50.0]["facts"]["target"] == "sm_100a"


async def test_a_job_without_a_device_shows_the_first_error(parts: Parts) -> None:
    """A job that was to measure says why nothing compiled for a machine with a device."""
    await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0, does='compile_error')]"))
    hide_devices(parts, FAKE_TARGET="fake")
    job = await run_requests(parts, TuningRequest())
    assert job["state"] == "failed"
    assert re.match(r"no device: .*; no config could be compiled for [^:]*: .*error", job["message"]), job["message"]


async def test_a_job_in_which_nothing_compiles_fails(parts: Parts) -> None:
    """The message names the target."""
    await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0, does='compile_error')]"))
    job = await run_requests(parts, COMPILE)
    assert (job["state"], job["message"]) == ("failed", "no config could be compiled for fake")


async def test_a_job_without_a_device_keeps_its_artifacts(parts: Parts) -> None:
    """The job fails with the reason, and names the target of its artifacts."""
    await parts.inspect_file(make_kernel_text())
    hide_devices(parts, FAKE_TARGET="fake")
    job = await run_requests(parts, TuningRequest())
    assert job["state"] == "failed"
    assert job["message"] == (
        "no device: backend 'fake' cannot run here: there is no fake device; 2 artifacts are ready for fake"
    )
    assert len(list_compiled_configs(parts, job)) == 2


async def test_the_settings_arch_wins_over_the_backends(parts: Parts) -> None:
    """It counts where there is no device; a device's own target precedes both."""
    await parts.inspect_file(make_kernel_text())
    assert parts.machine.choose_target(parts.environment, "fake") == "fake"
    parts.machine.arch = "sm_120a"
    assert parts.machine.choose_target(parts.environment, "fake") == "fake"
    hide_devices(parts, FAKE_TARGET="sm_90a")
    await parts.machine.environments.probe_environment(parts.environment)
    assert parts.machine.choose_target(parts.environment, "fake") == "sm_120a"
    parts.machine.arch = ""
    assert parts.machine.choose_target(parts.environment, "fake") == "sm_90a"
    parts.kill_workers()


async def test_without_device_and_target_there_is_nothing_to_compile_for(parts: Parts) -> None:
    """A backend that needs a device fails at once with a reason; an explicit target works."""
    await parts.inspect_file(make_kernel_text())
    hide_devices(parts)
    tuned, compiled = await request_job(parts, TuningRequest()), await request_job(parts, COMPILE)
    reason = (
        "backend 'fake' cannot run here: there is no fake device; "
        "set FAKE_DEVICES=1; or name what to compile for: `ktuned tune --compile-only --arch`"
    )
    assert [(job.state, job.message) for job in (tuned, compiled)] == [(JobState.FAILED, reason)] * 2
    with pytest.raises(BackendError):
        parts.machine.choose_target(parts.environment, "fake")
    job_for_target = await run_requests(parts, msgspec.structs.replace(COMPILE, arch="fake"))
    assert (job_for_target["state"], job_for_target["outcomes"]) == ("done", {"compiled": 2})
    parts.kill_workers()


async def test_an_endless_space_takes_bounded_memory(parts: Parts) -> None:
    """The channel bounds the number of configs, however large the space is."""
    endless = "lambda p: (dict(us=float(n), does='gate_compile', gate='door') for n in range(1, 10**9))"
    await parts.inspect_file(make_kernel_text(configs=endless, trials="1000000"))
    async with parts.run_jobs():
        job = await request_job(parts, COMPILE)
        await parts.wait_until_reached("door")
        (channel,) = parts.jobs.describe_channels().values()
        assert channel.size == parts.fleet.compile_slots.total_tokens * MAX_BATCH
        await parts.jobs.cancel_job(job.id)
        await parts.recorder.wait_for_ended_jobs()


async def test_a_trial_of_a_sealed_artifact_has_its_facts(parts: Parts) -> None:
    """The trial has the compiler's registers, whichever job compiled the artifact."""
    await parts.inspect_file(make_kernel_text())
    assert (await run_requests(parts, COMPILE, TuningRequest()))["state"] == "done"
    details = [parts.store.get_trial(trial.id) for trial in parts.store.list_trials()]
    assert [trial.detail.compiled.facts["registers"] for trial in details if trial is not None] == [32, 32]
