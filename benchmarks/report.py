"""Output of benchmarks: a table beside its budgets for people, one JSON object for programs."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def show(title: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print ``rows``, whose keys are the columns' titles, to standard output."""
    if as_json:
        json.dump({"benchmark": title, "rows": list(rows)}, sys.stdout)
        print()
        return
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    # Wide enough for every column even without a terminal.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
