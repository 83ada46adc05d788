"""Jobs for the queue's and the job machine's tests."""

from typing import Any

from msgspec.structs import replace

from ktuned.model.keys import DeviceModel, KernelName
from ktuned.model.plan import Plan
from ktuned.protocol.jobs import Job, JobState


def make_job(number: int = 1, **changes: Any) -> Job:
    """Return a job that was just recorded, and waits."""
    base = Job(
        number,
        KernelName("p:k"),
        {"M": number},
        DeviceModel("x"),
        JobState.QUEUED,
        200,
        "asked",
        Plan(),
        created=float(number),
    )
    return replace(base, **changes)
