"""Lanes that appear while a job runs: the job uses them if they are alike."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from ktuned.model.keys import DeviceName
from tests.daemon_parts import Parts, make_kernel_text

pytestmark = pytest.mark.anyio

DEFAULT = "dict(us=50.0, does='work', gate='first')"
CONFIGS = f"[{DEFAULT}] + [dict(us=us, does='gate_compile', gate='rest') for us in (60.0, 70.0)]"
"""The default is measured first: after another config, the only lane would know how short the rest takes and add it to
the default's batch."""


async def test_a_device_that_is_added_measures_the_remaining_configs(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the only lane is blocked, the new device measures the running job's other configs."""
    await parts.inspect_file(make_kernel_text(configs=CONFIGS, default=DEFAULT))
    async with parts.run_jobs():
        await parts.request_jobs()
        await parts.wait_until_reached("first")
        (lane,) = parts.jobs.list_lanes()
        find_job_devices = parts.machine.find_job_devices

        def find_additional_device(*arguments: object, **options: object) -> object:
            """Add another device of the same model."""
            job_devices = find_job_devices(*arguments, **options)  # type: ignore[arg-type]
            return replace(
                job_devices,
                devices=(*job_devices.devices, msgspec.structs.replace(lane.device, name=DeviceName("cpu:1"))),
            )

        monkeypatch.setattr(parts.machine, "find_job_devices", find_additional_device)
        parts.jobs.add_new_devices()
        parts.open_gate("rest")
        await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("trial_done")) == 2)
        assert {event["trial"]["config"]["us"] for event in parts.recorder.list_events("trial_done")} == {60.0, 70.0}
        parts.open_gate("first")
        job = await parts.wait_for_job()
    assert (job["state"], job["done"]) == ("done", 3)
    assert {lane.device.name for lane in parts.jobs.list_lanes()} == {"cpu:0", "cpu:1"}


async def test_a_job_that_has_measured_all_takes_no_new_lane(parts: Parts) -> None:
    await parts.inspect_file(make_kernel_text())
    async with parts.run_jobs():
        await parts.tune()
        parts.jobs.add_new_devices()
    assert len(parts.jobs.list_lanes()) == 1
