"""Answers that need no round trip: kept answers, and answers from the daemon's table.

A kept answer holds until its kernel's generation in the table changes, or until its time ends. So the daemon can end it
without a message. While no daemon answers, the last known answer is given; its status is ``unavailable`` unless the
table still confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

import msgpack

from ktuned_client.answers import Hit, Problem, Question, QuestionName
from ktuned_client.table import ERA_SHIFT, WATCHED_WORD, find_slot
from ktuned_client.table_answers import HOLDS_S, LAST_WORD_S, NO_WORDS, UNWATCHED, Entry, TableAnswers, pack

MAX_ANSWERS: Final = 10_000
"""Most kept answers. When there are more, all of them are forgotten and requested again."""

MAX_PROBLEM_BYTES: Final = 64 * 1024
"""The longest problem. A daemon closes the connection if a client sends more than 1 MiB, and the client would then
report that it has lost the daemon."""


NEVER: Final = -1
"""The generation of an entry without a config. No word of the table equals it, so that hot loops skip the entry."""


class Memo:
    """Answers by the name of a question (:attr:`Question.name`) and by the problem's bytes.

    A hot loop reads ``answers`` and ``words`` directly: an entry holds while its slot's word equals its generation and
    its time has not passed. An answer without a config never holds there, because each caller must complete it with its
    own default. ``directory`` has the daemon's files; with ``None`` they are not used, and no answer of a daemon is
    kept. ``place`` has the same meaning as for :class:`TableAnswers`.
    """

    __slots__ = ("_clock", "_count", "answers", "max_answers", "table", "words")

    def __init__(
        self,
        directory: str | None,
        clock: Callable[[], float] = monotonic,
        *,
        place: str | None = None,
        max_answers: int = MAX_ANSWERS,
    ) -> None:
        self.max_answers = max_answers
        self.answers: dict[QuestionName, dict[bytes, Entry]] = {}
        self.table = TableAnswers(directory, clock, place=place)
        self.words = NO_WORDS
        self._count = 0
        self._clock = clock

    def find_hit(self, question: Question, key: bytes, *, reads_table: bool = True) -> tuple[Hit | None, bool]:
        """Return the answer that holds now, from the kept ones or from the daemon's table.

        Args:
            question: the question.
            key: its problem's bytes.
            reads_table: whether to look into the daemon's table.

        Returns:
            the hit, or ``None`` if the daemon must be asked; and whether an answer to the question was known before.
        """
        entry = self._find_entry(question, key)
        if entry is not None:
            slot, generation, until, hit = entry
            if generation == NEVER:
                generation = hit.generation or 0
            if self._clock() < until and self.words[slot] == generation:
                return question.complete_hit(hit), True
        if not reads_table:
            return None, entry is not None
        found = self.table.find_entry(question, key, is_old=entry is not None)
        self.words = self.table.words
        if found is None:
            return None, entry is not None
        self._keep_entry(question, key, found)
        return found[3], True

    def keep_answer(self, question: Question, key: bytes, hit: Hit) -> None:
        """Keep an answer of the daemon, unless it has no generation or no table is mapped (nothing could end it)."""
        generation = hit.generation
        table = self.table.find_table()
        self.words = self.table.words
        if type(generation) is int and table is not None:
            self._keep_entry(question, key, (find_slot(hit.kernel), generation, self._clock() + HOLDS_S, hit))

    def keep_lasting_answer(self, question: Question, key: bytes, hit: Hit) -> None:
        """Keep an answer that no daemon can change."""
        self._keep_entry(question, key, (0, 0, float("inf"), hit))

    def find_last_answer(self, question: Question, key: bytes, reason: str) -> Hit | None:
        """Return the last known answer while no daemon answers: a kept answer that the table confirms, or the table's.

        Without these, a kept answer that the table no longer confirms is given as stale. If it was revoked, or if there
        is no table, its status is ``unavailable``.
        """
        entry = self._find_entry(question, key)
        if entry is not None and self.words is not NO_WORDS and self.words[entry[0]] == entry[3].generation:
            return self._renew_entry(question, key, entry, reason)
        found = self.table.find_entry(question._replace(problem=msgpack.unpackb(key)), key, unwatched=reason)
        self.words = self.table.words
        if found is None:
            return None if entry is None else self._give_unconfirmed(question, key, entry, reason)
        self._keep_entry(question, key, found)
        return found[3]

    def _renew_entry(self, question: Question, key: bytes, entry: Entry, reason: str) -> Hit:
        """Return a kept answer that the table confirms; a fresh one becomes stale once no daemon watches its files."""
        slot, _, _, hit = entry
        now = self._clock()
        until = now + LAST_WORD_S
        watched_until = self.words[WATCHED_WORD] / 1e9
        if hit.status == "fresh" and now >= watched_until:
            hit = hit._replace(status="stale", message=f"{UNWATCHED}: {reason}")
        elif hit.status == "fresh":
            until = min(until, watched_until)
        self._keep_entry(question, key, (slot, hit.generation or 0, until, hit))
        return question.complete_hit(hit)

    def _give_unconfirmed(self, question: Question, key: bytes, entry: Entry, reason: str) -> Hit:
        slot, _, _, hit = entry
        present = self.words[slot]
        hit = hit._replace(message=f"{reason}; this is the last known answer")
        if self.words is NO_WORDS or (present ^ (hit.generation or 0)) >> ERA_SHIFT:
            return question.complete_hit(hit)._replace(status="unavailable")
        if hit.status == "fresh":
            hit = hit._replace(status="stale")
        self._keep_entry(question, key, (slot, present, self._clock() + LAST_WORD_S, hit))
        return question.complete_hit(hit)

    def close(self) -> None:
        """Unmap the table, and forget all answers."""
        self.answers.clear()
        self.words = NO_WORDS
        self.table.close()

    def _find_entry(self, question: Question, key: bytes) -> Entry | None:
        return self.answers.get(question.name, _NO_ANSWERS).get(key)

    def _keep_entry(self, question: Question, key: bytes, entry: Entry) -> None:
        name = question.name
        entries = self.answers.get(name)
        if entries is None or key not in entries:
            self._count += 1
            if self._count > self.max_answers:
                self._count = 1
                self.answers.clear()
                entries = None
        if entry[3].config is None:
            entry = entry[0], NEVER, entry[2], entry[3]
        if entries is None:
            self.answers[name] = {key: entry}
        else:
            entries[key] = entry


_COMPOUND: Final = (list, tuple, dict, bytes, bytearray, type(None))
"""Types that MessagePack carries but a problem must not hold."""

_PLAIN: Final = frozenset((int, str, float, bool))
_TEXTS: Final = frozenset((str,))
"""Types of values and of names that are accepted without a closer check, because each lookup pays for this check."""

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


def pack_problem(problem: Problem) -> bytes:
    """Return a problem's bytes; the problem may be any mapping, with subclasses of numbers and strings.

    Raises:
        TypeError: the problem is not a mapping, or has a value that MessagePack cannot carry or a key that is not a
            string.
        ValueError: the problem has a number beyond 64 bits, or is too long.
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


def _check_problem(problem: Problem) -> None:
    if not isinstance(problem, Mapping):
        raise TypeError(f"a problem is a mapping, not {problem!r}, a {type(problem).__name__}")
    for name, value in problem.items():
        # Checked here, because the daemon would treat such a message as a broken peer's and close the connection.
        if not isinstance(name, str):
            raise TypeError(f"a problem's keys are strings, not {name!r}, a {type(name).__name__}")
        if isinstance(value, _COMPOUND):
            raise TypeError(f"a problem cannot hold {value!r}, a {type(value).__name__}: only numbers, bool and str")
