"""The text of the live screen: of its rows, its configs and its head. No IO, and no widgets.

The table of kernels has a column for each question of an author: is it done, how fast is it, what did tuning gain,
when, and by which config. Each kernel has one line. On a narrow terminal, columns are left out from the right, and long
names lose their middle; the details of the chosen kernel have all of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from ktuned.cli import lines, text
from ktuned.cli.progress import JobView
from ktuned.cli.watch.board import Board, BoardRow, is_on_several_devices
from ktuned.cli.watch.choice import Listed
from ktuned.cli.watch.load import Load, estimate_time_left, summarise_load
from ktuned.cli.watch.trial_log import TrialLog
from ktuned.model import NOT_TRIED, FrozenStruct, Outcome, format_objective_suffix, is_maximized
from ktuned.protocol import JobState, Trial

STYLES: Mapping[str, str] = {
    "tuned": "green",
    "fresh": "green",
    "running": "cyan",
    "stale": "yellow",
    "queued": "yellow",
    "paused": "magenta",
    "failed": "red",
    "cancelled": "dim",
}
"""Styles of states."""

WARNING = "#af8700"
"""Style of warnings. Unlike bright yellow, it is readable on dark and on light screens."""

SAME = 0.01
"""Smaller changes are noise; this is the precision of a winner (docs/reference/kernel-files.md, presets)."""

_URGENCY = ("failed", "running", "queued", "paused", "stale", "default", "cancelled", "tuned", "fresh")
"""States, in the order in which an author looks for them."""

_BARS = "▁▂▃▄▅▆▇█"
_BAR_CELLS = 8

_STATE = 9
_COUNT = 10
"""Width of the progress without its bar."""

MIN_NAME = 12
"""Least width of a kernel's name and problem."""

MIN_CONFIG = 16
"""Least width of a winner's config; in less room it says nothing."""

GAP = 2
"""Cells that a table puts around a column's words."""


class Column(FrozenStruct):
    """A column of a table: its title, its width (0: as wide as its words), and whether it is aligned to the right."""

    title: str
    width: int = 0
    is_figure: bool = False


_WANTED = (Column("best", 9, True), Column("× default", 9, True), Column("progress", _COUNT))
"""Columns after the name and the state, the most important first."""

_OPTIONAL = (Column("age", 7, True), Column("× before", 8, True))
"""Columns that follow, each only if it has text in some row."""

_ORDER = ("kernel", "state", "progress", "best", "× default", "× before", "age", "config")


def choose_columns(width: int, rows: Sequence[BoardRow], names: Mapping[object, str]) -> list[Column]:
    """Return the columns that fit a terminal; an optional column whose cells would all be empty is left out.

    The most important columns come first. Then names get the room that they need, then the other columns.
    """
    spare = width - MIN_NAME - _STATE - 2 * GAP
    found = []
    for column in _WANTED:
        if spare >= column.width + GAP:
            spare -= column.width + GAP
            found.append(column)
    extra = min(max((len(names[row.case]) for row in rows), default=0) - MIN_NAME, spare)
    name = MIN_NAME + max(0, extra)
    spare -= name - MIN_NAME
    if found == list(_WANTED) and spare > _BAR_CELLS:
        spare -= _BAR_CELLS + 1
        found[-1] = Column("progress", _COUNT + _BAR_CELLS + 1)
    for column in _OPTIONAL:
        is_filled = any(compose_cell(row, column.title, 0.0)[0] for row in rows)
        if is_filled and spare >= column.width + GAP:
            spare -= column.width + GAP
            found.append(column)
    config = min(max((len(compose_cell(row, "config", 0.0)[0]) for row in rows), default=0), spare - GAP)
    if config >= MIN_CONFIG:
        spare -= config + GAP
        found.append(Column("config", config))
    found += [Column("kernel", name), Column("state", _STATE + min(20, max(0, spare)))]
    return sorted(found, key=lambda column: _ORDER.index(column.title))


def compose_cell(row: BoardRow, column: str, now: float, width: int = 99) -> tuple[str, str]:
    """Return the words of a cell and their style; no words if nothing is known."""
    job = row.job
    match column:
        case "state":
            state = describe_state(row)
            return (state if len(state) <= width else state.partition(",")[0]), STYLES.get(row.state, "")
        case "progress":
            return describe_progress(row, with_bar=width > _COUNT), "cyan" if row.state == JobState.RUNNING else "dim"
        case "best":
            best = row.current if row.current is not None else (job.best if job is not None and row.is_open else None)
            return ("" if best is None else text.format_by_objective(row.objective, best)), ""
        case "× default":
            speedup = None if job is None else job.speedup
            return ("" if speedup is None else text.format_factor(speedup)), _choose_gain_style(speedup)
        case "× before":
            return ("" if row.gain is None else text.format_factor(row.gain)), _choose_gain_style(row.gain)
        case "config":
            return (text.format_values(row.config) if row.config and row.current is not None else ""), ""
        case "age":
            return _format_row_age(row, now), "dim"
    return "", ""


def _choose_gain_style(value: float | None) -> str:
    if value is None or abs(value - 1) < SAME:
        return ""
    return "green" if value > 1 else "red"


def _format_row_age(row: BoardRow, now: float) -> str:
    """Return how long ago a row was saved, or its job ended or began, in one unit."""
    job = row.job
    at = row.saved_at or (None if job is None else job.finished or job.started)
    if at is None:
        return ""
    seconds = max(0, int(now - at))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def label_row(row: BoardRow) -> str:
    """Return a row's name: kernel, problem, and the objective if it is not latency."""
    named = f"{row.name} {text.format_values(row.problem)}" if row.problem else row.name
    return f"{named}{format_objective_suffix(row.objective)}"


def name_rows(board: Board) -> dict[object, str]:
    """Return each row's name by its case, with the project or the device if another row has the same name."""
    short = Counter(name.rpartition(":")[2] for name in {row.kernel for row in board.rows.values()})
    found: dict[object, str] = {}
    for case, row in board.rows.items():
        project = row.kernel.rpartition(":")[0]
        named = f"{project}:{label_row(row)}" if short[row.name] > 1 and project else label_row(row)
        found[case] = f"{named} on {row.device}" if is_on_several_devices(board, row) else named
    return found


def describe_state(row: BoardRow) -> str:
    """Return a row's state in words."""
    match row.state, row.view:
        case "running", JobView(round=tuple() as turn):
            return f"final {turn[0]}/{turn[1]}"
        case "running", _:
            return "tuning"
        case "tuned", JobView(share=share) if share:
            return f"tuned, {share}"
    return row.state


def describe_progress(row: BoardRow, *, with_bar: bool) -> str:
    """Return a bar, the number of configs that were tried, and the number of those that failed."""
    job = row.job
    if job is None or not (job.done or row.is_open):
        return ""
    failed = f" {row.failed}✗" if row.failed else ""
    if not job.total:
        return f"{job.done} tried{failed}"
    filled = round(_BAR_CELLS * min(1.0, job.done / job.total)) if row.state == JobState.RUNNING else 0
    bar = f"{'━' * filled}{'─' * (_BAR_CELLS - filled)} " if with_bar and row.state == JobState.RUNNING else ""
    return f"{bar}{job.done}/{job.total}{failed}"


def draw_sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as a row of bars on a logarithmic scale; if they do not fit, a bar is the least of several values."""
    positive = [value for value in values if value > 0]
    if not positive or width < 1:
        return ""
    columns = min(width, len(positive))
    shares = [
        positive[place * len(positive) // columns : (place + 1) * len(positive) // columns] for place in range(columns)
    ]
    least = [min(share) for share in shares]
    low, high = math.log(min(least)), math.log(max(least))
    if high - low < 1e-9:
        return _BARS[0] * columns
    top = len(_BARS) - 1
    return "".join(_BARS[round((math.log(value) - low) / (high - low) * top)] for value in least)


def compose_head_line(board: Board, load: Load) -> str:
    """Return the line above the table: jobs, trials per second, load, time left."""
    jobs = [view.job for view in board.view.active]
    waits = sum(job.state != JobState.RUNNING for job in jobs)
    return summarise_load(load, estimate_time_left(jobs, board.sizes), running=len(jobs) - waits, waiting=waits)


def list_warnings(board: Board, load: Load, notices: Sequence[str]) -> list[tuple[str, str]]:
    """Return the warnings above the table, each with its style."""
    found = []
    if board.stalled:
        found.append((f"nothing is tuned: {board.stalled}", "magenta"))
    elif board.paused_everything:
        found.append(("all tuning is paused: P resumes it", "magenta"))
    elif board.paused:
        found.append((f"paused: {', '.join(sorted(board.paused))}", "magenta"))
    found += [(f"{device} is sick: {text.first_line(reason)}", "red") for device, reason in load.sick.items()]
    found += [(shorten_path(lines.format_file_error(error), board.roots), "red") for error in board.errors]
    found += [(text.first_line(notice, 300), WARNING) for notice in notices]
    return found


def shorten_path(line: str, roots: Sequence[str]) -> str:
    """Return a line in which a leading path below a watched directory begins with that directory's name only.

    >>> shorten_path("/home/me/work/gemm/tune_it.py:1: no", ["/home/me/work"])
    'work/gemm/tune_it.py:1: no'
    """
    root = max((root for root in roots if line.startswith(f"{root}/")), key=len, default="")
    return line[len(root) - len(PurePath(root).name) :]


def compose_title(row: BoardRow) -> str:
    """Return the title of a row's details."""
    return f"{label_row(row)}{f' on {row.device}' if row.device else ''}"


def list_row_facts(row: BoardRow, log: TrialLog | None) -> list[tuple[str, str]]:
    """Return the facts about a row, as names and words."""
    job = row.job
    found = []
    if row.config:
        found.append(("winner" if row.current is not None else "before", text.format_values(row.config)))
    against = []
    if row.current is not None:
        against.append(text.format_by_objective(row.objective, row.current))
    if job is not None and job.speedup:
        default = text.format_by_objective(row.objective, job.default)
        against.append(f"{text.format_factor(job.speedup)} the default ({default})")
    if job is not None and job.reference_us is not None:
        against.append(f"reference {text.format_latency(job.reference_us)}")
    if row.gain is not None:
        against.append(
            f"{text.format_factor(row.gain)} what it was ({text.format_by_objective(row.objective, row.before)})"
        )
    if row.view is not None and row.view.share:
        against.append(row.view.share)
    if against:
        found.append(("figures", ", ".join(against)))
    tried = {} if job is None else {name: count for name, count in job.outcomes.items() if name not in NOT_TRIED}
    if tried:
        found.append(("configs", text.format_outcomes(tried)))
    if log is not None and len(log.tried) < len(log.trials):
        found.append(("not tried", text.format_count(len(log.trials) - len(log.tried), "config")))
    if job is not None and row.is_open:
        standing = ", ".join(
            filter(None, (lines.format_progress(job) + " tried", text.format_time_left(job.left_s), job.waits_for))
        )
        found.append(("job", f"{job.id} {job.state}, {standing}"))
    saves = [] if log is None else [cost for trial in log.history if (cost := log.find_cost(trial)) is not None]
    if log is not None and len(saves) > 1:
        first, last = (_of_cost(log, cost) for cost in (saves[0], saves[-1]))
        found.append(("over saves", f"{first} {draw_sparkline(saves, 30)} {last} in {len(saves)} versions"))
    return found


def choose_message(row: BoardRow, trial: Trial | None) -> tuple[str, str]:
    """Return a message and its style: the chosen config's, or else the row's failures or its job's.

    Of several failing outcomes, each has a line.
    """
    if trial is not None and trial.message:
        return text.clean_message(trial.message), "" if trial.outcome is Outcome.MEASURED else "red"
    if row.view is not None and row.view.failures:
        failures = [f"{outcome}: {failed.message}" for outcome, failed in row.view.failures.items()]
        shown = failures if len(failures) == 1 else map(text.first_line, failures)
        return text.clean_message("\n".join(shown)), "red" if row.is_problem else WARNING
    if row.failure:
        return text.clean_message(row.failure), "red"
    if row.job is not None and row.job.message:
        return text.clean_message(row.job.message), "red" if row.state == JobState.FAILED else "dim"
    return "", ""


def find_varied_knobs(log: TrialLog) -> list[str]:
    """Return the knobs that differ between configs; if none differs, all knobs."""
    values: dict[str, set[str]] = {}
    for trial in log.trials.values():
        for knob, value in trial.config.items():
            values.setdefault(knob, set()).add(str(value))
    varied = [knob for knob, known in values.items() if len(known) > 1]
    return varied or list(values)


MIN_TITLE = 4
"""Least number of characters to which a knob's name is shortened."""


def fit_configs(
    titles: Sequence[str], knobs: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> list[tuple[int, str]]:
    """Return the columns of a table of configs that fit: their places in ``rows``, and their titles.

    If not all of them fit, ``× best`` is left out, because it follows from the other figures. If that is not enough,
    the longest names of knobs are shortened as far as necessary.

    >>> fit_configs(["trial", "TILE_COLUMNS"], ["TILE_COLUMNS"], [["14", "16"]], 16)
    [(0, 'trial'), (1, 'T…LUMNS')]
    """
    below = _measure_words(titles, rows)
    # Only knobs' titles can be shortened; others keep their length.
    least = [
        min(len(title), max(words, MIN_TITLE)) if title in knobs else len(title)
        for title, words in zip(titles, below, strict=True)
    ]
    places = list(range(len(titles)))
    if measure_configs(titles, rows) > width:
        places = [place for place in places if titles[place] != "× best"]
    sizes = [len(title) for title in titles]
    while sum(max(sizes[place], below[place]) + GAP for place in places) > width:
        longest = max(places, key=lambda place: sizes[place] - least[place])
        if sizes[longest] == least[longest]:
            break
        sizes[longest] -= 1
    # The names of a kernel's knobs often begin alike.
    return [(place, shorten_middle(titles[place], sizes[place], kept=1)) for place in places]


def measure_configs(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table of configs in which nothing is shortened."""
    return sum(max(len(title), words) + GAP for title, words in zip(titles, _measure_words(titles, rows), strict=True))


def _measure_words(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the length of each column's longest word."""
    return [max([len(row[place]) for row in rows], default=0) for place in range(len(titles))]


def shorten_middle(name: str, size: int, kept: int) -> str:
    """Return a name of at most ``size`` characters: its first ``kept`` characters and its end.

    >>> shorten_middle("attention dtype=bfloat16 sequence=16384", 24, 9)
    'attention…sequence=16384'
    """
    return name if size >= len(name) else f"{name[:kept]}…{name[len(name) - size + kept + 1 :]}"


def compose_config_cells(log: TrialLog, trial: Trial, knobs: Sequence[str]) -> list[tuple[str, str]]:
    """Return a config's cells: its figure, how it compares with the best, its knobs, its outcome."""
    best = min((cost for tried in log.trials.values() if (cost := log.find_cost(tried)) is not None), default=None)
    cost = log.find_cost(trial)
    styles = {"measured": "green", "slower": "yellow", "under way": "cyan"}
    outcome, is_winner = trial.outcome or "under way", trial.id == log.winner
    return [
        (f"{'★ ' if is_winner else ''}{trial.id}", "bold green" if is_winner else "dim"),
        (text.format_by_objective(log.row.objective, log.find_figure(trial)), ""),
        (text.format_factor(cost / best) if cost and best else text.ABSENT, ""),
        *((str(trial.config.get(knob, text.ABSENT)), "") for knob in knobs),
        (outcome.replace("_", " "), styles.get(outcome, "red")),
    ]


def _of_cost(log: TrialLog, cost: float) -> str:
    objective = log.row.objective
    return text.format_by_objective(objective, 1 / cost if is_maximized(objective) else cost)


def _urgency_of_row(row: BoardRow) -> tuple[int, str]:
    is_known = row.state in _URGENCY
    return (_URGENCY.index(row.state) if is_known else len(_URGENCY)), row.kernel


ROWS: Listed[BoardRow] = Listed(
    words=lambda row: f"{row.kernel} {label_row(row)} {row.device} {row.state} {row.failure}",
    orders={
        "kernel": lambda row: row.kernel,
        "state": _urgency_of_row,
        "best": lambda row: row.current,
        "× default": lambda row: None if row.job is None or row.job.speedup is None else -row.job.speedup,
        "age": lambda row: None if row.saved_at is None else -row.saved_at,
    },
)
"""How the board's rows are listed: by kernel, so that its problems are together, or by another column."""
