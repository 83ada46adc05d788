"""What ``ktuned watch`` shows: a row for each kernel, problem and device, folded from events. No IO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ktuned.cli import lines, text
from ktuned.cli.progress import ENDED, FAILURES, Case, Event, ratio
from ktuned.model import JobState, Problem, canonical

OPEN = (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)
"""States of a row whose job is still to end."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on one problem and device; latencies in µs, times in Unix seconds.

    ``before_us`` is the winner's latency as it was when the kernel was last saved, or when its job began; ``now_us``
    the best that is known now, ``None`` while that is stale. ``failure`` is the first line of what went wrong first.
    """

    kernel: str
    problem: Problem
    device: str
    state: str = "default"
    saved_at: float | None = None
    before_us: float | None = None
    now_us: float | None = None
    job: int | None = None
    done: int = 0
    total: int | None = None
    left_s: float | None = None
    waits_for: str = ""
    round: tuple[int, int] | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""

    @property
    def case(self) -> Case:
        """What tells this row from all others."""
        return self.kernel, canonical(self.problem), self.device

    @property
    def gain(self) -> float | None:
        """How many times faster the kernel is than before."""
        return ratio(self.before_us, self.now_us)

    @property
    def is_open(self) -> bool:
        """Whether its job has not ended."""
        return self.state in OPEN

    @property
    def failed(self) -> int:
        """How many configs ended without a figure."""
        return sum(self.outcomes.get(outcome, 0) for outcome in FAILURES)


@dataclass(frozen=True, slots=True)
class Board:
    """All rows, in the order in which they became known, and what is wrong besides.

    ``errors`` are what is wrong in kernel files, by path; ``paused`` the paused device models; ``stalled`` why nothing
    can be recorded; ``chosen`` the row that keys act on; ``said`` what the last key did.
    """

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
        """Return the board with another row chosen: so many below the present one, or above it."""
        ordered = [row.case for row in self.ordered]
        if self.selected is None:
            return self
        place = ordered.index(self.selected.case) + step
        return replace(self, chosen=ordered[max(0, min(place, len(ordered) - 1))])

    def say(self, words: str) -> Board:
        """Return the board that tells what the last key did."""
        return replace(self, said=words)

    @property
    def paused_everything(self) -> bool:
        """Whether all tuning is paused."""
        return "" in self.paused


def know(board: Board, answers: Iterable[Mapping[str, Any]]) -> Board:
    """Return the board with what lookups say of cases (the protocol's answers); what it knows of their jobs stays."""
    for answer in answers:
        if not answer["device"] and _places(board, answer["kernel"], answer["problem"]):
            # Nothing is measured here, and the row of what was compiled says more.
            continue
        board, row = _adopt(board, Row(answer["kernel"], answer["problem"], answer["device"] or ""))
        if answer["status"] == "fresh":
            row = replace(row, now_us=answer["latency_us"])
        elif answer["status"] == "stale":
            row = replace(row, before_us=row.before_us or answer["latency_us"], now_us=None)
        if row.job is None:
            row = replace(row, state=answer["status"])
        board = _with(board, row)
    return board


def keep(board: Board, kernels: Iterable[str], errors: Iterable[Mapping[str, Any]]) -> Board:
    """Return the board with the rows of these kernels alone, and with these errors of kernel files."""
    names = set(kernels)
    rows = {key: row for key, row in board.rows.items() if row.kernel in names or row.is_open}
    said = {str(error.get("path") or ""): error for error in errors}
    wrong = {path: lines.error_line(path, error.get("line"), error["message"]) for path, error in said.items()}
    return replace(board, rows=rows, errors=wrong)


def catch_up(board: Board, jobs: Iterable[Mapping[str, Any]]) -> Board:
    """Return the board with how jobs stand (the protocol's maps, in any order), those that ended before others."""
    for job in sorted(jobs, key=lambda job: (job["state"] not in ENDED, job.get("finished") or 0.0)):
        board = _take_job(board, job, is_news=False)
    return board


def estimate(board: Board, jobs: Iterable[Mapping[str, Any]]) -> Board:
    """Return the board with how long open jobs take and what they wait for, as the daemon says it now."""
    standing = {job["id"]: job for job in jobs}
    for row in board.rows.values():
        job = standing.get(row.job)
        if job is not None and row.is_open:
            waits_for = job.get("waits_for") or ""
            board = _with(board, replace(row, left_s=job.get("left_s"), waits_for=waits_for))
    return board


def fold(board: Board, event: Event, now: float) -> Board:
    """Return the board after an event (a map of the protocol) that arrived at ``now``; unknown types change nothing."""
    match event.get("type"):
        case "job_queued" | "job_started" | "job_paused" | "job_done":
            return _take_job(board, event["job_state"], is_news=True)
        case "trial_done":
            return _take_trial(board, event)
        case "winner":
            return _take_winner(board, event)
        case "stale":
            return _take_save(board, event["kernel"], now)
        case "refining":
            turn = (event["round"], event["rounds"])
            return _change(board, event["job"], lambda row: replace(row, round=turn))
        case "paused" | "resumed":
            return _take_pause(board, event)
    return board


def _with(board: Board, row: Row) -> Board:
    return replace(board, rows={**board.rows, row.case: row})


def _change(board: Board, job: int, change: Callable[[Row], Row]) -> Board:
    for row in board.rows.values():
        if row.job == job:
            return _with(board, change(row))
    return board


def _take_save(board: Board, kernel: str, now: float) -> Board:
    for row in board.rows.values():
        if row.kernel == kernel:
            known = row.before_us if row.now_us is None else row.now_us
            saved = replace(row, saved_at=now, before_us=known, now_us=None, failure="", outcomes={})
            board = _with(board, replace(saved, state="default" if known is None else "stale"))
    return board


def _take_job(board: Board, job: Mapping[str, Any], *, is_news: bool) -> Board:
    if (job.get("plan") or {}).get("compile_only"):
        # It is no tuning: nothing comes of it that could be faster or stale.
        return board
    board, row = _adopt(board, Row(job["kernel"], job["problem"], job["device"]))
    if row.job is not None and job["id"] < row.job:
        # An older one than the row shows.
        return board
    begins = row.job != job["id"]
    if begins and is_news and row.now_us is not None:
        row = replace(row, before_us=row.now_us)
    if begins:
        row = replace(row, failure="", outcomes={})
    state = str(job["state"])
    row = replace(
        row,
        job=job["id"],
        state=state,
        done=job.get("done", 0),
        total=job.get("total"),
        left_s=job.get("left_s"),
        waits_for=job.get("waits_for") or "",
        round=None,
        outcomes=job.get("outcomes") or row.outcomes,
    )
    if state == JobState.DONE and job.get("best_us") is not None:
        row = replace(row, state="tuned", now_us=job["best_us"])
    elif state == JobState.FAILED:
        row = replace(row, failure=row.failure or text.first_line(job.get("message")))
    elif state == JobState.CANCELLED and row.now_us is None and row.before_us is not None:
        row = replace(row, state="stale")
    return _with(board, row)


def _places(board: Board, kernel: str, problem: Problem) -> int:
    """Return on how many devices a problem has a row."""
    alike = (kernel, canonical(problem))
    return sum(bool(row.device) and row.case[:2] == alike for row in board.rows.values())


def on_many(board: Board, row: Row) -> bool:
    """Tell whether only its device tells a row from another."""
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


def _take_trial(board: Board, event: Event) -> Board:
    trial: Mapping[str, Any] | None = event.get("trial")

    def change(row: Row) -> Row:
        row = replace(row, done=event["done"], total=event.get("total"), outcomes=event.get("outcomes") or row.outcomes)
        if trial is None:
            return row
        if trial["outcome"] in FAILURES and not row.failure:
            row = replace(row, failure=f"{trial['outcome']}: {text.first_line(trial.get('message'))}")
        return row

    return _change(board, event["job"], change)


def _take_winner(board: Board, event: Event) -> Board:
    """The winner of a job, or one that an undone edit restored: then every row of its problem has it."""
    won: Mapping[str, Any] = event["problem"]
    for row in board.rows.values():
        of_job = event.get("job") is not None and row.job == event["job"]
        alike = row.kernel == event["kernel"] and row.device == event["device"] and won.items() <= row.problem.items()
        if of_job or alike:
            state = "fresh" if row.state == "stale" else row.state
            board = _with(board, replace(row, now_us=event["latency_us"], state=state))
    return board


def _take_pause(board: Board, event: Event) -> Board:
    is_pause, device = event["type"] == "paused", event.get("device")
    if device is None:
        return replace(board, stalled=(event.get("reason") or "") if is_pause else "")
    return replace(board, paused=board.paused | {device} if is_pause else board.paused - {device})


def shown(board: Board, place: int) -> Sequence[Row]:
    """Return so many rows as there is place for, with the selected one among them."""
    ordered = board.ordered
    if len(ordered) <= place or board.selected is None:
        return ordered
    middle = [row.case for row in ordered].index(board.selected.case)
    first = max(0, min(middle - place // 2, len(ordered) - place))
    return ordered[first : first + max(1, place)]
