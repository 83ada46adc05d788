"""Pages of text of the live screen: one trial with its full message, all problems, the keys. No IO."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ktuned.cli import text
from ktuned.cli.trial_facts import facts_of, messages_of
from ktuned.cli.watch.common_parts import bottom, notices
from ktuned.cli.watch.layout import ends, facts, paragraph, verbatim
from ktuned.cli.watch.parts import Block, Parts
from ktuned.cli.watch.state import Screen, label

KEYS = (("?", "keys"), ("q", "quit"), ("esc", "back"), ("↑↓", "scroll"))

_MEANINGS = (
    ("↑ ↓  k j", "choose a line, or scroll a page of text"),
    ("PgUp PgDn", "the same by a page; Home and End go to its ends"),
    ("↵  →", "open the kernel: configs, history, messages; there, everything about one config"),
    ("esc  ←", "back; on the list it clears the filter"),
    ("/", "filter by words of the name, problem, device, state, message; configs by knobs and outcomes"),
    ("s  r", "sort by another column; the other way round"),
    ("t", "tune the kernel now, before all else"),
    ("p", "pause the kernel's job, or resume it"),
    ("P", "pause all tuning, or resume it"),
    ("c", "cancel the kernel's job; what is measured is kept"),
    ("e", "all problems: errors in kernel files, and jobs that failed, with full messages"),
    ("?", "this page"),
    ("q  Ctrl-C", "quit; the daemon goes on. Ctrl-Z suspends"),
)


def trial_page(screen: Screen) -> Parts:
    """Return everything about one trial."""
    columns, trial = screen.size.columns, screen.trial
    row = screen.selected
    named = label(row) if row is not None else ""
    if trial is None:
        return _page(screen, named, [Text("the trial is being read", style="dim")])
    known = facts_of(trial)
    found = facts(((name, known.pop(name)) for name in ("config", "outcome", "latency")), columns)
    for name, said in messages_of(trial).items():
        found += [Text(""), Text(f"{name}:", style="dim")]
        found += [Text(line) for line in verbatim(text.clean(said), columns)]
    found += [Text(""), *facts(known.items(), columns)]
    return _page(screen, f"trial {trial['id']} of {named}", found)


def problems_page(screen: Screen) -> Parts:
    """Return all problems with their full messages: of kernel files, jobs, configs, and the daemon."""
    columns = screen.size.columns
    found: list[Text] = []
    for error in screen.board.errors.values():
        found += [*paragraph(error.line, columns, style="red"), *(Text(line) for line in error.excerpt)]
        found += [*(paragraph(error.hint, columns) if error.hint else ()), Text("")]
    for row in screen.board.rows.values():
        said = [] if row.job is None or row.state != "failed" else [row.job.message]
        if row.job is not None:
            said += [f"{outcome}: {trial.get('message')}" for outcome, trial in row.job.failures.items()]
        said = said or ([row.failure] if row.failure else [])
        if said:
            found += paragraph(f"{label(row)} on {row.device or 'no device'}: {row.state}", columns, style="bold")
            for message in said:
                found += [Text(line, style="red") for line in verbatim(text.clean(message), columns)]
            found.append(Text(""))
    for notice in screen.notices:
        found += [*paragraph(notice, columns), Text("")]
    return _page(screen, "problems", found or [Text("no problems", style="dim")])


def keys_page(screen: Screen) -> Parts:
    """Return the keys and their meanings."""
    return _page(screen, "keys", facts(_MEANINGS, screen.size.columns))


def _page(screen: Screen, title: str, lines: Sequence[Text]) -> Parts:
    columns = screen.size.columns
    return Parts(
        title=ends(title, "", columns),
        notices=notices(screen.board, columns),
        body=[Block([line]) for line in lines],
        keys=bottom(screen, KEYS),
        scroll=screen.scroll,
    )
