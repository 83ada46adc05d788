"""Answers that need no round trip: those that were kept, and those of the daemon's table.

A kept answer holds while its kernel's generation in the table is the one that it had, and no longer than its time. So a
change in the daemon ends it without a message. Without a daemon the last known answer is given, as ``unavailable``
unless the table still confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

import msgpack

from ktuned_client.answers import Hit, complete_hit
from ktuned_client.table import WATCHED_WORD, slot_of
from ktuned_client.table_answers import HOLDS_S, LAST_WORD_S, NO_WORDS, UNWATCHED, Entry, TableAnswers, pack

MAX_ANSWERS: Final = 10_000
"""Most kept answers; beyond it all are forgotten and requested again."""

MAX_PROBLEM_BYTES: Final = 64 * 1024
"""The longest problem. A daemon closes the connection of a client that sends more than 1 MiB, as if it had gone."""


class Memo:
    """Answers by the name of a question (see :func:`name_of`) and by the problem's bytes.

    A hot loop reads ``answers`` and ``words`` directly: an entry holds while its slot's word equals its generation and
    its time has not passed. Only :meth:`recall` finds an answer without a config, which each caller completes with its
    own default. ``directory`` has the daemon's files; with ``None`` they are not used, and no answer of a daemon is
    kept. With a ``pin`` answers are those that the pin holds.
    """

    __slots__ = ("_clock", "_count", "answers", "incomplete", "max_answers", "table", "words")

    def __init__(
        self,
        directory: str | None,
        clock: Callable[[], float] = monotonic,
        *,
        pin: str | None = None,
        max_answers: int = MAX_ANSWERS,
    ) -> None:
        self.max_answers = max_answers
        self.answers: dict[Any, dict[bytes, Entry]] = {}
        self.incomplete: dict[tuple[Any, bytes], Entry] = {}
        self.table = TableAnswers(directory, clock, pin)
        self.words = NO_WORDS
        self._count = 0
        self._clock = clock

    def read_table(
        self,
        kernel: str,
        directory: str | None,
        device: str | None,
        objective: str | None,
        problem: Mapping[str, Any],
        key: bytes,
        *,
        is_old: bool = False,
        unwatched: str = "",
    ) -> Hit | None:
        """Return the answer of the daemon's table, and keep it; ``None`` if the daemon must be asked.

        The arguments are those of :meth:`TableAnswers.find_entry`.
        """
        entry = self.table.find_entry(
            kernel, directory, device, objective, problem, key, is_old=is_old, unwatched=unwatched
        )
        self.words = self.table.words
        if entry is None:
            return None
        self._keep_entry(make_question_name(kernel, device, objective), key, entry)
        return entry[3]

    def remember(self, name: Any, problem: bytes, hit: Hit) -> None:
        """Keep an answer of the daemon whose table is mapped."""
        generation = hit.generation
        table = self.table.find_table()
        self.words = self.table.words
        if type(generation) is int and table is not None:
            self._keep_entry(name, problem, (slot_of(hit.kernel), generation, self._clock() + HOLDS_S, hit))

    def remember_for_good(self, name: Any, problem: bytes, hit: Hit) -> None:
        """Keep an answer that no daemon can change."""
        self._keep_entry(name, problem, (0, 0, float("inf"), hit))

    def recall(self, name: Any, problem: bytes, default: Mapping[str, Any] | None) -> tuple[Hit | None, bool]:
        """Return the kept answer if it holds now, else ``None``, and whether any answer is kept."""
        entry = self._find_entry(name, problem)
        if entry is None or self._clock() >= entry[2] or self.words[entry[0]] != entry[1]:
            return None, entry is not None
        return complete_hit(entry[3], default), True

    def find_last_answer(self, name: Any, problem: bytes, default: Mapping[str, Any] | None, reason: str) -> Hit | None:
        """Return the last known answer while no daemon answers; ``unavailable`` unless the table still confirms it.

        A fresh answer becomes stale when no daemon watches its files.
        """
        entry = self._find_entry(name, problem)
        if entry is None:
            return None
        slot, generation, _, hit = entry
        if self.words is NO_WORDS or self.words[slot] != generation:
            return complete_hit(hit, default)._replace(
                status="unavailable", message=f"{reason}; this is the last known answer"
            )
        now = self._clock()
        until = now + LAST_WORD_S
        watched_until = self.words[WATCHED_WORD] / 1e9
        if hit.status == "fresh" and now >= watched_until:
            hit = hit._replace(status="stale", message=f"{UNWATCHED}: {reason}")
        elif hit.status == "fresh":
            until = min(until, watched_until)
        self._keep_entry(name, problem, (slot, generation, until, hit))
        return complete_hit(hit, default)

    def close(self) -> None:
        """Unmap the table, and forget all answers."""
        self.answers.clear()
        self.incomplete.clear()
        self.words = NO_WORDS
        self.table.close()

    def _find_entry(self, name: Any, problem: bytes) -> Entry | None:
        return self.answers.get(name, _NO_ANSWERS).get(problem) or self.incomplete.get((name, problem))

    def _keep_entry(self, name: Any, problem: bytes, entry: Entry) -> None:
        entries = self.answers.get(name, _NO_ANSWERS)
        if problem not in entries and (name, problem) not in self.incomplete:
            self._count += 1
            if self._count > self.max_answers:
                self._count = 1
                self.answers.clear()
                self.incomplete.clear()
        if entry[3].config is None:
            self.incomplete[name, problem] = entry
            self.answers.get(name, {}).pop(problem, None)
            return
        if self.incomplete:
            self.incomplete.pop((name, problem), None)
        try:
            self.answers[name][problem] = entry
        except KeyError:
            self.answers[name] = {problem: entry}


def make_question_name(kernel: str, device: str | None, objective: str | None) -> Any:
    """Return the name under which answers are kept: the kernel's alone unless a device or an objective is given."""
    return kernel if device is None and objective is None else (kernel, device, objective)


_COMPOUND: Final = (list, tuple, dict, bytes, bytearray, type(None))
"""Types that MessagePack carries but a problem must not hold."""

_PLAIN: Final = frozenset((int, str, float, bool))
_TEXTS: Final = frozenset((str,))
"""Types of values and names that need no closer check: each microsecond here is part of every lookup."""

_NO_ANSWERS: Final[dict[bytes, Entry]] = {}


def _unwrap_scalar(value: Any) -> Any:
    """Return the Python number of a NumPy or torch scalar in a problem.

    Raises:
        TypeError: the value is not such a scalar.
    """
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        number = value.item()
        if isinstance(number, bool | int | float | str):
            return number
    raise TypeError(f"a problem cannot hold {value!r}, a {type(value).__name__}: only numbers, bool and str")


def pack_problem(problem: Mapping[str, Any]) -> bytes:
    """Return a problem's bytes; also for other mappings than dicts, and for subclasses of numbers and strings.

    Raises:
        TypeError: it is not a mapping, or has a value that MessagePack cannot carry, or a key that is not a string.
        ValueError: it has a number beyond 64 bits, or is too long.
    """
    is_plain = (
        type(problem) is dict
        and _TEXTS.issuperset(map(type, problem))
        and _PLAIN.issuperset(map(type, problem.values()))
    )
    if not is_plain:
        _check_problem(problem)
    try:
        try:
            key = bytes(pack(dict(problem)))
        except TypeError:
            key = bytes(msgpack.Packer(default=_unwrap_scalar).pack(dict(problem)))
    except OverflowError as error:
        raise ValueError(f"a number beyond 64 bits: {error}") from error
    if len(key) > MAX_PROBLEM_BYTES:
        raise ValueError(f"a problem of {len(key)} bytes: at most {MAX_PROBLEM_BYTES}")
    return key


def _check_problem(problem: Mapping[str, Any]) -> None:
    if not isinstance(problem, Mapping):
        raise TypeError(f"a problem is a mapping, not {problem!r}, a {type(problem).__name__}")
    for name, value in problem.items():
        # The daemon would take the client for a broken peer and close the connection.
        if not isinstance(name, str):
            raise TypeError(f"a problem's keys are strings, not {name!r}, a {type(name).__name__}")
        if isinstance(value, _COMPOUND):
            raise TypeError(f"a problem cannot hold {value!r}, a {type(value).__name__}: only numbers, bool and str")
