"""The daemon's activity: totals since the start, what keeps it from ending, and one line for a service manager."""

from __future__ import annotations

import os

from ktuned.catalog import Catalog
from ktuned.lookup import Lookups
from ktuned.protocol import WorkFigures
from ktuned.scheduling import Jobs
from ktuned.serve.traffic import Traffic


class TrialCount:
    """Trials that have ended since the start."""

    def __init__(self) -> None:
        self.ended = 0

    def count_trial(self) -> None:
        """Count one more."""
        self.ended += 1


class Activity:
    """Figures of a daemon at work, taken from memory."""

    def __init__(
        self, *, catalog: Catalog, jobs: Jobs, lookups: Lookups, traffic: Traffic, trial_count: TrialCount
    ) -> None:
        self._catalog = catalog
        self._jobs = jobs
        self._lookups = lookups
        self._traffic = traffic
        self._trial_count = trial_count

    def read_totals(self) -> WorkFigures:
        """Return totals, which only rise."""
        answered = self._traffic.describe_traffic().answered
        return WorkFigures(requests=answered, lookups=self._lookups.answered, trials=self._trial_count.ended)

    def list_reasons_to_stay(self) -> list[str]:
        """Return what keeps an idle daemon from ending: ``clients``, ``jobs``, ``watches``."""
        reasons = {
            "clients": bool(self._traffic.connections),
            "jobs": bool(self._jobs.list_live_jobs()),
            "watches": any(os.path.isdir(root.path) for root in self._catalog.roots),
        }
        return [reason for reason, holds in reasons.items() if holds]

    def describe_activity(self) -> str:
        """Return jobs and clients as one line."""
        live = self._jobs.list_live_jobs()
        running = sum(job.state == "running" for job in live)
        clients = len(self._traffic.connections)
        return f"{running} jobs running, {len(live) - running} queued; {clients} clients"
