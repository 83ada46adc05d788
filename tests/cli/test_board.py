from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from ktuned.cli.watch.board import Board, Row, catch_up, estimate, fold, keep, know, shown
from ktuned.cli.watch.screen import render
from ktuned.model.objective import LATENCY
from ktuned.model.values import canonical
from tests.cli.samples import DEVICE, KERNEL, PROBLEM, answer_map, job_map, state_event, trial_event, trial_map

CASE = (KERNEL, canonical(PROBLEM), DEVICE, LATENCY)
STALE = {"type": "stale", "kernel": KERNEL, "digest": "e"}


def winner(latency_us: float, job: int | None = 1, **changes: Any) -> dict[str, Any]:
    """Return a ``winner`` event."""
    event = {"type": "winner", "kernel": KERNEL, "job": job, "problem": PROBLEM, "device": DEVICE, "config": {"BM": 1}}
    return event | {"latency_us": latency_us, "trial": 1} | changes


def after(*events: Mapping[str, Any], board: Board | None = None) -> Board:
    """Return a board after events, each a second later than the one before."""
    board = board or know(Board(), [answer_map()])
    for second, event in enumerate(events):
        board = fold(board, event, 100.0 + second)
    return board


def row(board: Board) -> Row:
    """Return the sample's row."""
    return board.rows[CASE]


def drawn(board: Board, *, now: float = 200.0, width: int = 140, height: int = 20) -> list[str]:
    """Return what a terminal would show, line by line, without its colours."""
    console = Console(file=io.StringIO(), record=True, width=width, height=height, markup=False, highlight=False)
    console.print(render(board, "ktuned watch /src", now, height))
    return [line.rstrip() for line in console.export_text().splitlines()]


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
    assert row(fold(board, STALE, 1.0)).failure == ""


def test_undone_edit_has_its_old_winner_at_once() -> None:
    """A winner without a job, for a problem that is specialised, is the row's."""
    board = after(STALE, winner(12.5, None, problem={"M": 64}))
    assert (row(board).state, row(board).current, row(board).gain) == ("fresh", 12.5, 1.0)


def test_superseded_job_leaves_the_row_stale_and_older_ones_say_nothing() -> None:
    """A cancelled job's row waits for the next one; events of an older job than the row's change nothing."""
    board = after(STALE, state_event("job_started", job_map(2)))
    assert row(fold(board, state_event("job_done", job_map(1, state="failed")), 1.0)) == row(board)
    assert row(fold(board, state_event("job_done", job_map(2, state="cancelled")), 1.0)).state == "stale"


def test_tuning_anew_without_a_save_compares_with_the_winner_before() -> None:
    """What a key set off is held against what was there."""
    board = after(state_event("job_started", job_map()), winner(10.0))
    assert (row(board).before, row(board).current) == (12.5, 10.0)


def test_catching_up_makes_no_news() -> None:
    """Jobs that were there before show their state, not a comparison; the newest of a case counts."""
    jobs = [job_map(3, state="paused"), job_map(1, state="done", best_us=9.0, finished=5.0)]
    board = catch_up(know(Board(), [answer_map()]), jobs)
    job = row(board).job
    assert job is not None
    assert (row(board).state, job.id, row(board).before) == ("paused", 3, None)
    known = keep(board, [], [{"path": "/src/tune_x.py", "line": 3, "message": "NameError: x"}])
    assert list(known.rows) == [CASE]
    assert known.errors == {"/src/tune_x.py": "/src/tune_x.py:3: NameError: x"}
    assert keep(know(Board(), [answer_map()]), [], []).rows == {}


def test_row_of_an_unknown_device_becomes_its_job_s() -> None:
    """A case whose device is not known yet is not shown twice once it is."""
    board = know(Board(), [answer_map(device=None, status="default", latency_us=None)])
    board = after(state_event("job_started", job_map()), board=board)
    assert [entry.device for entry in board.rows.values()] == [DEVICE]


def test_estimates_reach_open_jobs_alone() -> None:
    """How long and what for is reported jobs that wait or run."""
    board = after(state_event("job_queued", job_map(state="queued")))
    waiting = estimate(board, [job_map(state="queued", waits_for="all tuning is paused", left_s=None)])
    job = row(waiting).job
    assert job is not None
    assert job.waits_for == "all tuning is paused"
    assert row(estimate(after(), [job_map(left_s=3.0)])).job is None


def test_pauses() -> None:
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


def many(count: int) -> Board:
    """Return a board of so many kernels."""
    return know(Board(), [answer_map(kernel=f"project:k{number:02}") for number in range(count)])


def test_choosing_rows() -> None:
    """Arrows move within the rows, which stand by name; the picture keeps the chosen one in sight."""
    board = many(30)
    assert board.selected is not None
    assert board.selected.kernel == "project:k00"
    assert board.select(-1).selected == board.selected
    far = board.select(20)
    assert far.selected is not None
    assert far.selected.kernel == "project:k20"
    assert far.selected in shown(far, 5)
    assert len(shown(far, 5)) == 5
    assert far.select(99).selected == shown(far.select(99), 5)[-1]
    assert Board().select(1).selected is None


def test_a_job_without_a_device_has_one_row() -> None:
    """Where nothing can be measured the lookup's answer names no device, and the job what it compiled for."""
    failed = job_map(state="failed", device="sm_90a", message="no device: no GPU")
    answer = answer_map(status="default", device=None, latency_us=None, age_s=None)
    for board in (know(catch_up(Board(), [failed]), [answer]), catch_up(know(Board(), [answer]), [failed])):
        (only,) = board.rows.values()
        assert (only.device, only.state, only.failure) == ("sm_90a", "failed", "no device: no GPU")


def test_a_compiling_alone_has_no_row() -> None:
    """`ktuned compile` measures nothing: no row of its own stays stale for good, and the kernel's row is not its."""
    job = job_map(9, state="running", device="sm_90a", plan={"seconds": None, "compile_only": True})
    assert after(state_event("job_started", job), board=Board()).rows == {}
    assert catch_up(Board(), [job]).rows == {}


def test_a_save_makes_only_what_has_a_figure_stale() -> None:
    """A problem that never had a winner has none from before."""
    failed = after(state_event("job_done", job_map(state="failed", message="no")), board=Board())
    assert row(failed).failure == "no"
    saved = after(STALE, board=failed)
    assert (row(saved).state, row(saved).failure) == ("default", "")


def test_a_kernel_that_is_gone_goes_from_the_board() -> None:
    """Its row stays only until its job has ended."""
    running = after(state_event("job_started", job_map()))
    assert set(keep(running, [], []).rows) == {CASE}
    done = after(state_event("job_done", job_map(state="done", best_us=5.0)), board=running)
    assert keep(done, [], []).rows == {}
    assert set(keep(done, [KERNEL], []).rows) == {CASE}


def test_rows_that_differ_in_the_device_alone_name_it() -> None:
    """On one device no one needs its name."""
    lines = drawn(after(state_event("job_started", job_map())))
    assert not any(DEVICE in line for line in lines)
    lines = drawn(after(state_event("job_started", job_map(2, device="H200"))))
    assert any(f"on {DEVICE}" in line for line in lines)
    assert any("on H200" in line for line in lines)


def test_picture_of_a_running_job() -> None:
    """One line has the kernel, the save, both figures, the ratio and the state; the failure stands below it."""
    board = after(
        STALE,
        state_event("job_started", job_map(left_s=12.0)),
        trial_event(trial_map(1, "compile_error"), 1, outcomes={"compile_error": 1}),
        winner(10.0),
    )
    lines = drawn(board)
    assert lines[0] == "ktuned watch /src"
    (line,) = [line for line in lines if "gemm" in line]
    words = "▸  gemm M=64 dtype=float32  1 min 40 s ago  12.50 µs  10.00 µs  1.25×  tuning 1/4, 12 s left, 1 failed"
    assert line.split() == words.split()
    assert lines[lines.index(line) + 1].strip() == "compile_error: why it is compile_error"
    assert any("t tune now" in line and "q quit" in line for line in lines)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([{"type": "paused", "device": ""}], "all tuning is paused: P resumes it"),
        ([{"type": "paused", "device": "H200"}], "paused: H200"),
        ([{"type": "paused", "reason": "the disk is full"}], "nothing is tuned: the disk is full"),
        (
            [state_event("job_queued", job_map(state="queued", waits_for="policy is manual"))],
            "queued: policy is manual",
        ),
        (
            [
                state_event("job_started", job_map()),
                {"type": "refining", "kernel": KERNEL, "job": 1, "round": 2, "rounds": 5, "finalists": 3},
            ],
            "finalists again, 2 of 5",
        ),
    ],
)
def test_pictures_say_what_keeps_tuning(events: list[dict[str, Any]], words: str) -> None:
    """Pauses, waiting and the finalists' rounds are reported in words."""
    assert any(words in line for line in drawn(after(*events)))


def test_picture_fits_its_terminal() -> None:
    """However many kernels and errors there are, it is no higher than the terminal, and says what is left out."""
    board = keep(many(50), [f"project:k{number:02}" for number in range(50)], [{"path": "/x.py", "message": "bad"}])
    for height in (10, 24, 60):
        lines = drawn(board.say("paused job 1"), height=height)
        assert len(lines) <= height
        assert "paused job 1" in lines[-1]
        assert any("/x.py: bad" in line for line in lines)
    assert any("more" in line for line in drawn(board, height=24))
    assert any("no kernel yet" in line for line in drawn(Board()))
