"""Workers that are killed from outside: the config is retried, and blamed only if it happens every time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ktuned.fleet.failures import KILLS_EXCUSED
from ktuned.protocol.jobs import Job
from ktuned.scheduling.preparation import Preparation
from ktuned.tuning.job_brief import JobBrief
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text
from tests.tuning.jobs import submit_job

pytestmark = pytest.mark.anyio


async def inspect_and_submit(parts: Parts, configs: str) -> None:
    """Inspect a kernel with these configs and submit a job."""
    await parts.inspect_file(make_kernel_text(configs=configs))
    await submit_job(parts)


@pytest.mark.parametrize("does", ["work", "gate_compile"])
async def test_a_config_whose_worker_is_killed_from_outside_is_tried_again(parts: Parts, does: str) -> None:
    """All workers are killed while one compiles or measures; the job continues and measures the config."""
    await inspect_and_submit(parts, f"[dict(us=50.0, does={does!r}, gate='door')]")
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        parts.kill_workers()
        parts.open_gate("door")
        ended_job = await parts.wait_for_job()
    assert (ended_job["state"], ended_job["outcomes"]) == ("done", {"measured": 1})


class PreparationFromDisk(Preparation):
    """Takes the present kernel file for the inspected one."""

    def prepare_brief(self, job: Job) -> JobBrief:
        """Return the brief with the present stamp."""
        brief = super().prepare_brief(job)
        stamps = {brief.kernel.file: hashlib.sha256(Path(brief.kernel.file).read_bytes()).hexdigest()}
        return msgspec.structs.replace(brief, kernel=replace(brief.kernel, stamps=stamps))


async def test_a_job_that_makes_no_progress_is_given_up(tmp_path: Path) -> None:
    """If the explorer is killed each time, the job fails with that reason."""
    async with assemble_daemon(tmp_path, preparation_type=PreparationFromDisk) as parts:
        await inspect_and_submit(parts, "lambda p: [dict(us=50.0)]")
        # An inspection of this text would be killed as well, so another text was inspected.
        parts.write_file("import os\n" + make_kernel_text(configs="lambda p: os.kill(os.getpid(), 9)"))
        async with parts.run_jobs():
            ended_job = await parts.wait_for_job()
    assert (ended_job["state"], len(parts.recorder.list_events("job_started"))) == ("failed", KILLS_EXCUSED + 1)
    assert "killed by SIGKILL" in ended_job["message"]
