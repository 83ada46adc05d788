"""State of the live screen: the board, the page that is open, and the entries chosen on it. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ktuned.cli import text
from ktuned.cli.watch.board import Board, BoardRow
from ktuned.cli.watch.choice import Choice, Listed
from ktuned.cli.watch.load import Load
from ktuned.cli.watch.trial_log import TrialLog, Tried
from ktuned.model import LATENCY, JobState

_URGENCY = ("failed", "running", "queued", "paused", "stale", "default", "cancelled", "tuned", "fresh")
"""States, those first that an author looks for first."""


class Page(StrEnum):
    """A page of the screen."""

    KERNELS = "kernels"
    KERNEL = "kernel"
    TRIAL = "trial"
    PROBLEMS = "problems"
    KEYS = "keys"


@dataclass(frozen=True, slots=True)
class Size:
    """The terminal's size."""

    columns: int
    lines: int


@dataclass(frozen=True, slots=True)
class Screen:
    """All that the picture is made of, except for the time.

    ``pages`` are the open page and, before it, those that lead back to the list. ``log`` has the trials of the kernel
    that is open, ``trial`` the map of the open one (the protocol's). ``is_typing`` says that keys go to the filter,
    ``scroll`` is the first line of a page of text, ``said`` the effect of the last key.
    """

    size: Size
    title: str = "ktuned watch"
    board: Board = field(default_factory=Board)
    load: Load = field(default_factory=Load)
    notices: tuple[str, ...] = ()
    pages: tuple[Page, ...] = (Page.KERNELS,)
    kernels: Choice = field(default_factory=Choice)
    configs: Choice = field(default_factory=Choice)
    log: TrialLog | None = None
    trial: Mapping[str, Any] | None = None
    is_typing: bool = False
    scroll: int = 0
    said: str = ""

    @property
    def page(self) -> Page:
        """The page that is open."""
        return self.pages[-1]

    @property
    def choice(self) -> Choice:
        """The choice on the open page; that of the kernels on a page without a list."""
        return self.configs if self.page == Page.KERNEL else self.kernels

    def with_choice(self, choice: Choice) -> Screen:
        """Return the screen with another choice on the open page."""
        return replace(self, configs=choice) if self.page == Page.KERNEL else replace(self, kernels=choice)

    @property
    def rows(self) -> list[BoardRow]:
        """The rows that the list of kernels shows."""
        return ROWS.shown(self.board.rows.values(), self.kernels)

    @property
    def selected(self) -> BoardRow | None:
        """The row that keys act on; on a kernel's page that kernel's."""
        if self.log is not None and self.page in (Page.KERNEL, Page.TRIAL):
            return self.board.rows.get(self.log.row.case, self.log.row)
        rows = self.rows
        place = ROWS.chosen(rows, self.kernels)
        return None if place is None else rows[place]

    @property
    def trials(self) -> list[Tried]:
        """The trials that the kernel's page shows."""
        return [] if self.log is None else self.log.listed.shown(self.log.trials.values(), self.configs)

    @property
    def selected_trial(self) -> Tried | None:
        """The trial that is chosen on the kernel's page."""
        if self.log is None:
            return None
        trials = self.trials
        place = self.log.listed.chosen(trials, self.configs)
        return None if place is None else trials[place]


def label(row: BoardRow) -> str:
    """Return a row's name: kernel, problem, and the objective where it is not the latency."""
    named = f"{row.name} {text.flat(row.problem)}" if row.problem else row.name
    return named if row.objective == LATENCY else f"{named} by {row.objective}"


def _urgency(row: BoardRow) -> tuple[int, str]:
    is_known = row.state in _URGENCY
    return (_URGENCY.index(row.state) if is_known else len(_URGENCY)), row.kernel


ROWS: Listed[BoardRow] = Listed(
    identity=lambda row: row.case,
    words=lambda row: f"{row.kernel} {label(row)} {row.device} {row.state} {row.failure}",
    orders={
        "kernel": lambda row: row.kernel,
        "state": _urgency,
        "saved": lambda row: None if row.saved_at is None else -row.saved_at,
        "change": lambda row: None if row.gain is None else -row.gain,
        "now": lambda row: row.current,
    },
)
"""The list of the board's rows: by kernel, so that one's problems stand together, or by another column."""


def waiting(board: Board) -> int:
    """Return the number of jobs that wait or are paused."""
    return sum(job.state != JobState.RUNNING for job in board.view.active)
