"""Which job comes next: order, coalescing, preemption. Decides, and does no IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ktuned.model import Job, canonical

Identity = tuple[str, str, str]
"""What makes two requests the same work: kernel, problem (canonical text), device model."""


def identity(job: Job) -> Identity:
    """Return what a job tunes."""
    return job.kernel, canonical(job.problem), job.device


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a request became: the job that does the work, and whether it is a new one."""

    job: Job
    is_new: bool


class JobQueue:
    """Jobs that wait, highest priority first, then oldest first."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._waiting: dict[int, Job] = {job.id: job for job in jobs}
        self._held: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Job]:
        return iter(sorted(self._waiting.values(), key=_order))

    def add(self, job: Job) -> None:
        """Let a job wait."""
        self._waiting[job.id] = job

    def find(self, wanted: Identity) -> Job | None:
        """Return the waiting job that does this very work."""
        return next((job for job in self._waiting.values() if identity(job) == wanted), None)

    def get(self, job_id: int) -> Job | None:
        """Return a waiting job by its id."""
        return self._waiting.get(job_id)

    def raise_priority(self, job_id: int, priority: int, reason: str) -> Job:
        """Let a waiting job go earlier when somebody more important asks for it too; never later."""
        job = self._waiting[job_id]
        if priority > job.priority:
            job = self._waiting[job_id] = replace(job, priority=priority, reason=reason)
        return job

    def remove(self, job_id: int) -> Job | None:
        """Take a job out."""
        self._held.discard(job_id)
        return self._waiting.pop(job_id, None)

    def hold(self, job_id: int) -> None:
        """Let a job wait on, whatever is free, until its kernel is released."""
        self._held.add(job_id)

    def release(self, kernel: str) -> None:
        """Let a kernel's held jobs run again."""
        self._held -= {job.id for job in self._waiting.values() if job.kernel == kernel}

    def next_for(self, device: str) -> Job | None:
        """Return the job that a free device model should run next, without taking it out."""
        return next((job for job in self if job.device == device and job.id not in self._held), None)

    def preempts(self, running: Job) -> bool:
        """Tell whether a waiting job is so much more important that ``running`` should make way."""
        first = self.next_for(running.device)
        return first is not None and first.priority > running.priority

    @property
    def devices(self) -> set[str]:
        """The device models that somebody waits for."""
        return {job.device for job in self._waiting.values()}


def _order(job: Job) -> tuple[int, float, int]:
    return -job.priority, job.created, job.id
