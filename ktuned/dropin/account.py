"""Account of a process's autotuned functions: taken over, or left alone and why, and the state of each tuning key.

Under ``ktuned run`` each change is appended to a file at once: a process may be killed, or leave without its exit
handlers, as forked children do.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

QUEUED: Final = "queued"
TUNED: Final = "tuned"


@dataclass
class Account:
    """Functions by their names, and tuning keys with their state: queued, tuned, or the reason why they are not.

    Attributes:
        taken_over: functions whose configs come from the daemon.
        left_alone: functions and keys that ktuned does not tune, with the reason.
        keys: the state of each key.
        directory: place of this process's file; none is written without one.
    """

    taken_over: set[str] = field(default_factory=set)
    left_alone: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    directory: Path | None = None

    def take_over(self, name: str) -> None:
        """Note that a function's configs come from the daemon."""
        if name not in self.taken_over:
            self.taken_over.add(name)
            self._append("taken_over", name)

    def leave_alone(self, name: str, reason: str) -> None:
        """Note that a function, or one of its keys, is not tuned."""
        self.left_alone[name] = reason
        self._append("left_alone", name, reason)

    def note(self, key: str, state: str) -> None:
        """Note the state of a key."""
        if self.keys.get(key) != state:
            self.keys[key] = state
            self._append("key", key, state)

    def _append(self, *entry: str) -> None:
        if self.directory is None:
            return
        # The directory is gone when the command was killed.
        with contextlib.suppress(OSError), (self.directory / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Return the account of all processes that wrote into a directory."""
        found = cls()
        for kind, name, *text in _entries(directory):
            if kind == "taken_over":
                found.take_over(name)
            elif kind == "left_alone":
                found.leave_alone(name, *text)
            # A key that one process saw tuned is tuned, whatever another saw.
            elif found.keys.get(name) != TUNED:
                found.note(name, *text)
        return found


def _entries(directory: Path) -> Iterator[Any]:
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            # The last line of a process that was killed may be incomplete.
            with contextlib.suppress(ValueError):
                yield json.loads(line)


account: Final = Account()
"""That of this process."""
