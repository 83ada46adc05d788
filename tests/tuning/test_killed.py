"""Workers that someone kills: the config is tried again, and believed to be the cause only when it always happens."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ktuned.fleet.failures import KILLS_EXCUSED
from ktuned.model.plan import Plan
from ktuned.protocol.jobs import Job
from ktuned.scheduling.preparation import Preparation
from ktuned.tuning.job_brief import JobBrief
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text, make_winner_key

pytestmark = pytest.mark.anyio


async def tune(parts: Parts, configs: str) -> None:
    """Ask for the tuning of a space."""
    await parts.inspect_file(make_kernel_text(configs=configs))
    await parts.jobs.submit_job(
        make_winner_key({"n": 64}),
        {"n": 64},
        priority=100,
        reason="test",
        plan=Plan(preset="fast", strategy="exhaustive"),
    )


@pytest.mark.parametrize("does", ["work", "gate_compile"])
async def test_a_config_whose_worker_is_killed_from_outside_is_tried_again(parts: Parts, does: str) -> None:
    """All workers killed while one compiles or measures: the job goes on, and its config is measured after all."""
    await tune(parts, f"[dict(us=50.0, does={does!r}, gate='door')]")
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        parts.kill_workers()
        parts.open_gate("door")
        (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert (ended["state"], ended["outcomes"]) == ("done", {"measured": 1})


class AsOnDisk(Preparation):
    """Takes a kernel file as it is now for the one that was inspected."""

    def prepare_brief(self, job: Job) -> JobBrief:
        """Return the work with the stamp of now."""
        brief = super().prepare_brief(job)
        stamps = {brief.kernel.file: hashlib.sha256(Path(brief.kernel.file).read_bytes()).hexdigest()}
        return msgspec.structs.replace(brief, kernel=replace(brief.kernel, stamps=stamps))


async def test_a_job_that_makes_no_progress_is_given_up(tmp_path: Path) -> None:
    """A kernel file upon which the explorer is killed each time fails its job, with the reason."""
    async with assemble_daemon(tmp_path, preparation_type=AsOnDisk) as parts:
        await tune(parts, "lambda p: [dict(us=50.0)]")
        # Inspected as another text, for its inspection would be killed as well.
        parts.write_file("import os\n" + make_kernel_text(configs="lambda p: os.kill(os.getpid(), 9)"))
        async with parts.run_jobs():
            (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert (ended["state"], len(parts.recorder.list_events("job_started"))) == ("failed", KILLS_EXCUSED + 1)
    assert "killed by SIGKILL" in ended["message"]
