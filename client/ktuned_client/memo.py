"""Answers that need no round trip: kept ones, for as long as the daemon's table confirms them, and the table's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

import msgpack

from ktuned_client.answers import Hit, completed
from ktuned_client.table import WATCHED_WORD, slot_of
from ktuned_client.table_answers import HOLDS_S, LAST_WORD_S, NO_WORDS, UNWATCHED, Entry, TableAnswers, pack

MAX_ANSWERS: Final = 10_000
"""Limit of kept answers; beyond it all are forgotten, and requested again."""

MAX_PROBLEM_BYTES: Final = 64 * 1024
"""The longest problem: a daemon closes the connection of a client that sends more than 1 MiB, and looks as if gone."""


class Memo:
    """Answers by the name of a question (see :func:`name_of`) and by the problem's bytes.

    A hot loop reads ``answers`` and ``words`` directly: an entry holds while its slot's word equals its generation,
    and its time has not passed. An answer without a config, which each caller completes by its own default, is found
    only by :meth:`recall`. ``directory`` has the daemon's files, and is ``None`` where they are not to be used: no
    answer of a daemon is kept then. With a ``pin`` answers are those that it holds.
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
        """Return the answer of the daemon's table, and keep it; ``None`` if the daemon has to be asked.

        The arguments are those of :meth:`TableAnswers.find`.
        """
        entry = self.table.find(kernel, directory, device, objective, problem, key, is_old=is_old, unwatched=unwatched)
        self.words = self.table.words
        if entry is None:
            return None
        self._keep(name_of(kernel, device, objective), key, entry)
        return entry[3]

    def remember(self, name: Any, problem: bytes, hit: Hit) -> None:
        """Keep an answer of the daemon whose table is mapped."""
        generation = hit.generation
        table = self.table.present()
        self.words = self.table.words
        if type(generation) is int and table is not None:
            self._keep(name, problem, (slot_of(hit.kernel), generation, self._clock() + HOLDS_S, hit))

    def remember_for_good(self, name: Any, problem: bytes, hit: Hit) -> None:
        """Keep an answer that no daemon can change."""
        self._keep(name, problem, (0, 0, float("inf"), hit))

    def recall(self, name: Any, problem: bytes, default: Mapping[str, Any] | None) -> tuple[Hit | None, bool]:
        """Return the answer that holds now, if there is one, and whether there was one at all."""
        entry = self._entry(name, problem)
        if entry is None or self._clock() >= entry[2] or self.words[entry[0]] != entry[1]:
            return None, entry is not None
        return completed(entry[3], default), True

    def last_word(self, name: Any, problem: bytes, default: Mapping[str, Any] | None, reason: str) -> Hit | None:
        """Return the last known answer while no daemon answers; ``unavailable`` unless the table still confirms it.

        A fresh one becomes stale when no daemon watches its files any more.
        """
        entry = self._entry(name, problem)
        if entry is None:
            return None
        slot, generation, _, hit = entry
        if self.words is NO_WORDS or self.words[slot] != generation:
            return completed(hit, default)._replace(
                status="unavailable", message=f"{reason}; this is the last known answer"
            )
        now = self._clock()
        until = now + LAST_WORD_S
        watched_until = self.words[WATCHED_WORD] / 1e9
        if hit.status == "fresh" and now >= watched_until:
            hit = hit._replace(status="stale", message=f"{UNWATCHED}: {reason}")
        elif hit.status == "fresh":
            until = min(until, watched_until)
        self._keep(name, problem, (slot, generation, until, hit))
        return completed(hit, default)

    def close(self) -> None:
        """Unmap the table, and forget all answers."""
        self.answers.clear()
        self.incomplete.clear()
        self.words = NO_WORDS
        self.table.close()

    def _entry(self, name: Any, problem: bytes) -> Entry | None:
        return self.answers.get(name, _NO_ANSWERS).get(problem) or self.incomplete.get((name, problem))

    def _keep(self, name: Any, problem: bytes, entry: Entry) -> None:
        kept = self.answers.get(name, _NO_ANSWERS)
        if problem not in kept and (name, problem) not in self.incomplete:
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
