"""``ktuned watch`` on a terminal: a table of kernels, and everything about the chosen kernel beside or below it.

The widgets are Textual's. They show the text that :mod:`~ktuned.cli.watch.cells` makes of the session's board, and are
redrawn at most ten times a second, however many events come.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical, VerticalScroll
from textual.coordinate import Coordinate
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Resize
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import DataTable, Footer, Input, Sparkline, Static

from ktuned.cli import text
from ktuned.cli.lines import format_excerpt, format_file_error
from ktuned.cli.progress import Case
from ktuned.cli.trials import describe_facts, list_messages
from ktuned.cli.watch import cells
from ktuned.cli.watch.board import BoardRow
from ktuned.cli.watch.choice import Choice
from ktuned.cli.watch.session import Session
from ktuned.model import escape_controls, name_figure
from ktuned.protocol import ListedTrial, Trial
from ktuned_client import AsyncClient, DaemonError, DaemonUnavailable

DRAWING_S = 0.1
"""Shortest time between two redraws; more frequent ones would not be readable."""

AGES_S = 5.0
"""Interval at which ages are redrawn while nothing else happens."""

NOTICE_S = 5.0
"""How long the answer to a key is shown, in seconds."""

FLASH_S = 1.5
"""How long a new best is marked."""

SIDE_BY_SIDE = 150
"""Width in columns from which on two parts are shown side by side.

If the table is longer than half of the screen, these are the table and the chosen kernel. Otherwise they are the facts
about the kernel and its configs, below the whole table.
"""

ROOMY = 30
"""Height in lines from which on the best so far is drawn over the whole width."""

MIN_ABOUT = 50
"""Least width of the facts about a kernel beside its configs."""

MAX_CONFIGS = 500
"""Most configs in the table: more than anyone scrolls through. A report has all."""

MAX_WARNINGS = 4

KEYS = (
    ("↑ ↓ k j PgUp PgDn Home End", "choose a line"),
    ("Enter, Tab", "go to the configs of the kernel, and on one of them see everything about it"),
    ("Esc", "back; in the list it clears the filter"),
    ("/", "filter by words: kernels by name, problem, device, state; configs by knobs and outcomes"),
    ("s, r", "sort by the next column; reverse the order"),
    ("t", "tune the kernel now, before all else"),
    ("p, c", "pause or resume its job; cancel it: its measurements are kept"),
    ("P", "pause or resume all tuning"),
    ("e", "all problems with their full messages"),
    ("?", "this page"),
    ("q, Ctrl-C", "quit; the daemon continues. Ctrl-Z suspends"),
)
"""The keys and their meanings, for the page of keys."""


class StdoutDriver(LinuxDriver):
    """Draws on stdout, which is the terminal; Textual's own driver draws on stderr, which may be a file."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._file = sys.__stdout__


class ShownText(Text):
    """A text whose control characters are shown as escapes, because names and messages may come from anywhere."""

    def __init__(self, text: str = "", *arguments: Any, **options: Any) -> None:
        super().__init__(escape_controls(text), *arguments, **options)

    def append(self, text: Text | str, style: Any = None) -> Self:
        """Add a text at the end."""
        super().append(escape_controls(text) if isinstance(text, str) else text, style)
        return self


class Rows(DataTable[Text]):
    """A table whose cursor moves only by lines; ``shown`` has the keys of its lines."""

    BINDINGS: ClassVar[list[Binding | tuple[str, str] | tuple[str, str, str]]] = [
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("j", "cursor_down", show=False),
    ]

    def __init__(self, **options: Any) -> None:
        super().__init__(cursor_type="row", **options)
        self.shown: list[Any] = []
        self._layout: list[cells.Column] = []

    @property
    def chosen(self) -> Any:
        """The key of the line under the cursor; None if there is no line."""
        return self.shown[self.cursor_row] if 0 <= self.cursor_row < len(self.shown) else None

    def show_lines(
        self,
        columns: Sequence[cells.Column],
        lines: Mapping[Any, Sequence[tuple[str, str]]],
        *,
        keeps_choice: bool = True,
    ) -> None:
        """Show lines, given by key with each cell's words and style; the cursor returns to the chosen line."""
        texts = {
            key: [
                ShownText(
                    words,
                    style=style,
                    justify="right" if column.is_figure else "left",
                    no_wrap=True,
                    overflow="ellipsis",
                )
                for column, (words, style) in zip(columns, line, strict=True)
            ]
            for key, line in lines.items()
        }
        keys = list(lines)
        if columns == self._layout and keys == self.shown:
            for row, line in enumerate(texts.values()):
                for place, text in enumerate(line):
                    if self.get_cell_at(Coordinate(row, place)) != text:
                        self.update_cell_at(Coordinate(row, place), text)
            return
        chosen = self.chosen
        self.clear(columns=True)
        for column in columns:
            title = ShownText(column.title, justify="right" if column.is_figure else "left")
            self.add_column(title, width=column.width or None)
        for line in texts.values():
            self.add_row(*line)
        self._layout, self.shown = list(columns), keys
        if keeps_choice and chosen in keys:
            self.move_cursor(row=keys.index(chosen))


class TextPage(ModalScreen[None]):
    """A page of text over the screen: the keys, the problems, one trial."""

    BINDINGS: ClassVar[list[Binding | tuple[str, str] | tuple[str, str, str]]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "back")
    ]

    def __init__(self, title: str, lines: Sequence[RenderableType]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Lay the page out."""
        with VerticalScroll(id="page"):
            yield Static(ShownText(self._title, style="bold"))
            for line in self._lines:
                yield Static(line)
        yield Footer()


class WatchApp(App[None]):
    """The live screen over a session."""

    CSS = """
    #head { height: auto; color: $text-muted; }
    #warnings { height: auto; }
    #body { height: 1fr; }
    #kernels { height: auto; max-height: 50%; }
    #detail { height: 1fr; border-top: solid $panel; }
    #about, #facts, #message { height: auto; }
    #message { max-height: 30%; }
    #spark { height: 2; }
    #configs { height: 1fr; min-height: 4; }
    #filter { display: none; height: 1; }
    #filter.shown { display: block; }
    .broad #detail { layout: grid; grid-size: 2; grid-rows: auto 1fr; }
    .broad #configs { row-span: 2; height: 100%; }
    .broad #message { max-height: 100%; }
    .broad.quiet #detail { grid-size: 2 1; grid-rows: 1fr; }
    .broad.quiet #configs { row-span: 1; }
    .broad.quiet #about { height: 100%; }
    .broad.quiet #spark { height: 1fr; max-height: 12; }
    .wide #body { layout: horizontal; }
    .wide #kernels { height: 1fr; max-height: 100%; width: 58%; }
    .wide #detail { border-top: none; border-left: solid $panel; height: 1fr; }
    #page { padding: 1 2; }
    DataTable { scrollbar-size-horizontal: 1; scrollbar-size-vertical: 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Binding | tuple[str, str] | tuple[str, str, str]]] = [
        Binding("question_mark", "show_keys", "keys", key_display="?"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        # These keys have priority over the focused widget, so that the next key already reaches the new one.
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("enter", "open", show=False, priority=True),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse", show=False),
        Binding("t", "tune", "tune now"),
        Binding("p", "pause", "pause"),
        Binding("c", "cancel_job", "cancel"),
        Binding("P", "pause_all", "pause all", show=False),
        Binding("e", "show_problems", "problems"),
        Binding("escape", "leave", "back", show=False),
    ]

    def __init__(self, session: Session, title: str = "ktuned watch") -> None:
        super().__init__(driver_class=StdoutDriver)
        self.session = session
        self.failure: Exception | None = None
        self.was_interrupted = False
        self._title = title
        self._choices = {"kernels": Choice(), "configs": Choice()}
        self._filtered = "kernels"
        self._notice = ""
        self._notice_until = 0.0
        self._is_due = asyncio.Event()
        self._bests: dict[Case, float | None] = {}
        self._flashes: dict[Case, float] = {}
        self._open: Case | None = None
        self._layout: tuple[object, ...] = ()
        self._ticker: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Static(id="head")
        yield Static(id="warnings")
        with Container(id="body"):
            yield Rows(id="kernels", zebra_stripes=True)
            with Vertical(id="detail"):
                with Vertical(id="about"):
                    yield Static(id="facts")
                    yield Sparkline([], id="spark", summary_function=min)
                yield Rows(id="configs")
                with VerticalScroll(id="message"):
                    yield Static(id="message-text")
        yield Input(id="filter", placeholder="words to filter by; Enter keeps them, Esc clears them", compact=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to follow the daemon."""
        self.session.on_change = self._is_due.set
        for number in (signal.SIGTERM, signal.SIGHUP):
            with suppress(ValueError, RuntimeError):
                # This fails outside of the main thread, as in tests.
                asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.query_one("#kernels", Rows).focus()
        self.query_one("#filter", Input).can_focus = False
        self._choose_layout()
        for part in (self.session.follow_events(), self.session.observe_load(), self._draw_changes()):
            self.run_worker(self._guard_task(part), exit_on_error=False)

    async def _guard_task(self, part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        except (DaemonUnavailable, DaemonError) as error:
            self.failure = error
            self.exit()

    def on_resize(self, event: Resize) -> None:
        """Lay the parts out for the new size."""
        self._is_due.set()

    def _choose_layout(self) -> None:
        has_room = self.size.width >= SIDE_BY_SIDE
        is_long = len(self.rows) > self.size.height // 2
        self.set_class(has_room and is_long, "wide")
        self.set_class(has_room and not is_long, "broad")

    # Drawing

    async def _draw_changes(self) -> None:
        while True:
            self.show()
            await asyncio.sleep(DRAWING_S)
            try:
                async with asyncio.timeout(FLASH_S / 2 if self._flashes else AGES_S):
                    await self._is_due.wait()
            except TimeoutError:
                pass
            self._is_due.clear()

    @property
    def rows(self) -> list[BoardRow]:
        """The rows that the table shows, in its order."""
        return cells.ROWS.filter_items(self.session.board.rows.values(), self._choices["kernels"])

    @property
    def selected(self) -> BoardRow | None:
        """The row that keys act on."""
        return self.session.board.rows.get(self.query_one("#kernels", Rows).chosen)

    @property
    def trials(self) -> list[Trial]:
        """The configs of the chosen row that their table shows, in its order."""
        log = self.session.log
        return [] if log is None else log.listed.filter_items(log.tried, self._choices["configs"])[:MAX_CONFIGS]

    @property
    def selected_trial(self) -> Trial | None:
        """The config that is chosen, if its table has the focus."""
        table, log = self.query_one("#configs", Rows), self.session.log
        return log.trials.get(table.chosen) if log is not None and table.has_focus else None

    def show(self) -> None:
        """Bring all widgets up to date."""
        if len(self.screen_stack) > 1:
            # A page of text covers the widgets.
            return
        session, now = self.session, time.time()
        head = ShownText(self._title, style="bold").append(
            f"   {cells.compose_head_line(session.board, session.load)}", style="dim"
        )
        if query := self._choices["kernels"].query:
            head.append(f"   filter: {query}", style="bold yellow")
        if self._notice and time.monotonic() < self._notice_until:
            head.append(f"   {self._notice}", style="italic")
        self.query_one("#head", Static).update(head)
        warnings = cells.list_warnings(session.board, session.load, session.notices)
        shown = [Text(line, style=style) for line, style in warnings[:MAX_WARNINGS]]
        if len(warnings) > MAX_WARNINGS:
            shown.append(ShownText(f"and {len(warnings) - MAX_WARNINGS} more: e shows them", style="dim"))
        self.query_one("#warnings").display = bool(shown)
        self.query_one("#warnings", Static).update(Text("\n").join(shown))
        self._choose_layout()
        self._show_kernels(now)
        self._show_detail()

    def _show_kernels(self, now: float) -> None:
        rows = self.rows
        width = self.size.width - self._detail_width if self.has_class("wide") else self.size.width
        # The table needs two cells around each column's words, and two for its scrollbar.
        names = cells.name_rows(self.session.board)
        columns = cells.choose_columns(width - 4, rows, names)
        lines = {row.case: [self._kernel_cell(row, column, names, now) for column in columns] for row in rows}
        self.query_one("#kernels", Rows).show_lines(columns, lines)
        if not rows:
            message = "no kernel yet: a kernel file is named tune_*.py and declares an @kernel"
            if self.session.board.rows:
                known = text.format_count(len(self.session.board.rows), "row")
                message = f"none of {known} has {self._choices['kernels'].query!r}"
            self.query_one("#facts", Static).update(ShownText(message, style="dim"))

    @property
    def _detail_width(self) -> int:
        """The width of the chosen kernel's part: the whole screen, or the part beside the table of kernels."""
        return self.size.width - int(self.size.width * 0.58) if self.has_class("wide") else self.size.width

    def _fit_configs_width(self, needed: int) -> int:
        """Return the width of the configs' table, without its border and its scrollbar.

        Beside the facts about the kernel, the table becomes as wide as needed if there is room.
        """
        if not self.has_class("broad"):
            return self._detail_width - 2
        width = min(max(self.size.width // 2, needed + 2), self.size.width - MIN_ABOUT)
        self.query_one("#detail").styles.grid_columns = f"1fr {width}"
        return width - 2

    def _kernel_cell(
        self, row: BoardRow, column: cells.Column, names: Mapping[object, str], now: float
    ) -> tuple[str, str]:
        match column.title:
            case "kernel":
                name = cells.shorten_middle(names[row.case], column.width, kept=column.width // 2)
                return name, "red" if row.is_problem else ""
            case "best" if self._is_flashing(row, now):
                return cells.compose_cell(row, "best", now)[0], "bold black on green"
        return cells.compose_cell(row, column.title, now, column.width)

    def _is_flashing(self, row: BoardRow, now: float) -> bool:
        """Return whether an open job's best is new, or was a moment ago."""
        best = row.job.best if row.job is not None and row.is_open else row.current
        before = self._bests.get(row.case)
        self._bests[row.case] = best
        if row.is_open and None not in (best, before) and best != before:
            self._flashes[row.case] = now + FLASH_S
        elif self._flashes.get(row.case, 0.0) <= now:
            self._flashes.pop(row.case, None)
        return row.case in self._flashes

    def _show_detail(self) -> None:
        row, log = self.selected, self.session.log
        detail = self.query_one("#detail")
        detail.display = row is not None or not self.rows
        if row is None:
            return
        if row.case != self._open:
            self._open = row.case
            self.session.log = log = None
            self.run_worker(self._carry_out_request(self.session.open_row(row)), group="open", exclusive=True)
        title = ShownText(cells.compose_title(row), style="bold")
        facts = _in_two_columns(cells.list_row_facts(row, log), "dim")
        self.query_one("#facts", Static).update(Group(title, facts))
        steps = [] if log is None else log.best_so_far
        spark = self.query_one("#spark", Sparkline)
        # On a small screen, the configs need these lines more.
        spark.display = len(set(steps)) > 1 and self.size.height >= ROOMY
        spark.data = steps
        self._show_configs()
        words, style = cells.choose_message(row, self.selected_trial)
        # Without a message, the best so far gets the message's space.
        self.query_one("#message").display = bool(words)
        self.set_class(not words, "quiet")
        self.query_one("#message-text", Static).update(ShownText(words, style=style))

    def _show_configs(self) -> None:
        table, log, trials = self.query_one("#configs", Rows), self.session.log, self.trials
        table.display = bool(trials)
        if log is None:
            return
        # The hundreds of lines are rebuilt only if something in them has changed.
        room = self._detail_width, self.has_class("broad")
        layout = (log.row.case, [(trial.id, trial.outcome) for trial in trials], log.winner, room)
        if layout == self._layout:
            return
        self._layout = layout
        knobs = cells.find_varied_knobs(log)
        titles = ["trial", name_figure(log.row.objective), "× best", *knobs, "outcome"]
        rows = {trial.id: cells.compose_config_cells(log, trial, knobs) for trial in trials}
        words = [[cell for cell, _ in row] for row in rows.values()]
        width = self._fit_configs_width(cells.measure_configs(titles, words))
        columns = cells.fit_configs(titles, knobs, words, width)
        shown = {trial: [row[place] for place, _ in columns] for trial, row in rows.items()}
        # The best configs stay visible until the user moves into the table.
        titled = [cells.Column(title) for _, title in columns]
        table.show_lines(titled, shown, keeps_choice=table.has_focus)

    # Keys

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the row that is chosen now."""
        self._is_due.set()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave keys to the filter's line while the user types there, and to a page of text while it is open."""
        is_covered = len(self.screen_stack) > 1
        is_typing = not is_covered and self.query_one("#filter", Input).has_class("shown")
        if action == "filter":
            return not (is_covered or is_typing)
        return not is_covered if action == "open" else True

    async def action_open(self) -> None:
        """Go from a kernel to its configs, or from a config to everything about it; end typing a filter and keep it."""
        if self.query_one("#filter", Input).has_class("shown"):
            self._hide_filter()
            return
        configs = self.query_one("#configs", Rows)
        if not configs.has_focus:
            if configs.shown:
                # Set the focus at once, so that the configs get the next key.
                self.screen.set_focus(configs)
            self._is_due.set()
            return
        trial = self.selected_trial
        found = None if trial is None else await self.session.load_trial(trial.id)
        if found is not None:
            await self.push_screen(TextPage(f"trial {found.id}", trial_lines(found)))

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """A click does the same as Enter."""
        await self.action_open()

    @property
    def _focused_table(self) -> str:
        """The table that keys are for: ``kernels`` or ``configs``."""
        return "configs" if self.query_one("#configs", Rows).has_focus else "kernels"

    def _change_choice(self, table: str, **changes: Any) -> None:
        self._choices[table] = replace(self._choices[table], **changes)
        self._is_due.set()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the words are typed."""
        self._change_choice(self._filtered, query=event.value)

    def action_filter(self) -> None:
        """Let the user type words that the shown rows, or configs, must contain."""
        self._filtered = self._focused_table
        entry = self.query_one("#filter", Input)
        entry.add_class("shown")
        entry.can_focus = True
        entry.value = self._choices[self._filtered].query
        # Set the focus at once, so that the next key is a letter of the filter.
        self.screen.set_focus(entry)

    def _hide_filter(self) -> None:
        entry = self.query_one("#filter", Input)
        entry.remove_class("shown")
        entry.can_focus = False
        table = self._filtered if self.trials else "kernels"
        self.screen.set_focus(self.query_one(f"#{table}", Rows))

    def action_leave(self) -> None:
        """Clear the filter, or go back to the list of kernels."""
        if self.query_one("#filter", Input).has_class("shown"):
            self._change_choice(self._filtered, query="")
            self._hide_filter()
        else:
            self._change_choice(self._focused_table, query="")
            self.screen.set_focus(self.query_one("#kernels", Rows))

    def action_sort(self) -> None:
        """Sort by the next column."""
        table, log = self._focused_table, self.session.log
        self._change_choice(table, order=self._choices[table].order + 1)
        if table == "kernels":
            self._say(f"by {cells.ROWS.order_name(self._choices[table])}")
        elif log is not None:
            self._say(f"configs by {log.listed.order_name(self._choices[table])}")

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._change_choice(self._focused_table, is_reversed=not self._choices[self._focused_table].is_reversed)

    def action_tune(self) -> None:
        """Tune the chosen kernel now."""
        self._start_request(self.session.tune_row)

    def action_pause(self) -> None:
        """Pause or resume the chosen kernel's job."""
        self._start_request(self.session.toggle_pause)

    def action_cancel_job(self) -> None:
        """Cancel the chosen kernel's job."""
        self._start_request(self.session.cancel_job_of_row)

    def action_pause_all(self) -> None:
        """Pause or resume all tuning."""
        self.run_worker(self._carry_out_request(self.session.toggle_pause_of_all()))

    def _say(self, notice: str) -> None:
        """Show the answer to a key in the head for a moment."""
        self._notice, self._notice_until = notice, time.monotonic() + NOTICE_S
        self.set_timer(NOTICE_S, self._is_due.set)

    def _start_request(self, action: Any) -> None:
        row = self.selected
        if row is None:
            self._say("there is no kernel to act on")
            self._is_due.set()
        else:
            self.run_worker(self._carry_out_request(action(row)))

    async def _carry_out_request(self, action: Coroutine[Any, Any, str | None]) -> None:
        """Carry out a request, and show its result."""
        try:
            message = await action
        except DaemonError as error:
            message = f"{error.message}; {error.hint}" if error.hint else error.message
        except DaemonUnavailable as error:
            self.failure = error
            self.exit()
            return
        if message:
            self._say(text.first_line(message))
        self._is_due.set()

    def action_show_keys(self) -> None:
        """Show the keys and their meanings."""
        self.push_screen(TextPage("keys", [_in_two_columns(KEYS, "bold")]))

    def action_show_problems(self) -> None:
        """Show all problems with their full messages."""
        self.push_screen(TextPage("problems", problem_lines(self.session)))

    def action_interrupt(self) -> None:
        """End as Ctrl-C ends other commands."""
        self.was_interrupted = True
        self.exit()


def trial_lines(trial: ListedTrial) -> list[RenderableType]:
    """Return everything about one trial: its outcome, its messages, its facts."""
    known = describe_facts(trial)
    first = [(name, known.pop(name)) for name in ("config", "outcome", "latency")]
    lines: list[RenderableType] = [_in_two_columns(first, "dim")]
    for name, words in list_messages(trial).items():
        lines += [Text(""), ShownText(f"{name}:", style="dim"), ShownText(text.clean_message(words))]
    return [*lines, ShownText(""), _in_two_columns(list(known.items()), "dim")]


def _in_two_columns(pairs: Sequence[tuple[str, str]], style: str) -> Table:
    """Return a table of names and their words; the words wrap within their own column."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style=style)
    table.add_column()
    for name, words in pairs:
        table.add_row(ShownText(name), ShownText(words))
    return table


def problem_lines(session: Session) -> list[Text]:
    """Return all problems: of kernel files, jobs, configs, and the daemon."""
    lines: list[Text] = []
    for error in session.board.errors:
        lines += [ShownText(format_file_error(error), style="red"), *map(ShownText, format_excerpt(error))]
        lines += [*([ShownText(error.hint)] if error.hint else []), ShownText("")]
    for row in session.board.rows.values():
        messages = [] if row.job is None or row.state != "failed" else [row.job.message]
        if row.view is not None:
            messages += [f"{outcome}: {trial.message}" for outcome, trial in row.view.failures.items()]
        messages = messages or ([row.failure] if row.failure else [])
        if row.failed and not messages:
            # They failed before this screen was opened.
            count = text.format_count(row.failed, "config")
            messages = [f"{count} failed: `ktuned results {row.kernel}` says why"]
        if messages:
            lines.append(ShownText(f"{cells.label_row(row)} on {row.device or 'no device'}: {row.state}", style="bold"))
            lines += [Text(text.clean_message(message), style="red") for message in messages]
            lines.append(ShownText(""))
    lines += [Text(notice) for notice in session.notices]
    return lines or [Text("no problems", style="dim")]


def show_screen(path: str | None, project: str | None, since: tuple[int, int] | None) -> None:
    """Show the screen until the user quits.

    Raises:
        DaemonUnavailable: the daemon is gone.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    for name in ("COLUMNS", "LINES"):
        # If a parent process has exported them, they do not follow the size of this terminal's window.
        os.environ.pop(name, None)

    async def run_app() -> None:
        async with AsyncClient() as client:
            session = Session(client, path=path, project=project, since=since)
            app = WatchApp(session, f"ktuned watch {path or ''}".rstrip())
            await app.run_async()
            if app.failure is not None:
                raise app.failure
            if app.was_interrupted:
                raise KeyboardInterrupt

    asyncio.run(run_app())
