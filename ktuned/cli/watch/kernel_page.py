"""Page of one row: its winner, the best so far, the history over saves, its configs, and the chosen one's message."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from ktuned.cli import text
from ktuned.cli.watch.board import BoardRow
from ktuned.cli.watch.common_parts import STYLES, bottom, notices, state_of
from ktuned.cli.watch.layout import (
    GAP,
    MIN_WORD,
    Cell,
    Column,
    TableLayout,
    ends,
    facts,
    paragraph,
    sparkline,
    verbatim,
)
from ktuned.cli.watch.parts import Block, Parts, around
from ktuned.cli.watch.state import Screen, label
from ktuned.cli.watch.trial_log import TrialLog, Tried
from ktuned.model import LATENCY, Objective, is_maximized, unit_of

KEYS = (
    ("?", "keys"),
    ("q", "quit"),
    ("esc", "back"),
    ("↵", "message"),
    ("/", "filter"),
    ("s", "sort"),
    ("t", "tune now"),
    ("p", "pause"),
    ("c", "cancel"),
)

MAX_SPARK = 60
"""Wider sparklines show no more."""

_BESIDE = 8
"""Columns beyond its longest word that a config needs to stand beside its figures, if it wraps there."""

_OUTCOMES = {"measured": "green", "slower": "yellow", "under way": "cyan"}


def kernel_page(screen: Screen) -> Parts:
    """Return the page of the row that was opened."""
    row, log, columns = screen.selected, screen.log, screen.size.columns
    if row is None or log is None:
        return Parts([Text("no kernel is open")], [], bottom(screen, KEYS))
    trials = screen.trials
    focus = log.listed.chosen(trials, screen.configs)
    layout = _Layout(log, trials, columns)
    seen = around(len(trials), focus, screen.size.lines)
    body = [Block(layout.block(trials[place], is_chosen=place == focus)) for place in seen]
    message = _message(row, screen.selected_trial, columns)
    return Parts(
        title=ends(
            f"{label(row)} on {row.device}" if row.device else label(row),
            state_of(row),
            columns,
            right_style=STYLES.get(row.state, ""),
        ),
        notices=[*notices(screen.board, columns), *_facts(row, log, columns)],
        heading=[layout.heading()] if trials else (),
        body=body or [Block(_nothing(screen))],
        detail=message[: max(3, screen.size.lines // 4)],
        keys=bottom(screen, KEYS),
        focus=None if focus is None else focus - seen.start,
        thing="config",
        above=seen.start,
        below=len(trials) - seen.stop,
    )


def _facts(row: BoardRow, log: TrialLog, columns: int) -> list[Text]:
    job = row.job
    now = text.by_objective(row.objective, row.current)
    against = [] if row.gain is None else [f"{text.times(row.gain)} of {text.by_objective(row.objective, row.before)}"]
    if job is not None and job.speedup:
        against.append(f"{text.times(job.speedup)} the default")
    if job is not None and job.reference_us is not None:
        against.append(f"reference {text.latency(job.reference_us)}")
    if job is not None and job.share:
        against.append(job.share)
    counts = text.counts(job.outcomes) if job is not None and job.outcomes else ""
    return facts(
        [
            ("winner", text.flat(row.config) if row.config else ""),
            ("now", ", ".join([now, *against]) if row.current is not None else ""),
            ("best so far", _best_so_far(log, columns)),
            ("over saves", _history(log, columns)),
            ("configs", counts),
            ("waits", job.waits_for if job is not None else ""),
        ],
        columns,
        limit=2,
    )


def _best_so_far(log: TrialLog, columns: int) -> str:
    best = log.best_so_far
    if not best:
        return ""
    first, last = (_of_cost(log.row.objective, cost) for cost in (best[0], best[-1]))
    return _sparked(best, f"{first} ", f" {last} after {text.number(len(best), 'config')}", columns)


def _history(log: TrialLog, columns: int) -> str:
    saves = [cost for trial in log.history if (cost := log.cost(trial)) is not None]
    if len(saves) < 2:
        return ""
    first, last = (_of_cost(log.row.objective, cost) for cost in (saves[0], saves[-1]))
    return _sparked(saves, f"{first} ", f" {last} in {text.number(len(saves), 'version')}", columns)


def _sparked(values: list[float], before: str, after: str, columns: int) -> str:
    space = columns - cell_len(before) - cell_len(after) - 14
    return f"{before}{sparkline(values, min(MAX_SPARK, space))}{after}"


def _of_cost(objective: Objective, cost: float) -> str:
    return text.by_objective(objective, 1 / cost if is_maximized(objective) else cost)


class _Layout:
    """Columns of the configs; a config that its column would break stands below its figures."""

    def __init__(self, log: TrialLog, trials: Sequence[Tried], columns: int) -> None:
        self._log = log
        self._columns = columns
        self._best = min((cost for trial in log.trials.values() if (cost := log.cost(trial)) is not None), default=None)
        outcomes = max([len("outcome"), *(cell_len(_outcome(trial)) for trial in trials)])
        configs = [text.flat(trial.config) for trial in trials]
        unit = "latency" if log.row.objective == LATENCY else unit_of(log.row.objective)
        fixed = [Column("trial", 7, True), Column(unit, 10, True), Column("best", 7, True), Column("outcome", outcomes)]
        elastic = columns - 2 - sum((column.width or 0) + GAP for column in fixed)
        longest = max([MIN_WORD, *(cell_len(word) for config in configs for word in config.split())])
        self._is_stacked = elastic < longest + _BESIDE * (max(map(cell_len, configs), default=0) > elastic)
        if not self._is_stacked:
            fixed.insert(1, Column("config"))
        self._table = TableLayout(
            fixed, [] if self._is_stacked else [max(map(cell_len, configs), default=0)], columns - 2
        )

    def heading(self) -> Text:
        """Return the line of titles."""
        return Text.assemble("  ", self._table.heading())

    def block(self, trial: Tried, *, is_chosen: bool) -> list[Text]:
        """Return the lines of a trial."""
        cost, style = self._log.cost(trial), "bold" if is_chosen else ""
        mark, mark_style = ("* ", "bold green") if trial.is_winner else ("", "dim")
        cells = [
            Cell(f"{mark}{trial.id}", mark_style),
            Cell(text.by_objective(self._log.row.objective, trial.figure)),
            Cell(text.times(cost / self._best) if cost and self._best else text.ABSENT),
            Cell(_outcome(trial), _OUTCOMES.get(trial.outcome, "red")),
        ]
        if not self._is_stacked:
            cells.insert(1, Cell(text.flat(trial.config), style))
        lines = self._table.row(cells)
        if self._is_stacked:
            lines += paragraph(text.flat(trial.config), self._columns - 2, style=style, indent=9)
        return [Text.assemble("▸ " if is_chosen and place == 0 else "  ", line) for place, line in enumerate(lines)]


def _outcome(trial: Tried) -> str:
    return trial.outcome.replace("_", " ")


def _message(row: BoardRow, trial: Tried | None, columns: int) -> list[Text]:
    """Return the chosen config's message, or else that of the job."""
    if trial is not None and trial.message:
        said, style = trial.message, "red"
    elif row.job is not None and row.job.message:
        said, style = row.job.message, "red" if row.state == "failed" else ""
    else:
        return []
    return [Text(line, style=style) for line in verbatim(text.clean(said), columns)]


def _nothing(screen: Screen) -> list[Text]:
    if screen.log is not None and screen.log.trials:
        said = f"no config has {screen.configs.query!r}: esc clears the filter"
    else:
        said = "no config was tried since the last edit: t tunes the kernel now"
    return paragraph(said, screen.size.columns, style="dim")
