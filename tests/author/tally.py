"""Counts of an author's run, by the kind of edit: a table for people, a line of JSON for who adds up several runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Self

NEEDLESS_SHARE = 0.1
"""Of all kernels that are measured after an edit, as many may be measured needlessly."""

LINE = "author: "
"""What the line begins with that holds a tally."""


@dataclass
class Tally:
    """Edits by kind; the kernels that were measured and compiled after them, and how many of these needlessly; what was
    wrongly ``fresh``, and what did not settle, by place.
    """

    edits: Counter[str] = field(default_factory=Counter)
    measured: Counter[str] = field(default_factory=Counter)
    needless: Counter[str] = field(default_factory=Counter)
    compiled: Counter[str] = field(default_factory=Counter)
    needless_compiles: Counter[str] = field(default_factory=Counter)
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
        """True if few of the measurements were needless; compiles may be."""
        return self.needless.total() <= NEEDLESS_SHARE * self.measured.total()

    def to_line(self) -> str:
        """Return the line that :meth:`from_line` reads."""
        return LINE + json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return the tally that a line holds."""
        held = json.loads(line.removeprefix(LINE))
        counts = {name: Counter(one) for name, one in held.items() if isinstance(one, dict)}
        return cls(**counts, wrong=held["wrong"], unsettled=held["unsettled"])

    def __str__(self) -> str:
        counts = self.edits, self.measured, self.needless, self.compiled, self.needless_compiles
        rows: list[tuple[str, ...]] = [
            ("kind of edit", "edits", "measured", "needless", "compiled", "needless", "s an edit")
        ]
        for kind, count in sorted(self.edits.items()):
            each = f"{self.milliseconds[kind] / count / 1000:.1f}"
            rows.append((kind, *(str(one[kind]) for one in counts), each))
        each = f"{self.milliseconds.total() / max(self.edits.total(), 1) / 1000:.1f}"
        rows.append(("all", *(str(one.total()) for one in counts), each))
        lines = ["".join([row[0].ljust(24), *(cell.rjust(10) for cell in row[1:])]) for row in rows]
        lines.append(f"wrong fresh: {len(self.wrong)}   not settled: {len(self.unsettled)}")
        return "\n".join([*lines, *self.wrong, *self.unsettled])
