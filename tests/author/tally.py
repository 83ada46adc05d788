"""Counts of an author's run, by the kind of edit: a table for people, a line of JSON for who adds up several runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Self

NEEDLESS_SHARE = 0.1
"""Of all re-tunes, as many may be needless."""

LINE = "author: "
"""What the line begins with that holds a tally."""


@dataclass
class Tally:
    """Edits, re-tunes and needless re-tunes by kind; what was wrongly ``fresh``, and what did not settle, by place."""

    edits: Counter[str] = field(default_factory=Counter)
    retunes: Counter[str] = field(default_factory=Counter)
    needless: Counter[str] = field(default_factory=Counter)
    milliseconds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the counts of another run."""
        for one in fields(self):
            mine = getattr(self, one.name)
            mine += getattr(other, one.name)

    @property
    def is_precise(self) -> bool:
        """True if few of the re-tunes were needless."""
        return self.needless.total() <= NEEDLESS_SHARE * self.retunes.total()

    def to_line(self) -> str:
        """Return the line that :meth:`from_line` reads."""
        return LINE + json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return the tally that a line holds."""
        held = json.loads(line.removeprefix(LINE))
        counts = {name: Counter(held[name]) for name in ("edits", "retunes", "needless", "milliseconds")}
        return cls(**counts, wrong=held["wrong"], unsettled=held["unsettled"])

    def __str__(self) -> str:
        rows = [("kind of edit", "edits", "re-tunes", "needless", "s an edit")]
        for kind, count in sorted(self.edits.items()):
            each = f"{self.milliseconds[kind] / count / 1000:.1f}"
            rows.append((kind, str(count), str(self.retunes[kind]), str(self.needless[kind]), each))
        total = self.edits.total()
        each = f"{self.milliseconds.total() / max(total, 1) / 1000:.1f}"
        rows.append(("all", str(total), str(self.retunes.total()), str(self.needless.total()), each))
        lines = ["".join([row[0].ljust(24), *(cell.rjust(10) for cell in row[1:])]) for row in rows]
        lines.append(f"wrong fresh: {len(self.wrong)}   not settled: {len(self.unsettled)}")
        return "\n".join([*lines, *self.wrong, *self.unsettled])
