"""The progress of a tuning's jobs, computed from events; without IO, for both clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ktuned_client.answers import ENDED_STATES

Event = dict[str, Any]


class Progress:
    """The jobs of one ``tune`` request, followed until each has ended.

    Every job gets exactly one ``job_done`` event. It is made here if the daemon's event was missed or came before the
    subscription.
    """

    def __init__(self, accepted: Mapping[str, Any]) -> None:
        self._jobs: dict[int, dict[str, Any]] = {job["id"]: job for job in accepted["jobs"]}
        self._open = set(self._jobs)
        self.epoch: int = accepted["epoch"]
        self.seq: int = accepted["seq"]

    @property
    def jobs(self) -> list[dict[str, Any]]:
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
        job_state = event.get("job_state")
        if isinstance(job_state, dict) and job_state.get("id") in self._jobs:
            self._jobs[job_state["id"]] = job_state
        if event.get("type") != "job_done":
            return True
        job = event.get("job")
        if job not in self._open:
            return False
        self._open.discard(job)
        return True

    def apply_jobs(self, jobs: Iterable[dict[str, Any]]) -> list[Event]:
        """Apply requested job maps; return a ``job_done`` for each job that ended without an event."""
        missed = []
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
