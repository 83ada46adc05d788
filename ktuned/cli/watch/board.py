"""Rows of ``ktuned watch``: one for each kernel, problem and device, made of folded events. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ktuned.cli import lines, progress, text
from ktuned.cli.progress import (
    ENDED,
    FAILURES,
    Case,
    Event,
    FirstFailure,
    JobView,
    KernelStale,
    PauseChanged,
    View,
    WinnerChanged,
)
from ktuned.model import LATENCY, JobState, Objective, Problem, canonical, figure_of, gain

OPEN = (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)
"""States of a row whose job has not ended."""

SETTLED = ("default", "fresh", "stale")
"""States of a row that come from lookups and saves, not from its job."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on one problem and device, by one objective; figures in its unit, times in Unix seconds.

    ``before`` is the winner's figure when the kernel was last saved, or when its job began; ``current`` the best one
    known now, ``None`` while that is stale. ``failure`` is the first line of the first failure.
    """

    kernel: str
    problem: Problem
    device: str
    state: str = "default"
    saved_at: float | None = None
    before: float | None = None
    current: float | None = None
    job: JobView | None = None
    failure: str = ""
    objective: Objective = LATENCY

    @property
    def case(self) -> Case:
        """This row's key."""
        return self.kernel, canonical(self.problem), self.device, self.objective

    @property
    def gain(self) -> float | None:
        """Times that the kernel is better than before."""
        return gain(self.objective, self.before, self.current)

    @property
    def is_open(self) -> bool:
        """True if its job has not ended."""
        return self.state in OPEN

    @property
    def failed(self) -> int:
        """Number of configs of its job that ended without a latency."""
        if self.job is None or self.state in SETTLED:
            return 0
        return sum(self.job.outcomes.get(outcome, 0) for outcome in FAILURES)


@dataclass(frozen=True, slots=True)
class Board:
    """All rows, in the order in which they became known, with the jobs behind them and notices.

    ``errors`` are errors in kernel files, by path; ``paused`` the paused device models; ``stalled`` the reason why
    nothing can be recorded; ``chosen`` the row that keys act on; ``said`` the effect of the last key.
    """

    view: View = field(default_factory=View)
    rows: Mapping[Case, Row] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    stalled: str = ""
    chosen: Case | None = None
    said: str = ""

    @property
    def ordered(self) -> list[Row]:
        """The rows by kernel, so that one's problems stand together."""
        return sorted(self.rows.values(), key=lambda row: row.kernel)

    @property
    def selected(self) -> Row | None:
        """The row that keys act on: the first one until another is chosen."""
        if self.chosen is not None and self.chosen in self.rows:
            return self.rows[self.chosen]
        return next(iter(self.ordered), None)

    def select(self, step: int) -> Board:
        """Return the board with another row chosen: ``step`` rows below the present one, or above it."""
        ordered = [row.case for row in self.ordered]
        if self.selected is None:
            return self
        place = ordered.index(self.selected.case) + step
        return replace(self, chosen=ordered[max(0, min(place, len(ordered) - 1))])

    def say(self, words: str) -> Board:
        """Return the board with the effect of the last key."""
        return replace(self, said=words)

    @property
    def paused_everything(self) -> bool:
        """True if all tuning is paused."""
        return "" in self.paused


def know(board: Board, answers: Iterable[Mapping[str, Any]]) -> Board:
    """Return the board with these lookups' answers (the protocol's); what it knows of jobs stays."""
    for answer in answers:
        if not answer["device"] and _places(board, answer["kernel"], answer["problem"]):
            # Nothing is measured here, and the row of the compile job has more information.
            continue
        # An earlier daemon knows of no other objective.
        objective = Objective(answer.get("objective") or LATENCY)
        new = Row(answer["kernel"], answer["problem"], answer["device"] or "", objective=objective)
        board, row = _adopt(board, new)
        figure = figure_of(objective, answer["latency_us"], answer.get("metrics") or {})
        if answer["status"] == "fresh":
            row = replace(row, current=figure)
        elif answer["status"] == "stale":
            row = replace(row, before=row.before or figure, current=None)
        if row.job is None:
            row = replace(row, state=answer["status"])
        board = _with(board, row)
    return board


def keep(board: Board, kernels: Iterable[str], errors: Iterable[Mapping[str, Any]]) -> Board:
    """Return the board with only the rows of these kernels, and with these errors of kernel files."""
    names = set(kernels)
    rows = {key: row for key, row in board.rows.items() if row.kernel in names or row.is_open}
    said = {str(error.get("path") or ""): error for error in errors}
    wrong = {path: lines.error_line(path, error.get("line"), error["message"]) for path, error in said.items()}
    return replace(board, rows=rows, errors=wrong)


def catch_up(board: Board, jobs: Iterable[Mapping[str, Any]]) -> Board:
    """Return the board with the jobs as they stand (the protocol's maps, in any order), ended ones before others."""
    by_age = sorted(jobs, key=lambda job: (job["state"] not in ENDED, job.get("finished") or 0.0))
    for job in by_age:
        view, _ = progress.resync(board.view, [job])
        board = _follow(board, view, is_news=False)
    return board


def estimate(board: Board, jobs: Iterable[Mapping[str, Any]]) -> Board:
    """Return the board with how long open jobs take and what they wait for, from the daemon's job maps."""
    return _follow(board, progress.estimate(board.view, jobs), is_news=False)


def fold(board: Board, event: Event, now: float) -> Board:
    """Return the board after an event (a map of the protocol) that arrived at ``now``; unknown types change nothing."""
    view, news = progress.fold(board.view, event)
    board = _follow(board, view, is_news=True)
    for piece in news:
        match piece:
            case FirstFailure(job, outcome, trial):
                board = _take_failure(board, job.id, f"{outcome}: {text.first_line(trial.get('message'))}")
            case WinnerChanged():
                board = _take_winner(board, piece)
            case KernelStale(kernel):
                board = _take_save(board, kernel, now)
            case PauseChanged():
                board = _take_pause(board, piece)
    return board


def _with(board: Board, row: Row) -> Board:
    return replace(board, rows={**board.rows, row.case: row})


def _follow(board: Board, view: View, *, is_news: bool) -> Board:
    """Return the board with a newer view; rows follow the jobs in it that changed."""
    changed = [job for key, job in view.jobs.items() if board.view.jobs.get(key) is not job]
    board = replace(board, view=view)
    for job in changed:
        board = _take_job(board, job, is_news=is_news)
    if any(job.is_ended for job in changed):
        # The rows keep their last job; the view keeps only those from which more can come.
        board = replace(board, view=view.without_ended())
    return board


def _take_save(board: Board, kernel: str, now: float) -> Board:
    for row in board.rows.values():
        if row.kernel == kernel:
            known = row.before if row.current is None else row.current
            saved = replace(row, saved_at=now, before=known, current=None, failure="")
            board = _with(board, replace(saved, state="default" if known is None else "stale"))
    return board


def _take_job(board: Board, job: JobView, *, is_news: bool) -> Board:
    if job.is_compile_only:
        # It measures nothing: no figure of its own could be faster or stale.
        return board
    board, row = _adopt(board, Row(job.kernel, job.problem, job.device, objective=job.objective))
    if row.job is not None and job.id < row.job.id:
        # The row shows a newer job.
        return board
    begins = row.job is None or row.job.id != job.id
    if begins and is_news and row.current is not None:
        row = replace(row, before=row.current)
    if begins:
        row = replace(row, failure="")
    if row.job is not None and row.job.id == job.id and row.job.state == job.state:
        # A save in the meantime has changed the row's state.
        return _with(board, replace(row, job=job))
    row = replace(row, job=job, state=job.state)
    if job.has_winner:
        row = replace(row, state="tuned", current=job.best)
    elif job.state == JobState.FAILED:
        row = replace(row, failure=row.failure or text.first_line(job.message))
    elif job.state == JobState.CANCELLED and row.current is None and row.before is not None:
        row = replace(row, state="stale")
    return _with(board, row)


def _places(board: Board, kernel: str, problem: Problem) -> int:
    """Return the number of devices on which a problem has a row."""
    alike = (kernel, canonical(problem))
    return len({row.device for row in board.rows.values() if row.device and row.case[:2] == alike})


def on_many(board: Board, row: Row) -> bool:
    """Return whether a row differs from another in its device alone."""
    return _places(board, row.kernel, row.problem) > 1


def _adopt(board: Board, new: Row) -> tuple[Board, Row]:
    """Return a case's row, and the board without the one that was there before its device was known."""
    if new.case in board.rows or not new.device:
        return board, board.rows.get(new.case, new)
    nowhere = replace(new, device="").case
    if nowhere not in board.rows:
        return board, new
    rest = {key: row for key, row in board.rows.items() if key != nowhere}
    return replace(board, rows=rest), replace(board.rows[nowhere], device=new.device)


def _take_failure(board: Board, job: int, failure: str) -> Board:
    for row in board.rows.values():
        if row.job is not None and row.job.id == job and not row.failure:
            return _with(board, replace(row, failure=failure))
    return board


def _take_winner(board: Board, won: WinnerChanged) -> Board:
    """A job's winner, or one that an undone edit restored: every row whose problem it covers gets it."""
    for row in board.rows.values():
        of_job = won.job is not None and row.job is not None and row.job.id == won.job
        is_same = (row.kernel, row.device, row.objective) == (won.kernel, won.device, won.objective)
        if of_job or (is_same and won.problem.items() <= row.problem.items()):
            state = "fresh" if row.state == "stale" else row.state
            board = _with(board, replace(row, current=won.figure, state=state))
    return board


def _take_pause(board: Board, pause: PauseChanged) -> Board:
    if pause.device is None:
        return replace(board, stalled=pause.reason if pause.is_paused else "")
    changed = {pause.device}
    return replace(board, paused=board.paused | changed if pause.is_paused else board.paused - changed)


def shown(board: Board, place: int) -> Sequence[Row]:
    """Return at most ``place`` rows, with the selected one among them."""
    ordered = board.ordered
    if len(ordered) <= place or board.selected is None:
        return ordered
    middle = [row.case for row in ordered].index(board.selected.case)
    first = max(0, min(middle - place // 2, len(ordered) - place))
    return ordered[first : first + max(1, place)]
