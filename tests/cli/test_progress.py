"""Folds events into the view of a tuning."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.cli import progress
from ktuned.cli.lines import describe_news
from ktuned.cli.progress import (
    FAILURES,
    FirstFailure,
    JobBegan,
    JobEnded,
    NewBest,
    News,
    View,
    add_earlier_winners,
    begin_view,
    fold_event,
    resync_view,
)
from ktuned.model import DeviceName, KernelName, Outcome
from ktuned.protocol import (
    Event,
    JobInfo,
    JobStarted,
    JobState,
    KernelsReloaded,
    KernelStale,
    LaneChanged,
    StreamGap,
    TuningPaused,
    TuningResumed,
    WinnerChanged,
    read_event,
)
from tests.cli.samples import (
    DEVICE,
    KERNEL,
    PROBLEM,
    make_job_info,
    make_job_map,
    make_state_event,
    make_trial_event,
    make_trial_map,
)


def fold_events(view: View, *events: dict[str, Any]) -> tuple[View, list[News]]:
    """Apply several events that arrive at once."""
    news: list[News] = []
    for event in events:
        view, more = fold_event(view, read_event(event))
        news.extend(more)
    return view, news


def find_only_job(view: View) -> JobInfo:
    """Return the only job of a view."""
    (tracked,) = view.jobs.values()
    return tracked.job


def make_winner_event(config: dict[str, Any], latency_us: float, job: int | None = 1) -> dict[str, Any]:
    """Return a ``winner`` event."""
    event = {"type": "winner", "kernel": KERNEL, "problem": PROBLEM, "device": DEVICE, "trial": 3}
    return event | {"job": job, "config": config, "latency_us": latency_us}


@pytest.mark.parametrize("kind", ["mood", "", None, "lookup"])
def test_unknown_events_and_gaps_change_nothing(kind: str | None) -> None:
    view = begin_view([make_job_info()])
    assert read_event({"type": kind, "kernel": KERNEL, "job": 1}) is None
    assert fold_event(view, None) == (view, ())
    gap = read_event({"type": "gap", "epoch": 1, "seq": 1})
    assert gap == StreamGap(epoch=1, seq=1)
    assert fold_event(view, gap) == (view, ())


def test_fields_of_a_newer_daemon_are_ignored() -> None:
    """The event, its job and the job's plan may have more fields."""
    job = make_job_map(mood="good", plan={"trials": 7, "hurry": True})
    event = read_event(make_state_event("job_started", job) | {"more": 1})
    assert isinstance(event, JobStarted)
    assert (event.job_state.id, event.job_state.plan.trials) == (1, 7)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_each_outcome_is_counted_and_only_failures_are_news(outcome: Outcome) -> None:
    """The counts are the daemon's. The first failure of each outcome is reported."""
    view = begin_view([make_job_info(best_us=1.0)])
    first = make_trial_event(make_trial_map(1, outcome), 1, best_us=1.0)
    second = make_trial_event(make_trial_map(2, outcome), 2, best_us=1.0)
    view, news = fold_events(view, first, second)
    job = find_only_job(view)
    assert (job.done, job.outcomes, job.best_us) == (2, {outcome: 2}, 1.0)
    if outcome in FAILURES:
        (failure,) = news
        assert isinstance(failure, FirstFailure)
        assert (failure.trial.outcome, failure.trial.id) == (outcome, 1)
        assert view.jobs[1].failures == {outcome: failure.trial}
    else:
        assert news == []


def test_only_a_lower_latency_is_a_new_best() -> None:
    view = begin_view([make_job_info()])
    trials = [make_trial_map(n, latency_us=us) for n, us in enumerate((50.0, 60.0, 50.0, 40.0), 1)]
    bests = [50.0, 50.0, 50.0, 40.0]
    events = [
        make_trial_event(trial, n, best_us=best) for n, (trial, best) in enumerate(zip(trials, bests, strict=True), 1)
    ]
    view, news = fold_events(view, *events)
    assert [(piece.figure, piece.config) for piece in news if isinstance(piece, NewBest)] == [
        (50.0, {"BM": 1}),
        (40.0, {"BM": 4}),
    ]
    assert view.jobs[1].best_config == {"BM": 4}


def test_a_winner_before_its_trial_hides_no_best() -> None:
    """The daemon publishes a winner before the trial that made it."""
    view = begin_view([make_job_info()])
    view, news = fold_events(
        view, make_winner_event({"BM": 1}, 50.0), make_trial_event(make_trial_map(1, latency_us=50.0), 1)
    )
    assert [piece.figure for piece in news if isinstance(piece, NewBest)] == [50.0]
    assert view.jobs[1].best_config == {"BM": 1}


def test_a_resumed_job_s_old_best_is_no_news() -> None:
    view = begin_view([make_job_info(best_us=50.0)])
    _, news = fold_events(view, make_trial_event(make_trial_map(1, latency_us=60.0), 1, best_us=50.0))
    assert news == []


@pytest.mark.parametrize("known", [True, False])
def test_a_trial_without_its_record_still_counts(known: bool) -> None:
    """An event without its trial moves the progress of a known job, and adds no job."""
    view = begin_view([make_job_info()]) if known else View()
    view, news = fold_events(view, make_trial_event(make_trial_map(), 2) | {"trial": None})
    assert news == []
    assert [tracked.job.done for tracked in view.jobs.values()] == ([2] if known else [])


def test_a_trial_of_an_unknown_job_makes_no_job() -> None:
    assert fold_events(View(), make_trial_event(make_trial_map(3), 3)) == (View(), [])


@pytest.mark.parametrize("old", [None, *JobState])
@pytest.mark.parametrize("new", list(JobState))
def test_the_start_and_end_of_a_job_are_news_once(old: JobState | None, new: JobState) -> None:
    view = View() if old is None else begin_view([make_job_info(state=old)])
    _, news = fold_events(view, make_state_event("job_started", make_job_map(state=new)))
    ended = {JobState.DONE, JobState.CANCELLED, JobState.FAILED}
    if new in ended:
        expected: list[type[News]] = [] if old in ended else [JobEnded]
    else:
        expected = [JobBegan] if new == JobState.RUNNING and old != JobState.RUNNING else []
    assert [type(piece) for piece in news] == expected


def test_an_ended_job_keeps_failures_and_config() -> None:
    """The last state of the job adds its figures, and removes nothing."""
    view = begin_view([make_job_info()])
    done = make_job_map(state="done", done=4, best_us=20.0, default_us=50.0, reference_us=70.0)
    view, news = fold_events(
        view,
        make_trial_event(make_trial_map(1, "hung"), 1),
        {"type": "refining", "kernel": KERNEL, "job": 1, "finalists": 2, "round": 1, "rounds": 3},
        make_winner_event({"BM": 9}, 20.0),
        make_state_event("job_done", done),
    )
    tracked, job = view.jobs[1], find_only_job(view)
    assert (tracked.best_config, job.speedup, job.reference_us, tracked.round) == ({"BM": 9}, 2.5, 70.0, None)
    assert list(tracked.failures) == ["hung"]
    assert job.has_winner
    assert view.is_ended
    assert isinstance(news[-1], JobEnded)


@pytest.mark.parametrize("event", ["refining", "winner"])
def test_events_of_an_unknown_job_add_no_job(event: str) -> None:
    told_of = {
        "type": event,
        "kernel": KERNEL,
        "job": 5,
        "round": 1,
        "rounds": 2,
        "finalists": 2,
        "problem": {},
        "device": DEVICE,
        "config": {},
        "latency_us": 1.0,
    }
    view, news = fold_events(View(), told_of)
    assert view.jobs == {}
    assert [line for piece in news for line in describe_news(piece)] == []


def test_a_round_of_refining_shows_until_the_job_ends() -> None:
    view = begin_view([make_job_info()])
    view, news = fold_events(
        view, {"type": "refining", "kernel": KERNEL, "job": 1, "finalists": 2, "round": 2, "rounds": 3}
    )
    assert (view.jobs[1].round, news) == ((2, 3), [])


def test_a_second_tuning_compares_with_the_earlier_winner() -> None:
    """The earlier winner is from the job list or from an event."""
    earlier = [
        make_job_info(1, state="done", best_us=90.0, finished=2.0),
        make_job_info(2, state="done", best_us=80.0, finished=3.0),
        make_job_info(3, state="done", best_us=None, finished=4.0),
        make_job_info(4, state="done", best_us=5.0, finished=5.0, problem={"M": 1}),
    ]
    view = add_earlier_winners(View(), earlier)
    view, _ = fold_events(view, make_state_event("job_started", make_job_map(9)))
    assert view.jobs[9].before == 80.0
    ended = make_state_event("job_done", make_job_map(9, state="done", best_us=40.0))
    view, news = fold_events(view, make_winner_event({}, 40.0, job=9), ended)
    assert isinstance(news[-1], JobEnded)
    assert news[-1].view.before == 80.0
    view, _ = fold_events(view.without_ended(), make_state_event("job_started", make_job_map(10)))
    assert list(view.jobs) == [10]
    assert view.jobs[10].before == 40.0


def test_the_job_list_does_not_replace_a_reported_winner() -> None:
    """An event is newer than the job list."""
    reported, _ = fold_events(begin_view([]), make_winner_event({}, 10.0, job=9))
    view = add_earlier_winners(reported, [make_job_info(1, state="done", best_us=90.0)])
    assert list(view.winners.values()) == [10.0]


def test_resync_reports_missed_starts_and_ends() -> None:
    view = begin_view([make_job_info(1), make_job_info(2, state="queued")])
    view, news = resync_view(
        view, [make_job_info(1, state="done", best_us=1.0), make_job_info(2), make_job_info(3, state="queued")]
    )
    assert [type(piece) for piece in news] == [JobEnded, JobBegan]
    assert [tracked.job.id for tracked in view.active] == [2, 3]


def test_only_open_jobs_have_time_left() -> None:
    """The estimate comes from events and from the job list."""
    view, _ = fold_events(begin_view([make_job_info()]), make_trial_event(make_trial_map(), 1, left_s=7.0))
    assert find_only_job(view).left_s == 7.0
    estimated = progress.add_estimates(
        view, [make_job_info(left_s=5.0, waits_for="a lane"), make_job_info(9, left_s=1.0)]
    )
    assert (find_only_job(estimated).left_s, find_only_job(estimated).waits_for) == (5.0, "a lane")
    ended = begin_view([make_job_info(state="done")])
    assert progress.add_estimates(ended, [make_job_info(left_s=5.0)]) == ended


@pytest.mark.parametrize(
    "event",
    [
        KernelStale(kernel=KernelName(KERNEL), digest="d"),
        LaneChanged(device=DeviceName("cuda:0"), state="sick", reason="no canary"),
        KernelsReloaded(added=("a",), removed=("b",)),
        TuningPaused(device="", reason="asked"),
        TuningResumed(),
    ],
)
def test_events_without_a_job_are_news_and_change_no_job(event: Event) -> None:
    view = begin_view([make_job_info()])
    assert fold_event(view, event) == (view, (event,))


def test_a_winner_without_a_job_is_news() -> None:
    """An undone edit restores a winner; a job's winner is reported by its trials."""
    _, (news,) = fold_events(begin_view([]), make_winner_event({"BM": 1}, 7.0, job=None))
    assert isinstance(news, WinnerChanged)
    assert describe_news(news) == [f"{KERNEL} [M=64 dtype=float32] on {DEVICE}: known already, 7.000 µs  BM=1"]
    _, (of_job,) = fold_events(begin_view([make_job_info()]), make_winner_event({"BM": 1}, 7.0))
    assert describe_news(of_job) == []


@pytest.mark.parametrize(
    ("state", "best_us", "reached"),
    [
        ("done", 1.0, True),
        ("done", None, False),
        ("cancelled", 1.0, False),
        ("failed", 1.0, False),
        ("running", 1.0, False),
    ],
)
def test_only_a_done_job_with_a_best_has_a_winner(state: str, best_us: float | None, reached: bool) -> None:
    assert make_job_info(state=state, best_us=best_us).has_winner is reached


def test_folding_leaves_the_old_view_unchanged() -> None:
    """A refresh may be drawing the old view."""
    view = begin_view([make_job_info()])
    before = (dict(view.jobs), dict(view.winners))
    fold_events(view, make_trial_event(make_trial_map(), 1), make_state_event("job_done", make_job_map(state="done")))
    assert (dict(view.jobs), dict(view.winners)) == before


def test_notices_follow_the_end_of_a_job() -> None:
    """Each notice has its line; the summary of the search is left out."""
    view = begin_view([make_job_info()])
    ended = make_job_map(state="done", best_us=5.0, message="random tried 3 configs\nnotice: X has no effect")
    _, news = fold_events(view, make_state_event("job_done", ended))
    (line, notice) = describe_news(news[-1])
    assert notice == "  notice: X has no effect"
    assert "random" not in line
