from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ktuned.model.errors import NotFound, UsageError
from ktuned.protocol.jobs import Job, JobState
from ktuned.protocol.kernels import Root
from tests.daemon_parts import Parts, make_kernel_text

pytestmark = pytest.mark.anyio


async def create_job(parts: Parts) -> Job:
    """Return a job of the kernel, as it would be taken from the queue."""
    kernel = await parts.inspect_file(make_kernel_text(deadlines="dict(check=7.0)"))
    model = parts.machine.find_device(parts.environment, "fake", None).model
    return Job(1, kernel.name, {"n": 64}, model, JobState.QUEUED, 100, "asked", kernel.plan, created=0.0)


async def test_a_job_is_worked_on_with_what_is_known_now(parts: Parts) -> None:
    """Its kernel, all devices of its model, and deadlines of which the kernel file has the last word."""
    brief = parts.preparation.prepare_brief(await create_job(parts))
    assert (brief.environment.cwd, brief.environment, [device.model for device in brief.devices]) == (
        parts.root.path,
        parts.environment,
        [brief.job.device],
    )
    assert brief.deadlines == {**parts.fleet.deadlines, "check": 7.0}
    assert brief.context == parts.machine.build_context(brief.kernel, parts.environment, {"n": 64}, brief.devices[0])


async def test_what_cannot_be_worked_on_says_why(parts: Parts, tmp_path: Path) -> None:
    """A problem that its kernel no longer has, and a file that no root has any more."""
    job = await create_job(parts)
    with pytest.raises(UsageError, match="lacks n and does not take m"):
        parts.preparation.prepare_brief(replace(job, problem={"m": 1}))
    parts.catalog.remove_root(parts.root.path)
    parts.catalog.add_root(Root(str(tmp_path / "elsewhere"), "elsewhere", parts.root.python))
    with pytest.raises(NotFound):
        parts.preparation.prepare_brief(job)
