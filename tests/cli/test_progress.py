"""The folding of events into a view."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.cli import progress
from ktuned.cli.job_view import ENDED, FAILURES, View
from ktuned.cli.lines import lines_of
from ktuned.cli.news import (
    FirstFailure,
    JobBegan,
    JobEnded,
    KernelStale,
    LaneChanged,
    NewBest,
    News,
    PauseChanged,
    Reloaded,
    WinnerChanged,
    WorkerChanged,
)
from ktuned.cli.progress import add_earlier_winners, begin_view, fold_event, resync_view
from ktuned.model.job import JobState
from ktuned.model.values import Outcome
from tests.cli.samples import DEVICE, KERNEL, PROBLEM, job_map, state_event, trial_event, trial_map


def told(view: View, *events: dict[str, Any]) -> tuple[View, list[News]]:
    """Fold several events that arrive at once."""
    news: list[News] = []
    for event in events:
        view, more = fold_event(view, event)
        news.extend(more)
    return view, news


@pytest.mark.parametrize("kind", ["pin", "", None, "lookup"])
def test_unknown_types_change_nothing(kind: str | None) -> None:
    """An event of a type from a newer daemon leaves the view as it was."""
    view = begin_view([job_map()])
    assert fold_event(view, {"type": kind, "kernel": KERNEL, "job": 1}) == (view, ())
    assert fold_event(view, {"fresh": True, "epoch": 1, "seq": 1}) == (view, ())


@pytest.mark.parametrize("outcome", list(Outcome))
def test_each_outcome_is_counted_and_only_failures_are_news(outcome: Outcome) -> None:
    """Whatever a trial's outcome, the counts follow the daemon's; a failure is reported once per outcome."""
    view = begin_view([job_map(best_us=1.0)])
    first = trial_event(trial_map(1, outcome), 1, best_us=1.0)
    second = trial_event(trial_map(2, outcome), 2, best_us=1.0)
    view, news = told(view, first, second)
    job = view.jobs[1]
    assert (job.done, job.outcomes, job.best_us) == (2, {outcome: 2}, 1.0)
    if outcome in FAILURES:
        (failure,) = news
        assert isinstance(failure, FirstFailure)
        assert (failure.outcome, failure.trial["id"]) == (outcome, 1)
        assert job.failures == {outcome: first["trial"]}
    else:
        assert news == []


def test_only_a_better_trial_is_a_new_best() -> None:
    """A best is reported when the latency falls, with its config, and no other time."""
    view = begin_view([job_map()])
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
    winner = {"type": "winner", "kernel": KERNEL, "job": 1, "problem": PROBLEM, "device": DEVICE, "config": {"BM": 1}}
    view = begin_view([job_map()])
    view, news = told(view, {**winner, "latency_us": 50.0}, trial_event(trial_map(1, latency_us=50.0), 1))
    assert [piece.figure for piece in news if isinstance(piece, NewBest)] == [50.0]
    assert view.jobs[1].best_config == {"BM": 1}


def test_a_resumed_jobs_old_best_is_no_news() -> None:
    """Only what beats the best that a job came with is reported."""
    view = begin_view([job_map(best_us=50.0)])
    _, news = told(view, trial_event(trial_map(1, latency_us=60.0), 1, best_us=50.0))
    assert news == []


@pytest.mark.parametrize("known", [True, False])
def test_a_trial_that_the_store_no_longer_has_still_counts(known: bool) -> None:
    """An event without its trial moves the bar of a job that is known, and makes none known."""
    view = begin_view([job_map()]) if known else View()
    view, news = told(view, trial_event(trial_map(), 2) | {"trial": None})
    assert news == []
    assert [job.done for job in view.jobs.values()] == ([2] if known else [])


def test_a_trial_of_an_unknown_job_makes_the_job_known() -> None:
    """Anyone who attaches in the middle sees the job from its next trial on."""
    view, news = told(View(), trial_event(trial_map(3), 3))
    job = view.jobs[1]
    assert (job.kernel, job.problem, job.device, job.done, job.state) == (KERNEL, PROBLEM, DEVICE, 3, "running")
    assert [type(piece) for piece in news] == [NewBest]


@pytest.mark.parametrize("old", [None, *JobState])
@pytest.mark.parametrize("new", list(JobState))
def test_beginnings_and_ends_are_told_once(old: JobState | None, new: JobState) -> None:
    """From every state to every other, a job's begin and its end are news exactly when they are new."""
    view = View() if old is None else begin_view([job_map(state=old)])
    _, news = told(view, state_event("job_started", job_map(state=new)))
    if new in ENDED:
        expected: list[type[News]] = [] if old in ENDED else [JobEnded]
    else:
        expected = [JobBegan] if new == JobState.RUNNING and old != JobState.RUNNING else []
    assert [type(piece) for piece in news] == expected


def test_a_job_that_ends_keeps_what_its_trials_told() -> None:
    """The last job map adds its figures and leaves the failures' examples and the winner's config."""
    view = begin_view([job_map()])
    winner = {
        "type": "winner",
        "kernel": KERNEL,
        "job": 1,
        "problem": PROBLEM,
        "device": DEVICE,
        "config": {"BM": 9},
        "latency_us": 20.0,
        "trial": 9,
    }
    done = job_map(state="done", done=4, best_us=20.0, default_us=50.0, reference_us=70.0)
    view, news = told(
        view,
        trial_event(trial_map(1, "hung"), 1),
        {"type": "refining", "kernel": KERNEL, "job": 1, "finalists": 2, "round": 1, "rounds": 3},
        winner,
        state_event("job_done", done),
    )
    job = view.jobs[1]
    assert (job.best_config, job.speedup, job.reference_us, job.round) == ({"BM": 9}, 2.5, 70.0, None)
    assert list(job.failures) == ["hung"]
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
        "problem": {},
        "device": DEVICE,
        "config": {},
        "latency_us": 1.0,
    }
    view, news = told(View(), told_of)
    assert view.jobs == {}
    assert [line for piece in news for line in lines_of(piece)] == []


def test_a_round_of_refining_shows_until_the_job_ends() -> None:
    """The finalists' round stands in the view while they are measured again."""
    view = begin_view([job_map()])
    view, news = told(view, {"type": "refining", "kernel": KERNEL, "job": 1, "finalists": 2, "round": 2, "rounds": 3})
    assert (view.jobs[1].round, news) == ((2, 3), [])


def test_a_second_tuning_knows_what_stood_before() -> None:
    """The winner of an earlier job, remembered or seen, is what the next job of the same case is compared with."""
    earlier = [
        job_map(1, state="done", best_us=90.0, finished=2.0),
        job_map(2, state="done", best_us=80.0, finished=3.0),
        job_map(3, state="done", best_us=None, finished=4.0),
        job_map(4, state="done", best_us=5.0, finished=5.0, problem={"M": 1}),
    ]
    view = add_earlier_winners(View(), earlier)
    view, _ = told(view, state_event("job_started", job_map(9)))
    assert view.jobs[9].before == 80.0
    ended = state_event("job_done", job_map(9, state="done", best_us=40.0))
    winner = {"type": "winner", "kernel": KERNEL, "job": 9, "problem": PROBLEM, "device": DEVICE, "config": {}}
    view, news = told(view, {**winner, "latency_us": 40.0}, ended)
    assert isinstance(news[-1], JobEnded)
    assert news[-1].job.before == 80.0
    view, _ = told(view.without_ended(), state_event("job_started", job_map(10)))
    assert list(view.jobs) == [10]
    assert view.jobs[10].before == 40.0


def test_remembering_never_overwrites_what_was_seen() -> None:
    """A winner that an event reported is newer than any job that was asked for."""
    seen = begin_view([])
    winner = {"type": "winner", "kernel": KERNEL, "job": 9, "problem": PROBLEM, "device": DEVICE, "config": {}}
    seen, _ = told(seen, {**winner, "latency_us": 10.0})
    view = add_earlier_winners(seen, [job_map(1, state="done", best_us=90.0)])
    assert list(view.winners.values()) == [10.0]


def test_catching_up_tells_what_was_missed() -> None:
    """After lost events, the jobs' maps report the ends and beginnings that no one heard."""
    view = begin_view([job_map(1), job_map(2, state="queued")])
    view, news = resync_view(view, [job_map(1, state="done", best_us=1.0), job_map(2), job_map(3, state="queued")])
    assert [type(piece) for piece in news] == [JobEnded, JobBegan]
    assert [job.id for job in view.active] == [2, 3]


def test_time_left_is_the_daemon_s() -> None:
    """The estimate comes from trials' events and job maps, and only for jobs that are open."""
    view, _ = told(begin_view([job_map()]), trial_event(trial_map(), 1, left_s=7.0))
    assert view.jobs[1].left_s == 7.0
    asked = progress.add_estimates(view, [job_map(left_s=5.0, waits_for="a lane"), job_map(9, left_s=1.0)])
    assert [(job.left_s, job.waits_for) for job in asked.jobs.values()] == [(5.0, "a lane")]
    ended = begin_view([job_map(state="done")])
    assert progress.add_estimates(ended, [job_map(left_s=5.0)]) == ended


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "stale", "kernel": KERNEL, "digest": "d"}, KernelStale(KERNEL)),
        (
            {"type": "lane", "device": "cuda:0", "state": "sick", "reason": "no canary"},
            LaneChanged("cuda:0", "sick", "no canary"),
        ),
        ({"type": "lane", "device": "cpu:0", "state": "open", "reason": None}, LaneChanged("cpu:0", "open", "")),
        ({"type": "worker", "pid": 3, "role": "bench", "what": "killed"}, WorkerChanged(3, "bench", "killed")),
        (
            {"type": "reloaded", "added": ["a"], "changed": [], "removed": ["b"], "errors": [{"message": "m"}]},
            Reloaded(("a",), (), ("b",), ({"message": "m"},)),
        ),
        ({"type": "paused", "device": "", "reason": "asked"}, PauseChanged("", True, "asked")),
        ({"type": "resumed"}, PauseChanged(None, False, "")),
        ({"type": "reloaded", "mended": ["/src/tune_x.py"]}, Reloaded((), (), (), (), ("/src/tune_x.py",))),
    ],
)
def test_what_concerns_no_job_is_news_and_changes_no_job(event: dict[str, Any], expected: News) -> None:
    """Saves, lanes and workers are reported as they come."""
    view = begin_view([job_map()])
    assert fold_event(view, event) == (view, (expected,))


def test_a_winner_that_needed_no_job_is_news() -> None:
    """An undone edit leads back to one; a job's own winner is reported by its trials."""
    event: dict[str, Any] = {"type": "winner", "kernel": KERNEL, "job": None, "problem": PROBLEM, "device": DEVICE}
    config: dict[str, Any] = {"BM": 1}
    event |= {"config": config, "latency_us": 7.0, "trial": 3}
    _, news = fold_event(begin_view([]), event)
    assert news == (WinnerChanged(KERNEL, event["problem"], DEVICE, config, 7.0, None),)
    assert lines_of(news[0]) == [f"{KERNEL} [M=64 dtype=float32] on {DEVICE}: known already, 7.000 µs  BM=1"]
    _, of_job = fold_event(begin_view([job_map()]), event | {"job": 1})
    assert [line for piece in of_job for line in lines_of(piece)] == []


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
    assert begin_view([job_map(state=state, best_us=best_us)]).jobs[1].has_winner is reached


def test_the_views_of_others_are_not_changed() -> None:
    """Folding makes a new view; the old one, which a refresh may be drawing, stays as it was."""
    view = begin_view([job_map()])
    kept = (dict(view.jobs), dict(view.winners))
    told(view, trial_event(trial_map(), 1), state_event("job_done", job_map(state="done")))
    assert (dict(view.jobs), dict(view.winners)) == kept


def test_notices_follow_a_jobs_end() -> None:
    """Each on a line of its own; the summary of the search is not one."""
    view = begin_view([job_map()])
    ended = job_map(state="done", best_us=5.0, message="random tried 3 configs\nnotice: X has no effect")
    _, news = told(view, state_event("job_done", ended))
    (line, notice) = lines_of(news[-1])
    assert notice == "  notice: X has no effect"
    assert "random" not in line
