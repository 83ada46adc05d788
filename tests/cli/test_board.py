from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktuned.cli.lines import format_file_error
from ktuned.cli.watch.board import Board, BoardRow, add_answers, add_estimates, catch_up, fold_event, keep_kernels
from ktuned.cli.watch.cells import choose_message, shorten_path
from ktuned.model.objective import LATENCY
from ktuned.model.values import canonical
from ktuned.protocol import read_event, read_jobs
from tests.cli.samples import (
    DEVICE,
    KERNEL,
    PROBLEM,
    make_answer,
    make_job_info,
    make_job_map,
    make_kernels_answer,
    make_state_event,
    make_trial_event,
    make_trial_map,
)

CASE = (KERNEL, canonical(PROBLEM), DEVICE, LATENCY)
STALE = {"type": "stale", "kernel": KERNEL, "digest": "e"}


def make_winner_event(latency_us: float, job: int | None = 1, **changes: Any) -> dict[str, Any]:
    """Return a ``winner`` event."""
    event = {"type": "winner", "kernel": KERNEL, "job": job, "problem": PROBLEM, "device": DEVICE, "config": {"BM": 1}}
    return event | {"latency_us": latency_us, "trial": 1} | changes


def fold_events(*events: Mapping[str, Any], board: Board | None = None) -> Board:
    """Apply events to a board, each a second later than the one before."""
    board = board or add_answers(Board(), [make_answer()])
    for second, event in enumerate(events):
        board = fold_event(board, read_event(event), 100.0 + second)
    return board


def find_row(board: Board) -> BoardRow:
    """Return the row of the sample kernel."""
    return board.rows[CASE]


def test_a_save_and_its_retuning() -> None:
    """The row compares the new winner with the old one, from the save until the job ends."""
    saved = fold_events(STALE)
    assert (find_row(saved).state, find_row(saved).saved_at, find_row(saved).before, find_row(saved).current) == (
        "stale",
        100.0,
        12.5,
        None,
    )
    running = fold_events(
        make_state_event("job_queued", make_job_map(state="queued")),
        make_state_event("job_started", make_job_map()),
        make_trial_event(make_trial_map(1, "compile_error"), 1),
        make_winner_event(10.0),
        make_trial_event(make_trial_map(2, "hung"), 2),
        board=saved,
    )
    job = find_row(running).job
    assert job is not None
    assert (find_row(running).state, job.done, job.total) == ("running", 2, 4)
    assert (find_row(running).before, find_row(running).current, find_row(running).gain) == (12.5, 10.0, 1.25)
    assert find_row(running).failure == "compile_error: why it is compile_error"
    done = fold_events(make_state_event("job_done", make_job_map(state="done", best_us=5.0, done=4)), board=running)
    assert (find_row(done).state, find_row(done).current, find_row(done).gain) == ("tuned", 5.0, 2.5)


def test_a_second_save_compares_with_the_winner_before_the_first() -> None:
    """Two saves in a row without a result between them compare with the last known winner."""
    assert find_row(fold_events(STALE, STALE)).before == 12.5
    assert find_row(fold_events(STALE, STALE)).saved_at == 101.0


def test_edit_that_fails_keeps_the_old_winner_and_tells_the_compiler_s_line() -> None:
    """The row shows ``failed`` with the compiler's line and no new figure, until the next save."""
    board = fold_events(
        STALE,
        make_state_event("job_started", make_job_map()),
        make_state_event("job_done", make_job_map(state="failed", message="gemm.cc:3:5: error: no\nmore")),
    )
    assert (find_row(board).state, find_row(board).failure) == ("failed", "gemm.cc:3:5: error: no")
    assert (find_row(board).before, find_row(board).current) == (12.5, None)
    assert find_row(fold_events(STALE, board=board)).failure == ""


def test_undone_edit_has_its_old_winner_at_once() -> None:
    """A winner without a job updates the row at once, also for a specialised problem."""
    board = fold_events(STALE, make_winner_event(12.5, None, problem={"M": 64}))
    assert (find_row(board).state, find_row(board).current, find_row(board).gain) == ("fresh", 12.5, 1.0)


def test_superseded_job_leaves_the_row_stale_and_older_ones_say_nothing() -> None:
    """A row stays stale after its job was cancelled, and ignores events of older jobs."""
    board = fold_events(STALE, make_state_event("job_started", make_job_map(2)))
    assert find_row(
        fold_events(make_state_event("job_done", make_job_map(1, state="failed")), board=board)
    ) == find_row(board)
    assert (
        find_row(fold_events(make_state_event("job_done", make_job_map(2, state="cancelled")), board=board)).state
        == "stale"
    )


def test_tuning_anew_without_a_save_compares_with_the_winner_before() -> None:
    board = fold_events(make_state_event("job_started", make_job_map()), make_winner_event(10.0))
    assert (find_row(board).before, find_row(board).current) == (12.5, 10.0)


def test_a_row_shows_the_running_job_until_the_next_one_starts() -> None:
    """The order in which the two jobs are announced does not matter."""
    first, second = (
        make_state_event("job_started", make_job_map(1)),
        make_state_event("job_queued", make_job_map(2, state="queued")),
    )
    for events in ((first, second), (second, first)):
        job = find_row(fold_events(*events)).job
        assert job is not None
        assert job.id == 1
    board = fold_events(
        first,
        second,
        make_state_event("job_done", make_job_map(1, state="done")),
        make_state_event("job_started", make_job_map(2)),
    )
    job = find_row(board).job
    assert job is not None
    assert (job.id, find_row(board).state) == (2, "running")
    assert find_row(fold_events(first, board=board)).job == job


def test_catching_up_makes_no_news() -> None:
    """Jobs from before the start show their state without a comparison; the newest job of a case counts."""
    jobs = [make_job_info(3, state="paused"), make_job_info(1, state="done", best_us=9.0, finished=5.0)]
    board = catch_up(add_answers(Board(), [make_answer()]), jobs)
    job = find_row(board).job
    assert job is not None
    assert (find_row(board).state, job.id, find_row(board).before) == ("paused", 3, None)
    error = {
        "path": "/src/tune_x.py",
        "line": 3,
        "message": "NameError: x",
        "excerpt": "y = x\n    ^",
        "hint": "define x",
    }
    root = {"path": "/src", "name": "project", "python": "/python"}
    filtered = keep_kernels(board, make_kernels_answer(errors=[error], roots=[root]))
    assert list(filtered.rows) == [CASE]
    assert [format_file_error(error) for error in filtered.errors] == ["/src/tune_x.py:3: NameError: x"]
    assert (filtered.roots, filtered.problems) == (("/src",), 1)
    assert keep_kernels(add_answers(Board(), [make_answer()]), make_kernels_answer()).rows == {}


def test_row_of_an_unknown_device_becomes_its_job_s() -> None:
    """A row without a device takes the device of its job, and no second row appears."""
    board = add_answers(Board(), [make_answer(device=None, status="default", latency_us=None)])
    board = fold_events(make_state_event("job_started", make_job_map()), board=board)
    assert [entry.device for entry in board.rows.values()] == [DEVICE]


def test_estimates_reach_open_jobs_alone() -> None:
    """Time left and the reason for waiting are shown for running and queued jobs only."""
    board = fold_events(make_state_event("job_queued", make_job_map(state="queued")))
    waiting = add_estimates(board, [make_job_info(state="queued", waits_for="all tuning is paused", left_s=None)])
    job = find_row(waiting).job
    assert job is not None
    assert job.waits_for == "all tuning is paused"
    assert find_row(add_estimates(fold_events(), [make_job_info(left_s=3.0)])).job is None


def test_paused_devices_are_shown_and_a_full_disk_without_device() -> None:
    """A pause without a device means that the disk is full and nothing can be recorded."""
    board = fold_events({"type": "paused", "device": "", "reason": "asked for"}, {"type": "paused", "device": "x"})
    assert board.paused_everything
    assert fold_events({"type": "resumed", "device": ""}, board=board).paused == {"x"}
    full = fold_events({"type": "paused", "reason": "the disk is full"})
    assert full.stalled == "the disk is full"
    assert fold_events({"type": "resumed"}, board=full).stalled == ""


def test_unknown_events_change_nothing() -> None:
    """A newer daemon may send events of other types."""
    assert fold_events({"type": "lane", "kernel": None, "device": "cpu:0", "state": "sick"}) == fold_events()
    assert fold_events({"type": "of_a_newer_daemon", "kernel": None}) == fold_events()


def test_a_job_without_a_device_has_one_row() -> None:
    """The lookup's answer names no device, and the job the target that it compiles for: both are one row."""
    failed = make_job_info(state="failed", device="sm_90a", message="no device: no GPU")
    answer = make_answer(status="default", device=None, latency_us=None, age_s=None)
    for board in (
        add_answers(catch_up(Board(), [failed]), [answer]),
        catch_up(add_answers(Board(), [answer]), [failed]),
    ):
        (only,) = board.rows.values()
        assert (only.device, only.state, only.failure) == ("sm_90a", "failed", "no device: no GPU")


def test_a_compiling_alone_has_no_row() -> None:
    """A compile-only job makes no row, which would stay stale for ever, and does not change the kernel's row."""
    job = make_job_map(9, state="running", device="sm_90a", plan={"time_limit_s": None, "compile_only": True})
    assert fold_events(make_state_event("job_started", job), board=Board()).rows == {}
    assert catch_up(Board(), read_jobs([job])).rows == {}


def test_a_trial_of_named_configs_does_not_fail_its_kernel() -> None:
    """Somebody tried one config: the row keeps the winner and its job, unless that config is the new winner."""
    probe = make_job_map(9, state="failed", message="no", plan={"time_limit_s": None, "configs": [{"BM": 7}]})
    started = make_state_event("job_started", probe | {"state": "running"})
    tried = fold_events(started, make_state_event("job_done", probe))
    assert (find_row(tried).state, find_row(tried).job, find_row(tried).is_problem) == ("fresh", None, False)
    assert (find_row(catch_up(tried, read_jobs([probe]))).state, tried.problems) == ("fresh", 0)
    untuned = add_answers(Board(), [make_answer(status="default", config=None, latency_us=None)])
    won = find_row(fold_events(make_winner_event(5.0, job=9), board=untuned))
    assert (won.state, won.current) == ("fresh", 5.0)


def test_each_failing_outcome_has_a_line() -> None:
    """One that fails alone is shown in full."""
    started = make_state_event("job_started", make_job_map())
    first = fold_events(started, make_trial_event(make_trial_map(1, "compile_error"), 1))
    assert choose_message(find_row(first), None)[0] == "compile_error: why it is compile_error\nmore of it"
    both = fold_events(make_trial_event(make_trial_map(2, "crashed"), 2), board=first)
    assert (
        choose_message(find_row(both), None)[0] == "compile_error: why it is compile_error\ncrashed: why it is crashed"
    )


def test_a_save_makes_only_what_has_a_figure_stale() -> None:
    """A problem without a winner does not become stale."""
    failed = fold_events(make_state_event("job_done", make_job_map(state="failed", message="no")), board=Board())
    assert find_row(failed).failure == "no"
    saved = fold_events(STALE, board=failed)
    assert (find_row(saved).state, find_row(saved).failure) == ("default", "")


def test_a_kernel_that_is_gone_goes_from_the_board() -> None:
    """The row stays until its job has ended."""
    running = fold_events(make_state_event("job_started", make_job_map()))
    assert set(keep_kernels(running, make_kernels_answer()).rows) == {CASE}
    done = fold_events(make_state_event("job_done", make_job_map(state="done", best_us=5.0)), board=running)
    assert keep_kernels(done, make_kernels_answer()).rows == {}
    assert set(keep_kernels(done, make_kernels_answer(KERNEL)).rows) == {CASE}


def test_a_row_has_its_winner_s_config() -> None:
    """The config comes from the lookup, then from a job's winner; an edit keeps it until the next winner."""
    answered = add_answers(Board(), [make_answer()])
    assert find_row(answered).config == {"BM": 32, "fast": True}
    assert find_row(fold_events(STALE, board=answered)).config == {"BM": 32, "fast": True}
    assert find_row(
        fold_events(make_state_event("job_started", make_job_map()), make_winner_event(9.0), board=answered)
    ).config == {"BM": 1}


def test_problems_are_errors_of_files_and_rows_without_a_figure() -> None:
    """A failed job, or one whose configs have all failed so far, is a problem; a single failed config is not."""
    failing = make_trial_event(make_trial_map(1, "compile_error"), 1, best_us=None)
    failing_board = fold_events(STALE, make_state_event("job_started", make_job_map()), failing)
    assert (find_row(failing_board).is_problem, failing_board.problems) == (True, 1)
    assert not find_row(fold_events(make_winner_event(9.0), board=failing_board)).is_problem
    failed = fold_events(make_state_event("job_done", make_job_map(state="failed", message="no")))
    assert failed.problems == 1


def test_paths_below_a_watched_directory_are_short() -> None:
    """A path begins with the name of the innermost watched directory; other lines are unchanged."""
    roots = ["/home/me/work", "/home/me/work/deep/kernels", "/"]
    assert shorten_path("/home/me/work/tune_it.py:1: no", roots) == "work/tune_it.py:1: no"
    assert shorten_path("/home/me/work/deep/kernels/tune_it.py", roots) == "kernels/tune_it.py"
    for line in ("/home/me/workshop/tune_it.py", "the daemon has no /home/me/work/a", ""):
        assert shorten_path(line, roots) == line
        assert shorten_path(line, []) == line
