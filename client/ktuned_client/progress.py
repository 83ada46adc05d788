"""The progress of a tuning's jobs, computed from events; without IO, for both clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ktuned_client.answers import ENDED_STATES

if TYPE_CHECKING:
    from ktuned_client.messages import Event, Job, TuneAnswer


class Progress:
    """The jobs of one ``tune`` request, followed until each has ended.

    Every job gets exactly one ``job_done`` event. It is made here if the daemon's event was missed or came before the
    subscription.
    """

    def __init__(self, accepted: TuneAnswer) -> None:
        self._jobs = {job["id"]: job for job in accepted["jobs"]}
        self._open = set(self._jobs)
        self.epoch: int = accepted["epoch"]
        self.seq: int = accepted["seq"]

    @property
    def jobs(self) -> list[Job]:
        """The jobs' maps as last received, in the daemon's order."""
        return list(self._jobs.values())

    @property
    def open_jobs(self) -> list[int]:
        """The ids of the jobs that have not ended."""
        return sorted(self._open)

    @property
    def is_over(self) -> bool:
        """True when every job has ended."""
        return not self._open

    def apply_event(self, event: Event) -> bool:
        """Apply an event of the stream; return whether it is new (a second ``job_done`` is not)."""
        self.epoch, self.seq = event["epoch"], event["seq"]
        if event["type"] not in ("job_queued", "job_started", "job_paused", "job_done"):
            return True
        job = event["job"]
        if job in self._jobs:
            self._jobs[job] = event["job_state"]
        if event["type"] != "job_done":
            return True
        if job not in self._open:
            return False
        self._open.discard(job)
        return True

    def apply_jobs(self, jobs: Iterable[Job]) -> list[Event]:
        """Apply requested job maps; return a ``job_done`` for each job that ended without an event."""
        missed: list[Event] = []
        for job in jobs:
            if job["id"] not in self._open:
                continue
            self._jobs[job["id"]] = job
            if job["state"] in ENDED_STATES:
                self._open.discard(job["id"])
                missed.append(
                    {
                        "seq": self.seq,
                        "epoch": self.epoch,
                        "type": "job_done",
                        "kernel": job["kernel"],
                        "job": job["id"],
                        "job_state": job,
                    }
                )
        return missed
