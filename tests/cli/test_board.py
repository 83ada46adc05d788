from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

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
from tests.stories import check_story

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


STORIES = {
    "a save and its re-tuning: the new winner is compared with the old one until the job ends": """
        stale: stale before=12.5; saved: 100.0; queued 1; started 1; trial compile_error 1; winner 10.0; trial hung 2
        look: running before=12.5 now=10.0 gain=1.25; job: 1 2/4; failure: compile_error: why it is compile_error
        done 1 5.0: tuned before=12.5 now=5.0 gain=2.5""",
    "two saves without a result between them compare with the last known winner": """
        stale; stale: stale before=12.5; saved: 101.0""",
    "an edit that fails keeps the old winner, and tells the compiler's line until the next save": """
        stale; started 1; failed 1: failed before=12.5; failure: gemm.cc:3:5: error: no; stale; failure:""",
    "an undone edit has its old winner at once, also for a specialised problem": """
        stale; restored 12.5: fresh before=12.5 now=12.5 gain=1.0""",
    "a superseded job leaves the row stale, and older jobs say nothing": """
        stale; started 2: running before=12.5; failed 1: running before=12.5; cancelled 2: stale before=12.5""",
    "a tuning without a save compares with the winner before it": """
        started 1; winner 10.0: running before=12.5 now=10.0 gain=1.25""",
    "a row shows the running job until the next one starts": """
        started 1; queued 2; job: 1 0/4; done 1 5.0; started 2: running before=5.0 now=5.0 gain=1.0; job: 2 0/4
        started 1; job: 2 0/4""",
    "the order in which two jobs are announced does not matter": "queued 2; started 1; job: 1 0/4",
    "a row has the config of the lookup, then of a job's winner; an edit keeps it": """
        config: {'BM': 32, 'fast': True}; stale; config: {'BM': 32, 'fast': True}; started 1; winner 9.0
        config: {'BM': 1}""",
}
"""Events, a second after the other, and looks at the row: its state and figures, its failure, its job."""


def make_event(text: str) -> dict[str, Any]:
    """Return the event of a step."""
    name, *words = text.split()
    match name:
        case "stale":
            return STALE
        case "winner":
            return make_winner_event(float(words[0]))
        case "restored":
            return make_winner_event(float(words[0]), None, problem={"M": 64})
        case "trial":
            return make_trial_event(make_trial_map(int(words[1]), words[0]), int(words[1]))
        case "queued" | "started":
            state = "running" if name == "started" else name
            return make_state_event(f"job_{name}", make_job_map(int(words[0]), state=state))
        case _:
            figures = {"best_us": float(words[1]), "done": 4} if name == "done" else {}
            message = "gemm.cc:3:5: error: no\nmore" if name == "failed" else ""
            return make_state_event("job_done", make_job_map(int(words[0]), state=name, message=message, **figures))


def look_at_row(row: BoardRow, what: str) -> str:
    """Return what is seen of a row."""
    match what:
        case "saved":
            return str(row.saved_at)
        case "failure":
            return row.failure
        case "config":
            return str(row.config)
        case "job":
            return "none" if row.job is None else f"{row.job.id} {row.job.done}/{row.job.total}"
        case _:
            figures = {"before": row.before, "now": row.current, "gain": row.gain}
            return " ".join([row.state, *(f"{name}={value}" for name, value in figures.items() if value is not None)])


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_row_tells_the_story(story: str) -> None:
    board, now = add_answers(Board(), [make_answer()]), 100.0

    def take_step(event: str) -> str:
        nonlocal board, now
        if event in ("look", "saved", "failure", "config", "job"):
            return look_at_row(find_row(board), event)
        board = fold_event(board, read_event(make_event(event)), now)
        now += 1.0
        return look_at_row(find_row(board), "look")

    check_story(story, take_step)


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
