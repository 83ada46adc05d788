"""Display of a tuning's progress to a program's user: in the terminal, in a notebook, or nowhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from time import monotonic
from types import TracebackType
from typing import Any, Self

from ktuned.cli import Event, News, Presenter, View, choose_presenter, standing
from ktuned.model import show_controls
from ktuned.python.origin import notebook_shell

REDRAW_S = 0.25
"""Interval of a notebook's redraws: each one is a message to a browser."""


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def show(self, event: Event | None, view: View, news: Sequence[News]) -> None:
        """Do nothing."""


class NotebookDisplay(Silent):
    """One output of a cell, redrawn in place while jobs are open, and cleared at the end: the result follows it."""

    def __init__(self, redraw_s: float = REDRAW_S) -> None:
        self._redraw_s = redraw_s
        self._handle: Any = None
        self._drawn_at = 0.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.update(_Standing(()))

    def show(self, event: Event | None, view: View, news: Sequence[News]) -> None:
        """Redraw, if the last time was long enough ago."""
        if self._handle is not None and monotonic() - self._drawn_at < self._redraw_s:
            return
        self._drawn_at = monotonic()
        drawn = _Standing(
            tuple((job.done, job.total) for job in view.active), tuple(map(show_controls, standing(view)))
        )
        if self._handle is None:
            from IPython.display import display

            self._handle = display(drawn, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(drawn)


class _Standing:
    """Progress of the open jobs, as a notebook draws it."""

    def __init__(self, bars: Sequence[tuple[int, int | None]], lines: Sequence[str] = ()) -> None:
        self._bars = bars
        self._lines = lines

    def __repr__(self) -> str:
        return "\n".join(self._lines)

    def _repr_html_(self) -> str:
        bars = "".join(
            f"<progress value='{done}' max='{max(total, 1)}'></progress> "
            for done, total in self._bars
            if total is not None
        )
        return f"{bars}<pre>{escape(chr(10).join(self._lines))}</pre>" if self._lines else ""


def display_for(wanted: bool | None) -> Presenter:
    """Return the display for this process; ``None`` shows progress in terminals and in notebooks alone."""
    if wanted is False:
        return Silent()
    shell = notebook_shell()
    if shell is not None and hasattr(shell, "kernel"):
        return NotebookDisplay()
    return choose_presenter(as_json=False) if wanted or sys.stdout.isatty() else Silent()
