"""Follows a tuning from its request to its end, and shows it as JSON, lines, bars on a terminal or a notebook's cell.

Every presenter shows the view that events are folded into (:mod:`~ktuned.cli.progress`). Commands and ``ktuned.tune``
in programs and notebooks share the loop, :func:`follow_tuning`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape
from threading import Event as Flag
from threading import Lock, Thread
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from ktuned.cli import lines, output, text
from ktuned.cli.progress import JobBegan, JobView, NewBest, News, View, begin_view, fold_event, resync_view
from ktuned.model import FrozenStruct, escape_controls
from ktuned.protocol import (
    CANCEL,
    PEAKS,
    CancelParams,
    JobParams,
    JobState,
    Method,
    TuneAnswer,
    call_method,
    read_event,
    read_jobs,
)
from ktuned_client import Client, DaemonError
from ktuned_client.answers import TUNE_DEADLINE_S
from ktuned_client.client import Tuning

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from ktuned_client.messages import Event as EventMap

P = TypeVar("P", bound=JobParams)

REFRESHES_PER_SECOND = 8
MAX_BARS = 12
"""Most jobs shown at once; more would scroll on a small terminal and become unreadable."""

MAX_WAITING = 4

REDRAW_S = 0.25
"""Interval of a notebook's redraws; each of them is a message to a browser."""

BAR_COLUMNS = 24


class Presenter:
    """Base of presenters; shows nothing itself. It is a context manager, so that a terminal is restored."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show_event(self, received: EventMap | None, view: View, news: Sequence[News]) -> None:
        """Show one event: its map (``None`` after a catch-up), the view after it, and the news in it."""


class JsonPresenter(Presenter):
    """Prints one event per line, as JSON."""

    def show_event(self, received: EventMap | None, view: View, news: Sequence[News]) -> None:
        """Print the event unchanged."""
        if received is not None:
            output.emit_json(received)


class LinePresenter(Presenter):
    """Prints one line for each piece of news, and the standing of open jobs after ``silence_s`` without news."""

    def __init__(self, silence_s: float = output.MAX_SILENCE_S) -> None:
        self._silence_s = silence_s
        self._view = View()
        self._printing = Lock()
        self._printed_at = monotonic()
        self._is_over = Flag()
        # A thread, because the next event may be minutes away.
        self._breaker = Thread(target=self._break_silences, name="silence breaker", daemon=True)

    def __enter__(self) -> Self:
        self._breaker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._breaker.join()

    def show_event(self, received: EventMap | None, view: View, news: Sequence[News]) -> None:
        """Print the news."""
        with self._printing:
            self._view = view
            for piece in news:
                self._print_lines(lines.describe_news(piece))

    def _print_lines(self, new_lines: Sequence[str]) -> None:
        for line in new_lines:
            output.emit_line(line)
            self._printed_at = monotonic()

    def _break_silences(self) -> None:
        while not self._is_over.wait(max(0.0, self._printed_at + self._silence_s - monotonic())):
            with self._printing:
                if monotonic() - self._printed_at < self._silence_s:
                    continue
                self._printed_at = monotonic()
                try:
                    self._print_lines(lines.describe_open_jobs(self._view, time()))
                except output.ReaderGone:
                    # Printing the next news raises it again, in the thread that can end the command.
                    return


class LivePresenter(Presenter):
    """Draws a bar for each running job at the bottom of the terminal, below the news that bars cannot show."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._view = View()
        # Values are shown verbatim: a kernel's name is not parsed as markup, and no colours are guessed.
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._live = Live(
            get_renderable=self._render_board,
            console=self._console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show_event(self, received: EventMap | None, view: View, news: Sequence[News]) -> None:
        """Set the view for the next refresh, and print the news above it."""
        self._view = view
        for piece in news:
            if not isinstance(piece, NewBest | JobBegan):
                for line in lines.describe_news(piece):
                    self._console.print(escape_controls(line))

    def _render_board(self) -> RenderableType:
        return draw_board(self._view)


def draw_board(view: View) -> Table:
    """Return a table of the open jobs: bars for running jobs, names for waiting jobs."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    running = [shown for shown in view.active if shown.job.state is JobState.RUNNING]
    waiting = [shown.job for shown in view.active if shown.job.state is not JobState.RUNNING]
    grid = Table.grid(padding=(0, 2))
    for shown in running[:MAX_BARS]:
        job = shown.job
        bar = ProgressBar(total=job.total, completed=job.done, width=BAR_COLUMNS, pulse=job.total is None)
        head = Table.grid(padding=(0, 2))
        head.add_row(bar, Text(lines.format_progress(job)), Text(lines.describe_stage(shown)))
        grid.add_row(Text(escape_controls(lines.name_job(job)), style="bold", no_wrap=True, overflow="ellipsis"))
        grid.add_row(head)
        grid.add_row(Text(f"  {escape_controls(_describe_best(shown))}", no_wrap=True, overflow="ellipsis"))
    if len(running) > MAX_BARS:
        grid.add_row(Text(f"and {len(running) - MAX_BARS} more run", style="dim"))
    for job in waiting[:MAX_WAITING]:
        grid.add_row(
            Text(f"waits: {escape_controls(lines.name_job(job))}", style="dim", no_wrap=True, overflow="ellipsis")
        )
    if len(waiting) > MAX_WAITING:
        grid.add_row(Text(f"and {len(waiting) - MAX_WAITING} more wait", style="dim"))
    return grid


class NotebookPresenter(Presenter):
    """One output of a cell, redrawn in place while jobs are open, and cleared at the end, before the result."""

    def __init__(self, redraw_s: float = REDRAW_S) -> None:
        self._redraw_s = redraw_s
        self._handle: Any = None
        self._drawn_at = 0.0

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.update(_CellOutput(()))

    def show_event(self, received: EventMap | None, view: View, news: Sequence[News]) -> None:
        """Redraw the output, if the last redraw was long enough ago."""
        if self._handle is not None and monotonic() - self._drawn_at < self._redraw_s:
            return
        self._drawn_at = monotonic()
        standings = tuple(map(escape_controls, lines.describe_open_jobs(view)))
        drawn = _CellOutput(tuple((shown.job.done, shown.job.total) for shown in view.active), standings)
        if self._handle is None:
            from IPython.display import display

            self._handle = display(drawn, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(drawn)


class _CellOutput(FrozenStruct):
    """Progress of the open jobs, as a notebook draws it."""

    bars: Sequence[tuple[int, int | None]]
    standings: Sequence[str] = ()

    def __repr__(self) -> str:
        return "\n".join(self.standings)

    def _repr_html_(self) -> str:
        bars = "".join(
            f"<progress value='{done}' max='{max(total, 1)}'></progress> "
            for done, total in self.bars
            if total is not None
        )
        return f"{bars}<pre>{escape(chr(10).join(self.standings))}</pre>" if self.standings else ""


def choose_presenter(*, as_json: bool = False, in_notebook: bool = False, wanted: bool | None = True) -> Presenter:
    """Return a suitable presenter for stdout.

    With ``wanted=False`` it shows nothing; with ``None`` it shows something only on terminals and in notebooks.
    """
    if as_json:
        return JsonPresenter()
    if wanted is False:
        return Presenter()
    if in_notebook:
        return NotebookPresenter()
    if sys.stdout.isatty():
        return LivePresenter()
    return LinePresenter() if wanted else Presenter()


def request_tuning(client: Client, method: Method[P, TuneAnswer], wanted: P) -> TuneAnswer:
    """Request jobs; print the errors of kernel files and the notices. Importing the kernel files may take long."""
    try:
        with output.report_waiting(f"inspecting {wanted.path or wanted.kernel}"):
            accepted = call_method(client, method, wanted, deadline_s=TUNE_DEADLINE_S)
    except KeyboardInterrupt:
        output.print_message(
            "the daemon continues with the request: `ktuned jobs` has its jobs, `ktuned jobs JOB --cancel` cancels one"
        )
        raise
    output.print_file_errors(accepted.errors)
    for notice in accepted.notices:
        output.print_message(notice)
    return accepted


class TuningInterrupted(KeyboardInterrupt):
    """Ctrl-C while a tuning was followed; its ``open_jobs`` continue."""

    def __init__(self, open_jobs: list[int]) -> None:
        super().__init__()
        self.open_jobs = open_jobs


def follow_tuning(client: Client, accepted: TuneAnswer, presenter: Presenter) -> View:
    """Show the jobs of a request until they have ended; return their final view.

    Raises:
        TuningInterrupted: on Ctrl-C.
    """
    view = begin_view(accepted.jobs, call_method(client, PEAKS).by_device)
    try:
        with Tuning(client, msgspec.to_builtins(accepted)) as tuning, presenter:
            presenter.show_event(None, view, ())
            for received in tuning:
                view, news = fold_event(view, read_event(received))
                presenter.show_event(received, view, news)
    except KeyboardInterrupt:
        raise TuningInterrupted([known.job.id for known in view.active]) from None
    # A job's final state includes what events before the subscription reported.
    view, _ = resync_view(view, read_jobs(tuning.jobs))
    return view


def cancel_jobs(client: Client, jobs: Iterable[int]) -> None:
    """Cancel jobs, some of which may have ended meanwhile."""
    for job in jobs:
        with suppress(DaemonError):
            call_method(client, CANCEL, CancelParams(job=job))


def _describe_best(view: JobView) -> str:
    job = view.job
    facts = []
    if job.best is not None:
        gain = f", {text.format_factor(job.speedup)} the default" if job.speedup else ""
        facts.append(f"best {text.format_by_objective(job.objective, job.best)}{gain}")
    facts.append(text.format_outcomes(job.outcomes))
    if view.best_config:
        facts.append(text.format_values(view.best_config))
    return "  ".join(facts)
