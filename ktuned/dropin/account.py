"""The account of a process: which autotuned functions are adopted or left alone and why, and each tuning key's state.

Under ``ktuned run`` each change is appended to a file at once, because a process may be killed, or may end without its
exit handlers, as forked children do.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ktuned.spool import digest_content

TUNED = "tuned"
RECORDED = "recorded"
FIXED = "fixed"
ANSWERED = "answered by the library"


@dataclass
class Account:
    """The functions of a process, and its tuning keys with their state: tuned, recorded, fixed by a file, or the
    exception to that.

    Attributes:
        drop_ins: the plugins whose drop-in is installed in an interpreter of the program.
        adopted: functions whose configs come from the daemon.
        left_alone: functions and keys that ktuned does not tune, with the reason.
        keys: the state of each key.
        given_up: keys that are tuned, but for configs whose compiles were given up for time, and are compiled later:
            the number of these, and of all configs.
        winners_files: the files whose winners are launched.
        notes: what ktuned does differently from what the program says, each once.
        directory: where this process writes its file; with ``None`` it writes no file.
    """

    drop_ins: set[str] = field(default_factory=set)
    adopted: set[str] = field(default_factory=set)
    left_alone: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    given_up: dict[str, tuple[int, int]] = field(default_factory=dict)
    winners_files: set[str] = field(default_factory=set)
    notes: dict[str, None] = field(default_factory=dict)
    directory: Path | None = None

    def record_drop_in(self, plugin: str) -> None:
        """Record that a plugin's drop-in is installed in this interpreter."""
        self.drop_ins.add(plugin)
        self._append_entry("drop_in", plugin)

    def record_adopted(self, name: str) -> None:
        """Record that a function's configs come from the daemon."""
        if name not in self.adopted:
            self.adopted.add(name)
            self._append_entry("adopted", name)

    def record_left_alone(self, name: str, reason: str) -> None:
        """Record that a function, or one of its keys, is not tuned."""
        if self.left_alone.get(name) != reason:
            self.left_alone[name] = reason
            self._append_entry("left_alone", name, reason)

    def record_key(self, key: str, state: str) -> None:
        """Record the state of a key."""
        if self.keys.get(key) != state:
            self.keys[key] = state
            self._append_entry("key", key, state)

    def record_tuned(self, key: str, configs: int, given_up: int) -> None:
        """Record that a key is tuned, and how many of its configs were given up for time."""
        self.record_key(key, TUNED)
        if given_up:
            self.given_up[key] = given_up, configs
            self._append_entry("given_up", key, str(given_up), str(configs))

    def record_winners_file(self, path: str) -> None:
        """Record that a file's winner is launched."""
        if path not in self.winners_files:
            self.winners_files.add(path)
            self._append_entry("winners_file", path)

    def record_note(self, text: str) -> None:
        """Record something that the program's author should know, once."""
        if text not in self.notes:
            self.notes[text] = None
            self._append_entry("note", text)

    def share_finding(self, name: str, find: Callable[[], Any]) -> Any:
        """Return plain data as the first process of this ``ktuned run`` has found it."""
        if self.directory is None or not self.directory.exists():
            return find()
        path = self.directory / f"{digest_content(name)}.found"
        if not path.exists():
            draft = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            draft.write_text(json.dumps(find()))
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            draft.unlink()
        return json.loads(path.read_text())

    def _append_entry(self, *entry: str) -> None:
        if self.directory is None:
            return
        # The directory is gone if the command was killed.
        with contextlib.suppress(OSError), (self.directory / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")

    @classmethod
    def from_directory(cls, directory: Path) -> Self:
        """Read the account of all processes that wrote into a directory."""
        found = cls()
        for kind, name, *text in _read_entries(directory):
            if kind == "drop_in":
                found.record_drop_in(name)
            elif kind == "adopted":
                found.record_adopted(name)
            elif kind == "left_alone":
                found.record_left_alone(name, *text)
            elif kind == "note":
                found.record_note(name)
            elif kind == "winners_file":
                found.record_winners_file(name)
            elif kind == "given_up":
                found.given_up[name] = int(text[0]), int(text[1])
            # A key counts as tuned if any process saw it tuned, and as fixed only if all processes did.
            elif found.keys.get(name) != TUNED and not (name in found.keys and text == [FIXED]):
                found.record_key(name, *text)
        return found


def _read_entries(directory: Path) -> Iterator[Any]:
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            # The last line of a process that was killed may be incomplete.
            with contextlib.suppress(ValueError):
                yield json.loads(line)


account = Account()
"""The account of this process."""
