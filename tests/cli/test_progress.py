"""The folding of events into a view."""

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
from tests.cli.samples import DEVICE, KERNEL, PROBLEM, job_info, job_map, state_event, trial_event, trial_map


def told(view: View, *events: dict[str, Any]) -> tuple[View, list[News]]:
    """Fold several events that arrive at once."""
    news: list[News] = []
    for event in events:
        view, more = fold_event(view, read_event(event))
        news.extend(more)
    return view, news


def only(view: View) -> JobInfo:
    """Return the job of a view that has one."""
    (known,) = view.jobs.values()
    return known.job


def winner(config: dict[str, Any], latency_us: float, job: int | None = 1) -> dict[str, Any]:
    """Return a ``winner`` event."""
    known = {"type": "winner", "kernel": KERNEL, "problem": PROBLEM, "device": DEVICE, "trial": 3}
    return known | {"job": job, "config": config, "latency_us": latency_us}


@pytest.mark.parametrize("kind", ["mood", "", None, "lookup"])
def test_unknown_types_change_nothing(kind: str | None) -> None:
    """An event of a type from a newer daemon leaves the view as it was; so does the mark of a gap."""
    view = begin_view([job_info()])
    assert read_event({"type": kind, "kernel": KERNEL, "job": 1}) is None
    assert fold_event(view, None) == (view, ())
    gap = read_event({"type": "gap", "epoch": 1, "seq": 1})
    assert gap == StreamGap(epoch=1, seq=1)
    assert fold_event(view, gap) == (view, ())


def test_fields_of_a_newer_daemon_are_passed_over() -> None:
    """In an event, in its job and in the job's plan."""
    job = job_map(mood="good", plan={"trials": 7, "hurry": True})
    event = read_event(state_event("job_started", job) | {"more": 1})
    assert isinstance(event, JobStarted)
    assert (event.job_state.id, event.job_state.plan.trials) == (1, 7)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_each_outcome_is_counted_and_only_failures_are_news(outcome: Outcome) -> None:
    """Whatever a trial's outcome, the counts follow the daemon's; a failure is reported once per outcome."""
    view = begin_view([job_info(best_us=1.0)])
    first = trial_event(trial_map(1, outcome), 1, best_us=1.0)
    second = trial_event(trial_map(2, outcome), 2, best_us=1.0)
    view, news = told(view, first, second)
    job = only(view)
    assert (job.done, job.outcomes, job.best_us) == (2, {outcome: 2}, 1.0)
    if outcome in FAILURES:
        (failure,) = news
        assert isinstance(failure, FirstFailure)
        assert (failure.trial.outcome, failure.trial.id) == (outcome, 1)
        assert view.jobs[1].failures == {outcome: failure.trial}
    else:
        assert news == []


def test_only_a_better_trial_is_a_new_best() -> None:
    """A best is reported when the latency falls, with its config, and no other time."""
    view = begin_view([job_info()])
    trials = [trial_map(n, latency_us=us) for n, us in enumerate((50.0, 60.0, 50.0, 40.0), 1)]
    bests = [50.0, 50.0, 50.0, 40.0]
    events = [trial_event(trial, n, best_us=best) for n, (trial, best) in enumerate(zip(trials, bests, strict=True), 1)]
    view, news = told(view, *events)
    assert [(piece.figure, piece.config) for piece in news if isinstance(piece, NewBest)] == [
        (50.0, {"BM": 1}),
        (40.0, {"BM": 4}),
    ]
    assert view.jobs[1].best_config == {"BM": 4}


def test_a_winner_that_comes_before_its_trial_hides_no_best() -> None:
    """The daemon reports a winner as soon as it is served, and the trial that made it after; both are known."""
    view = begin_view([job_info()])
    view, news = told(view, winner({"BM": 1}, 50.0), trial_event(trial_map(1, latency_us=50.0), 1))
    assert [piece.figure for piece in news if isinstance(piece, NewBest)] == [50.0]
    assert view.jobs[1].best_config == {"BM": 1}


def test_a_resumed_jobs_old_best_is_no_news() -> None:
    """Only what beats the best that a job came with is reported."""
    view = begin_view([job_info(best_us=50.0)])
    _, news = told(view, trial_event(trial_map(1, latency_us=60.0), 1, best_us=50.0))
    assert news == []


@pytest.mark.parametrize("known", [True, False])
def test_a_trial_that_the_store_no_longer_has_still_counts(known: bool) -> None:
    """An event without its trial moves the bar of a job that is known, and makes none known."""
    view = begin_view([job_info()]) if known else View()
    view, news = told(view, trial_event(trial_map(), 2) | {"trial": None})
    assert news == []
    assert [one.job.done for one in view.jobs.values()] == ([2] if known else [])


def test_a_trial_of_an_unknown_job_makes_no_job() -> None:
    """Whoever attaches in the middle has asked for the jobs; a trial alone says too little of one."""
    assert told(View(), trial_event(trial_map(3), 3)) == (View(), [])


@pytest.mark.parametrize("old", [None, *JobState])
@pytest.mark.parametrize("new", list(JobState))
def test_beginnings_and_ends_are_told_once(old: JobState | None, new: JobState) -> None:
    """From every state to every other, a job's begin and its end are news exactly when they are new."""
    view = View() if old is None else begin_view([job_info(state=old)])
    _, news = told(view, state_event("job_started", job_map(state=new)))
    ended = {JobState.DONE, JobState.CANCELLED, JobState.FAILED}
    if new in ended:
        expected: list[type[News]] = [] if old in ended else [JobEnded]
    else:
        expected = [JobBegan] if new == JobState.RUNNING and old != JobState.RUNNING else []
    assert [type(piece) for piece in news] == expected


def test_a_job_that_ends_keeps_what_its_trials_told() -> None:
    """The last job map adds its figures and leaves the failures' examples and the winner's config."""
    view = begin_view([job_info()])
    done = job_map(state="done", done=4, best_us=20.0, default_us=50.0, reference_us=70.0)
    view, news = told(
        view,
        trial_event(trial_map(1, "hung"), 1),
        {"type": "refining", "kernel": KERNEL, "job": 1, "finalists": 2, "round": 1, "rounds": 3},
        winner({"BM": 9}, 20.0),
        state_event("job_done", done),
    )
    known, job = view.jobs[1], only(view)
    assert (known.best_config, job.speedup, job.reference_us, known.round) == ({"BM": 9}, 2.5, 70.0, None)
    assert list(known.failures) == ["hung"]
    assert job.has_winner
    assert view.is_ended
    assert isinstance(news[-1], JobEnded)


@pytest.mark.parametrize("event", ["refining", "winner"])
def test_what_concerns_an_unknown_job_makes_no_job(event: str) -> None:
    """A round or a winner of a job that was not seen adds no half-known job."""
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
    view, news = told(View(), told_of)
    assert view.jobs == {}
    assert [line for piece in news for line in describe_news(piece)] == []


def test_a_round_of_refining_shows_until_the_job_ends() -> None:
    """The finalists' round stands in the view while they are measured again."""
    view = begin_view([job_info()])
    view, news = told(view, {"type": "refining", "kernel": KERNEL, "job": 1, "finalists": 2, "round": 2, "rounds": 3})
    assert (view.jobs[1].round, news) == ((2, 3), [])


def test_a_second_tuning_knows_what_stood_before() -> None:
    """The winner of an earlier job, remembered or seen, is what the next job of the same case is compared with."""
    earlier = [
        job_info(1, state="done", best_us=90.0, finished=2.0),
        job_info(2, state="done", best_us=80.0, finished=3.0),
        job_info(3, state="done", best_us=None, finished=4.0),
        job_info(4, state="done", best_us=5.0, finished=5.0, problem={"M": 1}),
    ]
    view = add_earlier_winners(View(), earlier)
    view, _ = told(view, state_event("job_started", job_map(9)))
    assert view.jobs[9].before == 80.0
    ended = state_event("job_done", job_map(9, state="done", best_us=40.0))
    view, news = told(view, winner({}, 40.0, job=9), ended)
    assert isinstance(news[-1], JobEnded)
    assert news[-1].view.before == 80.0
    view, _ = told(view.without_ended(), state_event("job_started", job_map(10)))
    assert list(view.jobs) == [10]
    assert view.jobs[10].before == 40.0


def test_remembering_never_overwrites_what_was_seen() -> None:
    """A winner that an event reported is newer than any job that was asked for."""
    seen, _ = told(begin_view([]), winner({}, 10.0, job=9))
    view = add_earlier_winners(seen, [job_info(1, state="done", best_us=90.0)])
    assert list(view.winners.values()) == [10.0]


def test_catching_up_tells_what_was_missed() -> None:
    """After lost events, the jobs' maps report the ends and beginnings that no one heard."""
    view = begin_view([job_info(1), job_info(2, state="queued")])
    view, news = resync_view(view, [job_info(1, state="done", best_us=1.0), job_info(2), job_info(3, state="queued")])
    assert [type(piece) for piece in news] == [JobEnded, JobBegan]
    assert [one.job.id for one in view.active] == [2, 3]


def test_time_left_is_the_daemon_s() -> None:
    """The estimate comes from trials' events and job maps, and only for jobs that are open."""
    view, _ = told(begin_view([job_info()]), trial_event(trial_map(), 1, left_s=7.0))
    assert only(view).left_s == 7.0
    asked = progress.add_estimates(view, [job_info(left_s=5.0, waits_for="a lane"), job_info(9, left_s=1.0)])
    assert (only(asked).left_s, only(asked).waits_for) == (5.0, "a lane")
    ended = begin_view([job_info(state="done")])
    assert progress.add_estimates(ended, [job_info(left_s=5.0)]) == ended


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
def test_what_concerns_no_job_is_its_own_news_and_changes_no_job(event: Event) -> None:
    """Saves, lanes and pauses are reported as they come."""
    view = begin_view([job_info()])
    assert fold_event(view, event) == (view, (event,))


def test_a_winner_that_needed_no_job_is_news() -> None:
    """An undone edit leads back to one; a job's own winner is reported by its trials."""
    _, (news,) = told(begin_view([]), winner({"BM": 1}, 7.0, job=None))
    assert isinstance(news, WinnerChanged)
    assert describe_news(news) == [f"{KERNEL} [M=64 dtype=float32] on {DEVICE}: known already, 7.000 µs  BM=1"]
    _, (of_job,) = told(begin_view([job_info()]), winner({"BM": 1}, 7.0))
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
def test_only_a_job_that_is_done_and_has_a_best_is_reached(state: str, best_us: float | None, reached: bool) -> None:
    """What decides the exit status: done, with a winner."""
    assert job_info(state=state, best_us=best_us).has_winner is reached


def test_the_views_of_others_are_not_changed() -> None:
    """Folding makes a new view; the old one, which a refresh may be drawing, stays as it was."""
    view = begin_view([job_info()])
    kept = (dict(view.jobs), dict(view.winners))
    told(view, trial_event(trial_map(), 1), state_event("job_done", job_map(state="done")))
    assert (dict(view.jobs), dict(view.winners)) == kept


def test_notices_follow_a_jobs_end() -> None:
    """Each on a line of its own; the summary of the search is not one."""
    view = begin_view([job_info()])
    ended = job_map(state="done", best_us=5.0, message="random tried 3 configs\nnotice: X has no effect")
    _, news = told(view, state_event("job_done", ended))
    (line, notice) = describe_news(news[-1])
    assert notice == "  notice: X has no effect"
    assert "random" not in line
