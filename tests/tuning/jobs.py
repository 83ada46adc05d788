"""Jobs on the kernel ``it`` of a daemon's parts."""

from __future__ import annotations

from typing import Any

from ktuned.model.plan import Plan
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.trial_machine import Attempt
from tests.daemon_parts import Parts, make_winner_key


def make_plan(**options: Any) -> Plan:
    """Return a plan: the fast preset and an exhaustive search, unless the options say otherwise."""
    return Plan(**{"preset": "fast", "strategy": "exhaustive", **options})


async def submit_job(
    parts: Parts, problem: dict[str, int] | None = None, *, priority: int = 100, **options: Any
) -> int:
    """Submit a job with :func:`make_plan`'s plan; return its id."""
    problem = problem or {"n": 64}
    plan = make_plan(**options)
    arrival = await parts.jobs.submit_job(
        make_winner_key(problem), problem, priority=priority, reason="test", plan=plan
    )
    return arrival.job.id


async def run_job(parts: Parts, **options: Any) -> dict[str, object]:
    """Run one job to its end, and return it as it was published."""
    before = len(parts.recorder.list_events("job_done"))
    await submit_job(parts, **options)
    async with parts.run_jobs():
        *_, ended = await parts.recorder.wait_for_ended_jobs(before + 1)
    return ended


async def prepare_brief(parts: Parts) -> JobBrief:
    """Return the brief of a job on the inspected kernel ``it``."""
    key, problem = make_winner_key({"n": 64}), {"n": 64}
    job = await parts.store.create_job(key, problem, priority=100, reason="test", plan=make_plan(), now=0.0)
    return parts.preparation.prepare_brief(job)


def make_attempts(brief: JobBrief, *does: str, tag: str = "", **build: Any) -> list[Attempt]:
    """Return attempts with different artifacts, one for each thing that the fake backend's Build does."""
    builds = [{"does": what, "tag": f"{tag}{number}", **build} for number, what in enumerate(does)]
    return [Attempt(number, {}, brief.make_unit(build)) for number, build in enumerate(builds)]
