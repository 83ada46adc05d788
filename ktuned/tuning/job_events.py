"""The events of a job; each is published after its facts are committed."""

from __future__ import annotations

from typing import Any, Protocol

from ktuned.model import Job, KernelInfo, Trial, Winner
from ktuned.tuning.progress import Progress
from ktuned.tuning.work import Work


class Publish(Protocol):
    """Sends an event to all subscribers; never blocks."""

    def __call__(self, type: str, **fields: Any) -> None:  # noqa: A002 - the protocol's word
        """Publish one event."""


def publish_trial(publish: Publish, work: Work, progress: Progress, trial: Trial) -> None:
    """Publish a trial's outcome, and where its job stands; of the trial's detail only its metrics."""
    public = trial.to_wire() | {"metrics": dict(trial.metrics)}
    del public["detail"]
    public["config"] = work.kernel.config_in_order(trial.config)
    public["problem"] = work.kernel.problem_in_order(trial.problem)
    standing = progress.to_wire() | {"left_s": progress.left_s}
    publish("trial_done", kernel=work.job.kernel, job=work.job.id, trial=public, **standing)


def publish_winner(publish: Publish, kernel: KernelInfo, winner: Winner, job: int | None) -> None:
    """Publish a new winner, and the job that found it; an undone edit brings one back without a job."""
    publish(
        "winner",
        kernel=winner.context.kernel,
        job=job,
        problem=kernel.problem_in_order(winner.problem),
        device=winner.context.device,
        config=kernel.config_in_order(winner.config),
        latency_us=winner.latency_us,
        trial=winner.trial,
        metrics=dict(winner.metrics),
        objective=winner.objective,
    )


def publish_job(publish: Publish, what: str, job: Job, launches: int) -> None:
    """Publish a job that was queued, started or ended, and how often applications have launched its key."""
    publish(what, kernel=job.kernel, job=job.id, job_state=job.to_wire() | {"launches": launches})
