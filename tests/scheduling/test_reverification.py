"""What a new driver or toolchain has measured again, and what is none of its business."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ktuned.devices.machine import Machine
from ktuned.scheduling import Renewal
from ktuned.store.contexts import Context
from tests.daemon_parts import Parts, make_kernel_text

pytestmark = pytest.mark.anyio


class NewerMachine(Machine):
    """A machine whose toolchains are newer than those that were measured with."""

    def build_context(self, *asked: Any) -> Context:
        """Return the context of now."""
        return replace(super().build_context(*asked), toolchain="newer")


async def test_a_new_toolchain_has_winners_measured_again(parts: Parts) -> None:
    """A winner of the kernel's present sources is queued."""
    await parts.record_measurements(await parts.inspect_file(make_kernel_text()), {50.0: 7.0})
    assert await parts.daemon.renewal.queue_reverification() == []

    newer = NewerMachine(parts.machine.environments)
    again = Renewal(
        replace(parts.daemon.known, machine=newer),
        jobs=parts.jobs,
        requests=parts.requests,
        publish=parts.daemon.router.publish_event,
    )
    (job,) = await again.queue_reverification()
    assert job.reason == "a driver or toolchain changed"


async def test_a_job_that_began_after_the_probe_goes_on(parts: Parts) -> None:
    """A survey that sees a change of which the running job's context knows begins nothing again; else the job does."""
    kernel = await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0, does='gate_compile', gate='door')]"))
    async with parts.run_jobs():
        parts.lookups.look_up("it", {"n": 64}, None, tune=True)
        await parts.wait_until_reached("door")
        (job,) = parts.jobs.list_live_jobs()
        await parts.daemon.renewal.reverify_probed([kernel], [kernel])
        assert [live.id for live in parts.jobs.list_live_jobs()] == [job.id]
        await parts.jobs.restart_running_jobs(
            kernel.name, "begun again", lambda brief: brief.context.device == "Fake CPU"
        )
        await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("job_started")) == 2)
        assert [live.id for live in parts.jobs.list_live_jobs()] == [job.id]
        parts.open_gate("door")
        ended = await parts.wait_for_job()
        assert (ended["id"], ended["state"]) == (job.id, "done")


async def test_a_context_of_another_toolchain_or_driver_is_outdated(parts: Parts) -> None:
    """The present context is not."""
    await parts.inspect_file(make_kernel_text())
    present = parts.build_context()
    contexts = (present, replace(present, toolchain="older"), replace(present, device_fingerprint="older"))
    judged = [parts.machine.is_outdated(parts.environment, "fake", context) for context in contexts]
    assert judged == [False, True, True]
