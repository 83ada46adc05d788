from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktuned.cli.lines import format_file_error
from ktuned.cli.watch.board import Board, BoardRow, add_answers, add_estimates, catch_up, fold_event, keep_kernels
from ktuned.cli.watch.cells import shorten_path
from ktuned.model.objective import LATENCY
from ktuned.model.values import canonical
from ktuned.protocol import read_event, read_jobs
from tests.cli.samples import (
    DEVICE,
    KERNEL,
    PROBLEM,
    answer,
    job_info,
    job_map,
    known_kernels,
    state_event,
    trial_event,
    trial_map,
)

CASE = (KERNEL, canonical(PROBLEM), DEVICE, LATENCY)
STALE = {"type": "stale", "kernel": KERNEL, "digest": "e"}


def winner(latency_us: float, job: int | None = 1, **changes: Any) -> dict[str, Any]:
    """Return a ``winner`` event."""
    event = {"type": "winner", "kernel": KERNEL, "job": job, "problem": PROBLEM, "device": DEVICE, "config": {"BM": 1}}
    return event | {"latency_us": latency_us, "trial": 1} | changes


def after(*events: Mapping[str, Any], board: Board | None = None) -> Board:
    """Return a board after events, each a second later than the one before."""
    board = board or add_answers(Board(), [answer()])
    for second, event in enumerate(events):
        board = fold_event(board, read_event(event), 100.0 + second)
    return board


def row(board: Board) -> BoardRow:
    """Return the sample's row."""
    return board.rows[CASE]


def test_a_save_and_its_retuning() -> None:
    """The old winner is what the new one is held against, from the save to the end of the job."""
    saved = after(STALE)
    assert (row(saved).state, row(saved).saved_at, row(saved).before, row(saved).current) == (
        "stale",
        100.0,
        12.5,
        None,
    )
    running = after(
        state_event("job_queued", job_map(state="queued")),
        state_event("job_started", job_map()),
        trial_event(trial_map(1, "compile_error"), 1),
        winner(10.0),
        trial_event(trial_map(2, "hung"), 2),
        board=saved,
    )
    job = row(running).job
    assert job is not None
    assert (row(running).state, job.done, job.total) == ("running", 2, 4)
    assert (row(running).before, row(running).current, row(running).gain) == (12.5, 10.0, 1.25)
    assert row(running).failure == "compile_error: why it is compile_error"
    done = after(state_event("job_done", job_map(state="done", best_us=5.0, done=4)), board=running)
    assert (row(done).state, row(done).current, row(done).gain) == ("tuned", 5.0, 2.5)


def test_a_second_save_compares_with_the_winner_before_the_first() -> None:
    """While nothing new is known, another save does not forget what was."""
    assert row(after(STALE, STALE)).before == 12.5
    assert row(after(STALE, STALE)).saved_at == 101.0


def test_edit_that_fails_keeps_the_old_winner_and_tells_the_compiler_s_line() -> None:
    """The row says failed, and why, and there is no new figure; a new save clears that."""
    board = after(
        STALE,
        state_event("job_started", job_map()),
        state_event("job_done", job_map(state="failed", message="gemm.cc:3:5: error: no\nmore")),
    )
    assert (row(board).state, row(board).failure) == ("failed", "gemm.cc:3:5: error: no")
    assert (row(board).before, row(board).current) == (12.5, None)
    assert row(after(STALE, board=board)).failure == ""


def test_undone_edit_has_its_old_winner_at_once() -> None:
    """A winner without a job, for a problem that is specialised, is the row's."""
    board = after(STALE, winner(12.5, None, problem={"M": 64}))
    assert (row(board).state, row(board).current, row(board).gain) == ("fresh", 12.5, 1.0)


def test_superseded_job_leaves_the_row_stale_and_older_ones_say_nothing() -> None:
    """A cancelled job's row waits for the next one; events of an older job than the row's change nothing."""
    board = after(STALE, state_event("job_started", job_map(2)))
    assert row(after(state_event("job_done", job_map(1, state="failed")), board=board)) == row(board)
    assert row(after(state_event("job_done", job_map(2, state="cancelled")), board=board)).state == "stale"


def test_tuning_anew_without_a_save_compares_with_the_winner_before() -> None:
    """What a key set off is held against what was there."""
    board = after(state_event("job_started", job_map()), winner(10.0))
    assert (row(board).before, row(board).current) == (12.5, 10.0)


def test_a_row_shows_the_running_job_until_the_next_one_starts() -> None:
    """Whichever of the two was heard of first, and from then on only the newer one."""
    first, second = state_event("job_started", job_map(1)), state_event("job_queued", job_map(2, state="queued"))
    for events in ((first, second), (second, first)):
        shown = row(after(*events)).job
        assert shown is not None
        assert shown.id == 1
    board = after(
        first, second, state_event("job_done", job_map(1, state="done")), state_event("job_started", job_map(2))
    )
    shown = row(board).job
    assert shown is not None
    assert (shown.id, row(board).state) == (2, "running")
    assert row(after(first, board=board)).job == shown


def test_catching_up_makes_no_news() -> None:
    """Jobs that were there before show their state, not a comparison; the newest of a case counts."""
    jobs = [job_info(3, state="paused"), job_info(1, state="done", best_us=9.0, finished=5.0)]
    board = catch_up(add_answers(Board(), [answer()]), jobs)
    job = row(board).job
    assert job is not None
    assert (row(board).state, job.id, row(board).before) == ("paused", 3, None)
    error = {
        "path": "/src/tune_x.py",
        "line": 3,
        "message": "NameError: x",
        "excerpt": "y = x\n    ^",
        "hint": "define x",
    }
    root = {"path": "/src", "name": "project", "python": "/python"}
    known = keep_kernels(board, known_kernels(errors=[error], roots=[root]))
    assert list(known.rows) == [CASE]
    assert [format_file_error(error) for error in known.errors] == ["/src/tune_x.py:3: NameError: x"]
    assert (known.roots, known.problems) == (("/src",), 1)
    assert keep_kernels(add_answers(Board(), [answer()]), known_kernels()).rows == {}


def test_row_of_an_unknown_device_becomes_its_job_s() -> None:
    """A case whose device is not known yet is not shown twice once it is."""
    board = add_answers(Board(), [answer(device=None, status="default", latency_us=None)])
    board = after(state_event("job_started", job_map()), board=board)
    assert [entry.device for entry in board.rows.values()] == [DEVICE]


def test_estimates_reach_open_jobs_alone() -> None:
    """How long and what for is reported jobs that wait or run."""
    board = after(state_event("job_queued", job_map(state="queued")))
    waiting = add_estimates(board, [job_info(state="queued", waits_for="all tuning is paused", left_s=None)])
    job = row(waiting).job
    assert job is not None
    assert job.waits_for == "all tuning is paused"
    assert row(add_estimates(after(), [job_info(left_s=3.0)])).job is None


def test_paused_devices_are_shown_and_a_full_disk_without_device() -> None:
    """Devices come and go; a pause without a device says that nothing can be recorded."""
    board = after({"type": "paused", "device": "", "reason": "asked for"}, {"type": "paused", "device": "x"})
    assert board.paused_everything
    assert after({"type": "resumed", "device": ""}, board=board).paused == {"x"}
    full = after({"type": "paused", "reason": "the disk is full"})
    assert full.stalled == "the disk is full"
    assert after({"type": "resumed"}, board=full).stalled == ""


def test_unknown_events_change_nothing() -> None:
    """Types are only ever added."""
    assert after({"type": "lane", "kernel": None, "device": "cpu:0", "state": "sick"}) == after()
    assert after({"type": "of_a_newer_daemon", "kernel": None}) == after()


def test_a_job_without_a_device_has_one_row() -> None:
    """Where nothing can be measured the lookup's answer names no device, and the job what it compiled for."""
    failed = job_info(state="failed", device="sm_90a", message="no device: no GPU")
    asked = answer(status="default", device=None, latency_us=None, age_s=None)
    for board in (
        add_answers(catch_up(Board(), [failed]), [asked]),
        catch_up(add_answers(Board(), [asked]), [failed]),
    ):
        (only,) = board.rows.values()
        assert (only.device, only.state, only.failure) == ("sm_90a", "failed", "no device: no GPU")


def test_a_compiling_alone_has_no_row() -> None:
    """What is only compiled has no row of its own that stays stale for good, and the kernel's row is not its."""
    job = job_map(9, state="running", device="sm_90a", plan={"time_limit_s": None, "compile_only": True})
    assert after(state_event("job_started", job), board=Board()).rows == {}
    assert catch_up(Board(), read_jobs([job])).rows == {}


def test_a_save_makes_only_what_has_a_figure_stale() -> None:
    """A problem that never had a winner has none from before."""
    failed = after(state_event("job_done", job_map(state="failed", message="no")), board=Board())
    assert row(failed).failure == "no"
    saved = after(STALE, board=failed)
    assert (row(saved).state, row(saved).failure) == ("default", "")


def test_a_kernel_that_is_gone_goes_from_the_board() -> None:
    """Its row stays only until its job has ended."""
    running = after(state_event("job_started", job_map()))
    assert set(keep_kernels(running, known_kernels()).rows) == {CASE}
    done = after(state_event("job_done", job_map(state="done", best_us=5.0)), board=running)
    assert keep_kernels(done, known_kernels()).rows == {}
    assert set(keep_kernels(done, known_kernels(KERNEL)).rows) == {CASE}


def test_a_row_has_its_winner_s_config() -> None:
    """From the lookup, from a winner that a job found, and through an edit until there is another."""
    known = add_answers(Board(), [answer()])
    assert row(known).config == {"BM": 32, "fast": True}
    assert row(after(STALE, board=known)).config == {"BM": 32, "fast": True}
    assert row(after(state_event("job_started", job_map()), winner(9.0), board=known)).config == {"BM": 1}


def test_problems_are_errors_of_files_and_rows_without_a_figure() -> None:
    """A config that fails among others that work is none; a failed job, or failures alone so far, are."""
    failing = trial_event(trial_map(1, "compile_error"), 1, best_us=None)
    begun = after(STALE, state_event("job_started", job_map()), failing)
    assert (row(begun).is_problem, begun.problems) == (True, 1)
    assert not row(after(winner(9.0), board=begun)).is_problem
    failed = after(state_event("job_done", job_map(state="failed", message="no")))
    assert failed.problems == 1


def test_paths_below_a_watched_directory_are_short() -> None:
    """They begin with the name of the innermost directory that is watched; other lines stay."""
    roots = ["/home/me/work", "/home/me/work/deep/kernels", "/"]
    assert shorten_path("/home/me/work/tune_it.py:1: no", roots) == "work/tune_it.py:1: no"
    assert shorten_path("/home/me/work/deep/kernels/tune_it.py", roots) == "kernels/tune_it.py"
    for line in ("/home/me/workshop/tune_it.py", "the daemon has no /home/me/work/a", ""):
        assert shorten_path(line, roots) == line
        assert shorten_path(line, []) == line
