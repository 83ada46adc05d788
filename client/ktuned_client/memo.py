"""Kept answers of lookups, validated by the generation table without a system call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

import msgpack

from ktuned_client.answers import Hit, completed
from ktuned_client.generations import NOTHING, Table, slot_of

HOLDS_S: Final = 5.0
"""Time after which a question is asked again, whatever the table contains: the mapped file may have been removed, and
the next daemon have made another."""

FRESH_S: Final = 10.0
"""Time after which an answer that no daemon confirms is not called fresh any more: without one, no file is watched. It
leaves a busy daemon several seconds in which to answer."""

MAX_ANSWERS: Final = 10_000
"""Limit of kept answers; beyond it all are forgotten, and requested again."""

MAX_PROBLEM_BYTES: Final = 64 * 1024
"""The longest problem: a daemon closes the connection of a client that sends more than 1 MiB, and looks as if gone."""

LAST_WORD_S: Final = 1.0
"""Time for which the last known answer holds while no daemon answers, before the next attempt."""

Entry = tuple[int, int, float, Hit, float]
"""The kernel's slot, its generation at the time of the answer, the end of validity (``monotonic``), the answer, and the
time until which it may be fresh without a daemon."""

_UNWATCHED: Final = "no daemon watches its files now"

pack = msgpack.Packer(strict_types=True).pack
"""Makes a problem's key: its bytes on the wire, so that ``1``, ``1.0`` and ``True`` are distinct. All threads share it,
because with exact types it runs no Python code and thus holds the GIL throughout."""


class Memo:
    """Answers by the name of a question (see :func:`name_of`) and by the problem's bytes.

    A hot loop reads ``answers`` and ``words`` directly: an entry holds while its slot's word equals its generation,
    and its time has not passed. An answer without a config, which each caller completes by its own default, is found
    only by :meth:`recall`. ``holds_s`` and ``max_answers`` may be changed at any time.
    """

    __slots__ = ("_clock", "_count", "_table", "answers", "holds_s", "incomplete", "max_answers", "words")

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        *,
        holds_s: float = HOLDS_S,
        max_answers: int = MAX_ANSWERS,
    ) -> None:
        self.holds_s = holds_s
        self.max_answers = max_answers
        self.answers: dict[Any, dict[bytes, Entry]] = {}
        self.incomplete: dict[tuple[Any, bytes], Entry] = {}
        self.words = NOTHING
        self._table: Table | None = None
        self._count = 0
        self._clock = clock

    def greet(self, hello: Mapping[str, Any]) -> None:
        """Map the table that a daemon names in its ``hello``; without a readable one, no answers are kept."""
        path = hello.get("generations")
        try:
            if not isinstance(path, str):
                raise ValueError("the daemon has no table")
            found = os.lstat(path)
            if self._table is not None and self._table.identity == (found.st_dev, found.st_ino):
                return
            table: Table | None = Table(path)
        except (OSError, ValueError):
            table = None
        before, self._table = self._table, table
        # No two tables have a generation in common, so answers of the old table do not hold by this one.
        self.words = NOTHING if table is None else table.words
        if before is not None:
            before.close()

    def find(self, name: Any, problem: Mapping[str, Any]) -> Hit | bytes | None:
        """Return the answer that holds now, or the bytes of a problem whose answer has become old.

        ``None`` if there is no answer with a config: only then does the problem need a check.
        """
        try:
            key: bytes = pack(problem)
            slot, generation, until, hit, _ = self.answers[name][key]
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return hit if self.words[slot] == generation and self._clock() < until else key

    def remember(self, name: Any, problem: bytes, hit: Hit) -> None:
        """Keep an answer of the daemon whose table is mapped."""
        generation = hit.generation
        if self._table is not None and type(generation) is int:
            now = self._clock()
            self._keep(name, problem, (slot_of(hit.kernel), generation, now + self.holds_s, hit, now + FRESH_S))

    def remember_for_good(self, name: Any, problem: bytes, hit: Hit) -> None:
        """Keep an answer that no daemon can change."""
        self._keep(name, problem, (0, 0, float("inf"), hit, float("inf")))

    def recall(self, name: Any, problem: bytes, default: Mapping[str, Any] | None) -> Hit | None:
        """Return the answer that holds now, if there is one."""
        entry = self._entry(name, problem)
        # An answer that is too old is the usual case here: the others were found by the hot loop.
        if entry is None or self._clock() >= entry[2] or self.words[entry[0]] != entry[1]:
            return None
        return completed(entry[3], default)

    def last_word(self, name: Any, problem: bytes, default: Mapping[str, Any] | None, reason: str) -> Hit | None:
        """Return the last known answer while no daemon answers; ``unavailable`` unless the table still confirms it.

        A fresh one becomes stale :data:`FRESH_S` after a daemon gave it.
        """
        entry = self._entry(name, problem)
        if entry is None:
            return None
        slot, generation, _, hit, fresh_until = entry
        if self._table is None or self.words[slot] != generation:
            return completed(hit, default)._replace(
                status="unavailable", message=f"{reason}; this is the last known answer"
            )
        now = self._clock()
        until = now + LAST_WORD_S
        if hit.status == "fresh" and now >= fresh_until:
            hit = hit._replace(status="stale", message=f"{_UNWATCHED}: {reason}")
        elif hit.status == "fresh":
            until = min(until, fresh_until)
        self._keep(name, problem, (slot, generation, until, hit, fresh_until))
        return completed(hit, default)

    def close(self) -> None:
        """Unmap the table, and forget all answers."""
        self.words = NOTHING
        self.answers.clear()
        self.incomplete.clear()
        if self._table is not None:
            self._table.close()
            self._table = None

    def _entry(self, name: Any, problem: bytes) -> Entry | None:
        return self.answers.get(name, _NO_ANSWERS).get(problem) or self.incomplete.get((name, problem))

    def _keep(self, name: Any, problem: bytes, entry: Entry) -> None:
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


def name_of(kernel: str, device: str | None, objective: str | None) -> Any:
    """Return the name that answers are kept under: the kernel's as it was given, alone wherever that is all."""
    return kernel if device is None and objective is None else (kernel, device, objective)


_COMPOUND: Final = (list, tuple, dict, bytes, bytearray, type(None))
"""Types that MessagePack carries, and a problem does not hold."""

_PLAIN: Final = frozenset((int, str, float, bool))
_TEXTS: Final = frozenset((str,))
"""Types of values and names that need no second look: each microsecond here is a part of every lookup."""

_NO_ANSWERS: Final[dict[bytes, Entry]] = {}


def _number_of(value: Any) -> Any:
    """Return the Python number for a scalar of NumPy or torch in the problem of a lookup.

    Raises:
        TypeError: it is no such scalar.
    """
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        number = value.item()
        if isinstance(number, bool | int | float | str):
            return number
    raise TypeError(f"a problem cannot hold {value!r}, a {type(value).__name__}: only numbers, bool and str")


def key_of(problem: Mapping[str, Any]) -> bytes:
    """Return a problem's bytes, for any mapping and for subclasses of its numbers and texts too.

    Raises:
        TypeError: it is no mapping, or holds a value that MessagePack cannot carry, or a key that is no string.
        ValueError: it holds a number beyond 64 bits, or is too long.
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
            key = bytes(msgpack.Packer(default=_number_of).pack(dict(problem)))
    except OverflowError as error:
        raise ValueError(f"a number beyond 64 bits: {error}") from error
    if len(key) > MAX_PROBLEM_BYTES:
        raise ValueError(f"a problem of {len(key)} bytes: at most {MAX_PROBLEM_BYTES}")
    return key


def _check_problem(problem: Mapping[str, Any]) -> None:
    if not isinstance(problem, Mapping):
        raise TypeError(f"a problem is a mapping, not {problem!r}, a {type(problem).__name__}")
    for name, value in problem.items():
        # The daemon takes this for a broken peer, and closes the connection.
        if not isinstance(name, str):
            raise TypeError(f"a problem's keys are strings, not {name!r}, a {type(name).__name__}")
        if isinstance(value, _COMPOUND):
            raise TypeError(f"a problem cannot hold {value!r}, a {type(value).__name__}: only numbers, bool and str")
