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
    make_job_info,
    make_job_map,
    make_listed_trial,
    make_state_event,
    make_trial_event,
    make_trial_map,
)


def make_row(objective: str = "latency") -> BoardRow:
    """Return the sample's row while its job runs."""
    board = fold_event(Board(), read_event(make_state_event("job_started", make_job_map(objective=objective))), 0.0)
    return board.rows[(KERNEL, canonical(PROBLEM), DEVICE, Objective(objective))]


def make_log(*figures: float | None, objective: str = "latency") -> TrialLog:
    """Return a log of trials with these latencies in µs; ``None`` is a failed trial."""
    trials = [
        make_listed_trial(number, "measured" if figure else "compile_error", latency_us=figure)
        for number, figure in enumerate(figures, 1)
    ]
    return open_log(make_row(objective), trials, trials)


def test_best_so_far_has_one_figure_for_each_measured_trial() -> None:
    assert make_log(9.0, None, 12.0, 7.0).best_so_far == [9.0, 9.0, 7.0]
    assert make_log(None).best_so_far == []


def test_the_best_of_an_objective_to_maximise() -> None:
    """The log holds costs, the inverse figures; trials without the figure are left out."""
    trials = [make_listed_trial(number, metrics={"tflops": value}) for number, value in ((1, 2.0), (2, 4.0), (3, 1.0))]
    log = open_log(make_row("max:tflops"), [*trials, make_listed_trial(4)], trials)
    assert log.best_so_far == [0.5, 0.25, 0.25]
    assert [trial.id for trial in log.listed.filter_items(log.trials.values(), Choice())][:3] == [2, 1, 3]


def test_history_has_the_best_of_each_state_of_the_sources() -> None:
    """The present state comes last."""
    trials = [
        make_listed_trial(1, latency_us=30.0, digest="a"),
        make_listed_trial(2, latency_us=20.0, digest="a"),
        make_listed_trial(3, latency_us=25.0, digest="b"),
        make_listed_trial(4, latency_us=21.0),
        make_listed_trial(5, latency_us=19.0),
    ]
    log = open_log(make_row(), trials[3:], reversed(trials))
    assert [(trial.id, trial.latency_us) for trial in log.history] == [(2, 20.0), (3, 25.0), (5, 19.0)]


def apply_event(log: TrialLog, event: dict[str, Any]) -> TrialLog:
    """Return the log after an event."""
    read = read_event(event)
    assert isinstance(read, Event)
    return follow_event(log, read)


def make_winner_event(trial: int, job: int) -> dict[str, Any]:
    """Return a ``winner`` event."""
    event = {"type": "winner", "kernel": KERNEL, "problem": PROBLEM, "device": DEVICE, "config": {}, "latency_us": 1.0}
    return event | {"job": job, "trial": trial}


def test_events_add_trials_and_move_the_mark_of_the_winner() -> None:
    """Other kernels and devices change nothing; a trial that is measured again keeps its row."""
    log = apply_event(make_log(9.0), make_trial_event(make_trial_map(2, latency_us=7.0), 2))
    assert log.best_so_far == [9.0, 7.0]
    assert apply_event(log, make_trial_event(make_trial_map(3, job=8, kernel="project:dot"), 3)) == log
    assert apply_event(log, make_trial_event(make_trial_map(3, job=8, device="H200"), 3)) == log
    assert apply_event(log, make_trial_event(make_trial_map(3), 3) | {"trial": None}) == log
    won = apply_event(log, make_winner_event(2, job=1))
    assert (log.winner, won.winner) == (None, 2)
    updated = apply_event(won, make_trial_event(make_trial_map(2, latency_us=8.0), 2))
    assert (updated.trials[2].latency_us, updated.winner) == (8.0, 2)
    assert apply_event(won, make_winner_event(1, job=7)) == won


def test_an_edit_and_the_end_of_a_job_make_the_log_outdated() -> None:
    kernel = KernelName(KERNEL)
    assert is_outdated(make_log(9.0), KernelStale(kernel=kernel))
    assert is_outdated(make_log(9.0), JobDone.from_job(make_job_info(state="done")))
    assert not is_outdated(make_log(9.0), KernelStale(kernel=KernelName("project:dot")))
    assert not is_outdated(make_log(9.0), TrialDone(kernel=kernel, job=1, done=1, trial=None))
