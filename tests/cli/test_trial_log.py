from __future__ import annotations

from typing import Any

from ktuned.cli.watch.board import Board, BoardRow, fold_event
from ktuned.cli.watch.choice import Choice
from ktuned.cli.watch.trial_log import TrialLog, follow_event, is_outdated, open_log
from ktuned.model import KernelName, Objective, canonical
from ktuned.protocol import Event, JobDone, KernelStale, TrialDone, read_event
from tests.cli.samples import (
    DEVICE,
    KERNEL,
    PROBLEM,
    job_info,
    job_map,
    listed_trial,
    state_event,
    trial_event,
    trial_map,
)


def row(objective: str = "latency") -> BoardRow:
    """Return the sample's row while its job runs."""
    board = fold_event(Board(), read_event(state_event("job_started", job_map(objective=objective))), 0.0)
    return board.rows[(KERNEL, canonical(PROBLEM), DEVICE, Objective(objective))]


def log(*figures: float | None, objective: str = "latency") -> TrialLog:
    """Return a log of trials with these latencies; those without one failed."""
    trials = [
        listed_trial(number, "measured" if figure else "compile_error", latency_us=figure)
        for number, figure in enumerate(figures, 1)
    ]
    return open_log(row(objective), trials, trials)


def test_best_so_far_leaves_failures_out() -> None:
    """One figure for each measured trial, in their order."""
    assert log(9.0, None, 12.0, 7.0).best_so_far == [9.0, 9.0, 7.0]
    assert log(None).best_so_far == []


def test_best_by_a_figure_that_is_to_be_large() -> None:
    """Costs fall as the figure grows, and a trial without the figure has none."""
    trials = [listed_trial(number, metrics={"tflops": value}) for number, value in ((1, 2.0), (2, 4.0), (3, 1.0))]
    found = open_log(row("max:tflops"), [*trials, listed_trial(4)], trials)
    assert found.best_so_far == [0.5, 0.25, 0.25]
    assert [trial.id for trial in found.listed.filter_items(found.trials.values(), Choice())][:3] == [2, 1, 3]


def test_history_has_the_best_of_each_state_of_the_sources() -> None:
    """In the order in which they were tried, with the present one last, once."""
    past = [
        listed_trial(1, latency_us=30.0, digest="a"),
        listed_trial(2, latency_us=20.0, digest="a"),
        listed_trial(3, latency_us=25.0, digest="b"),
        listed_trial(4, latency_us=21.0),
        listed_trial(5, latency_us=19.0),
    ]
    found = open_log(row(), past[3:], reversed(past))
    assert [(trial.id, trial.latency_us) for trial in found.history] == [(2, 20.0), (3, 25.0), (5, 19.0)]


def after(log: TrialLog, event: dict[str, Any]) -> TrialLog:
    """Return the log after an event's map."""
    read = read_event(event)
    assert isinstance(read, Event)
    return follow_event(log, read)


def winner(trial: int, job: int) -> dict[str, Any]:
    """Return a ``winner`` event."""
    known = {"type": "winner", "kernel": KERNEL, "problem": PROBLEM, "device": DEVICE, "config": {}, "latency_us": 1.0}
    return known | {"job": job, "trial": trial}


def test_events_add_trials_and_move_the_winner_s_mark() -> None:
    """A trial of another kernel or device changes nothing; one that is measured again takes its own place."""
    found = after(log(9.0), trial_event(trial_map(2, latency_us=7.0), 2))
    assert found.best_so_far == [9.0, 7.0]
    assert after(found, trial_event(trial_map(3, job=8, kernel="project:dot"), 3)) == found
    assert after(found, trial_event(trial_map(3, job=8, device="H200"), 3)) == found
    assert after(found, trial_event(trial_map(3), 3) | {"trial": None}) == found
    won = after(found, winner(2, job=1))
    assert (found.winner, won.winner) == (None, 2)
    again = after(won, trial_event(trial_map(2, latency_us=8.0), 2))
    assert (again.trials[2].latency_us, again.winner) == (8.0, 2)
    assert after(won, winner(1, job=7)) == won


def test_an_edit_and_the_end_of_a_job_have_the_log_read_again() -> None:
    """Events of other kernels do not."""
    kernel = KernelName(KERNEL)
    assert is_outdated(log(9.0), KernelStale(kernel=kernel))
    assert is_outdated(log(9.0), JobDone.from_job(job_info(state="done")))
    assert not is_outdated(log(9.0), KernelStale(kernel=KernelName("project:dot")))
    assert not is_outdated(log(9.0), TrialDone(kernel=kernel, job=1, done=1, trial=None))
