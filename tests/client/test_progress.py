from typing import Any

import pytest

from ktuned_client.answers import ENDED_STATES, FIRST_RETRY_S, LAST_RETRY_S, Backoff
from ktuned_client.messages import Job, StreamGap
from ktuned_client.progress import Progress


def make_job(number: int, state: str = "running") -> Any:
    return {"id": number, "kernel": "p:k", "state": state}


def make_event(seq: int, type_: str, job: int, state: str = "running") -> Any:
    return {"seq": seq, "epoch": 1, "type": type_, "kernel": "p:k", "job": job, "job_state": make_job(job, state)}


def make_progress(*jobs: Job) -> Progress:
    return Progress({"jobs": list(jobs), "errors": [], "notices": [], "epoch": 1, "seq": 0})


def test_a_tuning_of_nothing_is_over() -> None:
    assert make_progress().is_over


def test_it_is_over_when_the_last_job_has_ended() -> None:
    """Each job's end counts once, and the last state of each job is kept."""
    progress = make_progress(make_job(1), make_job(2))
    assert progress.apply_event(make_event(1, "job_done", 1, "done"))
    assert not progress.apply_event(make_event(2, "job_done", 1, "done"))
    assert not progress.is_over
    assert progress.apply_event(make_event(3, "trial_done", 2))
    assert progress.apply_event(make_event(4, "job_done", 2, "failed"))
    assert progress.is_over
    assert [job["state"] for job in progress.jobs] == ["done", "failed"]
    assert (progress.epoch, progress.seq) == (1, 4)


@pytest.mark.parametrize("state", sorted(ENDED_STATES))
def test_a_missed_end_is_reported_once(state: str) -> None:
    """A job that has ended unnoticed gives one ``job_done``; the daemon's own event, which comes late, is ignored."""
    progress = make_progress(make_job(1), make_job(2))
    (made_up,) = progress.apply_jobs([make_job(1, state), make_job(2), make_job(3, state)])
    assert made_up["type"] == "job_done"
    assert (made_up["job"], made_up["job_state"]) == (1, make_job(1, state))
    assert progress.apply_jobs([make_job(1, state)]) == []
    assert not progress.apply_event(make_event(1, "job_done", 1, state))


def test_a_gap_moves_the_position_and_is_passed_on() -> None:
    progress = make_progress(make_job(1))
    gap: StreamGap = {"type": "gap", "epoch": 2, "seq": 50, "kernel": None, "job": None}
    assert progress.apply_event(gap)
    assert (progress.epoch, progress.seq) == (2, 50)


def test_the_backoff_doubles_up_to_its_last_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals double from the first to the last; a success resets them."""
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    backoff = Backoff()
    assert not backoff.is_waiting
    expected = FIRST_RETRY_S
    for _ in range(10):
        backoff.record_failure("gone")
        now += expected * 0.99
        assert backoff.is_waiting
        now += expected * 0.02
        assert not backoff.is_waiting
        expected = min(expected * 2, LAST_RETRY_S)
    backoff.record_failure("gone")
    backoff.record_success()
    assert not backoff.is_waiting
