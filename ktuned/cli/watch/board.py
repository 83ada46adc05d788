"""Rows of ``ktuned watch``, one for each kernel, problem, device and objective, folded from events. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from ktuned.cli import progress, text
from ktuned.cli.progress import FAILURES, Case, FirstFailure, JobView, View, make_case
from ktuned.model import LATENCY, Config, FrozenStruct, Objective, Problem, canonical, compute_gain
from ktuned.protocol import (
    Answer,
    Event,
    FileError,
    JobInfo,
    JobState,
    KernelsAnswer,
    KernelStale,
    Status,
    TuningPaused,
    TuningResumed,
    WinnerChanged,
)

OPEN = (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)
"""States of a row whose job has not ended."""

SETTLED = ("default", "fresh", "stale")
"""States of a row that come from lookups and saves, not from its job."""


class BoardRow(FrozenStruct):
    """One kernel, problem, device and objective. Figures are in the objective's unit, times in Unix seconds.

    ``before`` is the winner's figure when the kernel was last saved, or when its job began. ``current`` is the best
    figure known now, ``None`` while it is stale; ``config`` is the config that has this figure, or had it before an
    edit. ``failure`` is the first line of the first failure, and ``view`` shows the newest job.
    """

    kernel: str
    problem: Problem
    device: str
    state: str = "default"
    saved_at: float | None = None
    before: float | None = None
    current: float | None = None
    view: JobView | None = None
    failure: str = ""
    objective: Objective = LATENCY
    config: Config | None = None

    @property
    def job(self) -> JobInfo | None:
        """Its newest job."""
        return None if self.view is None else self.view.job

    @property
    def name(self) -> str:
        """The kernel's short name."""
        return self.kernel.partition(":")[2] or self.kernel

    @property
    def is_problem(self) -> bool:
        """True if the kernel's author must act: its job failed, or configs fail and none was measured yet."""
        return self.state == JobState.FAILED or (bool(self.failure) and self.current is None)

    @property
    def case(self) -> Case:
        """The key of this row on the board."""
        return make_case(self.kernel, self.problem, self.device, self.objective)

    @property
    def gain(self) -> float | None:
        """How many times better the kernel is than before."""
        return compute_gain(self.objective, self.before, self.current)

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


class Board(FrozenStruct):
    """All rows in the order in which they became known, with their jobs and notices.

    ``errors`` are the errors in kernel files, ``roots`` the watched directories, ``sizes`` the numbers of configs of
    kernels whose space can be counted, ``paused`` the paused device models, and ``stalled`` is the reason if nothing
    can be recorded.
    """

    view: View = msgspec.field(default_factory=View)
    rows: Mapping[Case, BoardRow] = {}
    errors: tuple[FileError, ...] = ()
    roots: tuple[str, ...] = ()
    sizes: Mapping[str, int] = {}
    paused: frozenset[str] = frozenset()
    stalled: str = ""

    @property
    def problems(self) -> int:
        """The number of kernel files and rows whose author must act."""
        return len(self.errors) + sum(row.is_problem for row in self.rows.values())

    @property
    def paused_everything(self) -> bool:
        """True if all tuning is paused."""
        return "" in self.paused


def add_answers(board: Board, answers: Iterable[Answer]) -> Board:
    """Return the board with these lookups' answers; its knowledge of jobs stays."""
    for answer in answers:
        if not answer.device and _count_devices(board, answer.kernel, answer.problem):
            # Without a device nothing is measured here, and the row of the compile job has more information.
            continue
        new = BoardRow(answer.kernel, answer.problem, answer.device or "", objective=answer.objective)
        board, row = _adopt_row(board, new)
        if answer.status is Status.FRESH:
            row = replace(row, current=answer.figure, config=answer.config)
        elif answer.status is Status.STALE:
            row = replace(row, before=row.before or answer.figure, current=None, config=answer.config)
        if row.job is None:
            row = replace(row, state=answer.status)
        board = _with_row(board, row)
    return board


def keep_kernels(board: Board, known: KernelsAnswer) -> Board:
    """Return the board with only the rows of these kernels, and with the roots and the errors of their files."""
    names = {kernel.name for kernel in known.kernels}
    return replace(
        board,
        rows={key: row for key, row in board.rows.items() if row.kernel in names or row.is_open},
        errors=known.errors,
        roots=tuple(root.path for root in known.roots),
        sizes={kernel.name: kernel.space.size for kernel in known.kernels if kernel.space.size},
    )


def catch_up(board: Board, jobs: Iterable[JobInfo]) -> Board:
    """Return the board with the current states of these jobs, given in any order; ended jobs are taken first."""
    by_age = sorted(jobs, key=lambda job: (not job.is_ended, job.finished or 0.0))
    for job in by_age:
        view, _ = progress.resync_view(board.view, [job])
        board = _follow_view(board, view, is_news=False)
    return board


def add_estimates(board: Board, jobs: Iterable[JobInfo]) -> Board:
    """Return the board with the remaining time of open jobs and what they wait for."""
    return _follow_view(board, progress.add_estimates(board.view, jobs), is_news=False)


def fold_event(board: Board, event: Event | None, now: float) -> Board:
    """Return the board after an event that arrived at ``now``."""
    view, news = progress.fold_event(board.view, event)
    board = _follow_view(board, view, is_news=True)
    for piece in news:
        match piece:
            case FirstFailure(job, trial):
                board = _take_failure(board, job.id, f"{trial.outcome}: {text.first_line(trial.message)}")
            case WinnerChanged():
                board = _take_winner(board, piece)
            case KernelStale():
                board = _take_save(board, piece.kernel, now)
            case TuningPaused() | TuningResumed():
                board = _take_pause(board, piece)
    return board


def _with_row(board: Board, row: BoardRow) -> Board:
    return replace(board, rows={**board.rows, row.case: row})


def _follow_view(board: Board, view: View, *, is_news: bool) -> Board:
    """Return the board with a newer view; rows follow the view's jobs that changed."""
    changed = [job_view for key, job_view in view.jobs.items() if board.view.jobs.get(key) is not job_view]
    board = replace(board, view=view)
    for job_view in changed:
        board = _take_job(board, job_view, is_news=is_news)
    if any(job_view.job.is_ended for job_view in changed):
        # The rows keep their last job; the view keeps only jobs that have not ended.
        board = replace(board, view=view.without_ended())
    return board


def _take_save(board: Board, kernel: str, now: float) -> Board:
    for row in board.rows.values():
        if row.kernel == kernel:
            known = row.before if row.current is None else row.current
            saved = replace(row, saved_at=now, before=known, current=None, failure="")
            board = _with_row(board, replace(saved, state="default" if known is None else "stale"))
    return board


def _take_job(board: Board, view: JobView, *, is_news: bool) -> Board:
    job = view.job
    if job.plan.compile_only or job.plan.configs:
        # Neither says how its kernel fares: one measures nothing, the other tries configs that somebody named. If one
        # of these wins, an event of its own follows.
        return board
    board, row = _adopt_row(board, BoardRow(job.kernel, job.problem, job.device, objective=job.objective))
    if row.job is not None and _keeps_job(row.job, job):
        return board
    begins = row.job is None or row.job.id != job.id
    if begins and is_news and row.current is not None:
        row = replace(row, before=row.current)
    if begins:
        row = replace(row, failure="")
    if row.job is not None and row.job.id == job.id and row.job.state == job.state:
        # The row's state is kept, because a save may have changed it in the meantime.
        return _with_row(board, replace(row, view=view))
    row = replace(row, view=view, state=job.state)
    if job.has_winner:
        row = replace(row, state="tuned", current=job.best, config=view.best_config or row.config)
    elif job.state is JobState.FAILED:
        row = replace(row, failure=row.failure or text.first_line(job.message))
    elif job.state is JobState.CANCELLED and row.current is None and row.before is not None:
        row = replace(row, state="stale")
    return _with_row(board, row)


def _keeps_job(shown: JobInfo, job: JobInfo) -> bool:
    """Return whether a row keeps the job that it shows instead of ``job``.

    A row shows the newest job, except that a running job stays until the next one starts.
    """
    if job.id == shown.id:
        return False
    older, newer = sorted((shown, job), key=lambda known: known.id)
    is_older_shown = older.state is JobState.RUNNING and newer.state in (JobState.QUEUED, JobState.PAUSED)
    return shown is (older if is_older_shown else newer)


def _count_devices(board: Board, kernel: str, problem: Problem) -> int:
    """Return the number of devices on which a problem has a row."""
    alike = (kernel, canonical(problem))
    return len({row.device for row in board.rows.values() if row.device and row.case[:2] == alike})


def is_on_several_devices(board: Board, row: BoardRow) -> bool:
    """Return whether another row differs from this one only in its device."""
    return _count_devices(board, row.kernel, row.problem) > 1


def _adopt_row(board: Board, new: BoardRow) -> tuple[Board, BoardRow]:
    """Return a case's row, and the board without the row that stood for the case before its device was known."""
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
            return _with_row(board, replace(row, failure=failure))
    return board


def _take_winner(board: Board, won: WinnerChanged) -> Board:
    """Give a winner, of a job or restored by an undone edit, to every row whose problem it covers."""
    for row in board.rows.values():
        of_job = won.job is not None and row.job is not None and row.job.id == won.job
        is_same = (row.kernel, row.device, row.objective) == (won.kernel, won.device, won.objective)
        if of_job or (is_same and won.problem.items() <= row.problem.items()):
            state = "fresh" if row.state in SETTLED else row.state
            board = _with_row(board, replace(row, current=won.figure, state=state, config=won.config))
    return board


def _take_pause(board: Board, event: TuningPaused | TuningResumed) -> Board:
    is_paused = isinstance(event, TuningPaused)
    if not isinstance(event.device, str):
        return replace(board, stalled=event.reason if is_paused else "")
    changed = {event.device}
    return replace(board, paused=board.paused | changed if is_paused else board.paused - changed)
