"""Answers lookups from the daemon's table of winners, without a system call.

A lookup needs two entries. The kernel's entry says how its problems become keys (its *rules*, which are kept decoded),
and the winner's entry has the answer. A fresh answer holds as long as the daemon watches, which the header's time says.
Any other answer holds for a few seconds only, because the daemon counts the lookups that wait for a tuning. An entry of
an earlier generation is given only when no daemon answers: something has changed since, or nobody has asked the daemon
for its tuning yet.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import Any, Final, NamedTuple

import msgpack

from ktuned_client.answers import NO_METRICS, AnswerMap, Hit, Problem, Question, QuestionName
from ktuned_client.table import (
    MAX_NAMES,
    REPLACED_WORD,
    TABLE_NAME,
    USES_NAME,
    WATCHED_WORD,
    WORDS,
    Table,
    make_kernel_key,
    make_winner_prefix,
)

HOLDS_S: Final = 5.0
"""How long an answer that is not fresh holds before the question is looked up again, in the table and then on the
socket: the daemon counts the questions that wait for a tuning, and tunes the most frequent first."""

LAST_WORD_S: Final = 1.0
"""How long the last known answer holds while no daemon answers, before the next attempt."""

UNWATCHED: Final = "no daemon watches its files now"

Entry = tuple[int, int, float, Hit]
"""The kernel's slot, its generation at the time of the answer, the end of validity (``monotonic``), and the answer."""

NO_WORDS: Final = memoryview(bytes(8 * WORDS)).cast("Q")
"""The words of a table that never changes: without a table, and for answers that hold for good."""

pack = msgpack.Packer(strict_types=True).pack
"""Makes a problem's key: its bytes on the wire, in which ``1``, ``1.0`` and ``True`` differ. All threads may share it,
because with ``strict_types`` it runs no Python code and thus holds the GIL throughout."""


unpack = msgpack.unpackb


class _Rules(NamedTuple):
    """A kernel's decoded entry, for questions with one device and objective; valid until the generation changes."""

    slot: int
    generation: int
    name: str
    file: str | None
    objective: str
    model: str
    prefix: bytes
    keys: frozenset[tuple[str, ...]] | None
    specialize: list[str] | None
    bucket: Mapping[str, Any]


class TableAnswers:
    """Answers from the table of the daemon whose files are in ``directory``; without a directory there are none.

    ``place`` is the directory that decides which project a short name means. ``words`` are the words of the mapped
    table, or zeros if there is none.
    """

    __slots__ = ("_clock", "_place", "_rules", "_table", "_uses", "directory", "words")

    def __init__(
        self,
        directory: str | None,
        clock: Callable[[], float] = monotonic,
        *,
        place: str | None = None,
    ) -> None:
        self.directory = directory
        self._place = place
        self.words = NO_WORDS
        self._clock = clock
        self._table: Table | None = None
        self._uses: memoryview | None = None
        self._rules: dict[QuestionName, _Rules] = {}

    def find_entry(self, question: Question, key: bytes, *, is_old: bool = False, unwatched: str = "") -> Entry | None:
        """Return the table's answer to a question; ``None`` if it has none that holds now.

        Args:
            question: the question.
            key: the problem's bytes.
            is_old: whether the question was answered before. Then only a fresh answer is taken from the table; for any
                other the daemon is asked, because it counts the lookups that wait for a tuning.
            unwatched: why no daemon answers, if none does; a fresh answer may then become stale.
        """
        try:
            table, words, now = self._table, self.words, self._clock()
            # Without a table the words are zeros, so the watch counts as ended and a table is looked for.
            watched_until = words[WATCHED_WORD] * 1e-9
            if now >= watched_until or words[REPLACED_WORD]:
                table, words = self.find_table(), self.words
                watched_until = words[WATCHED_WORD] * 1e-9
            rules = self._rules.get(question[0])
            if table is None or rules is None or words[rules.slot] != rules.generation:
                rules = None if table is None else self._read_rules(table, question)
                if table is None or rules is None:
                    return None
                if words[rules.slot] != rules.generation and not unwatched:
                    return None
            _, _, name, file, objective, model, prefix, keys, specialize, bucket = rules
            asked = AnswerMap(question.problem)
            winner_key: bytes | None
            if specialize is None and not bucket:
                # The key is the whole problem. It needs no check, because the table has only problems that the kernel
                # takes.
                winner_key = key if len(asked) < 2 else _sort_problem(asked, key)
            else:
                winner_key = _make_winner_key(keys, specialize, bucket, asked)
            found = None if winner_key is None else table.find(prefix + winner_key)
            if found is None:
                return None
            slot, generation, payload = found
            (
                config,
                status,
                message,
                latency_us,
                artifact,
                decided,
                is_final,
                metrics,
                measured,
            ) = unpack(payload)
            present = words[slot]
            until = now + (LAST_WORD_S if unwatched else HOLDS_S)
            if generation != present:
                if not unwatched:
                    return None
                # The daemon has not confirmed the answer since something changed.
                status, generation = "stale", present
                message = message or f"{unwatched}; this is the last known answer"
            elif status == "fresh":
                if now < watched_until:
                    until = min(until, watched_until) if unwatched else watched_until
                elif unwatched:
                    status, message = "stale", f"{UNWATCHED}: {unwatched}"
                else:
                    return None
            elif is_old and not unwatched:
                return None
            if measured is not None and pack(dict(sorted(measured.items()))) == pack(dict(sorted(asked.items()))):
                measured = None
            # Equal to Hit(…), but without the cost of a call to its Python constructor: every first lookup comes here.
            fields = (
                name,
                asked,
                model,
                status,
                AnswerMap(config),
                latency_us,
                artifact,
                decided,
                generation,
                message,
                is_final,
                AnswerMap(metrics) if metrics else NO_METRICS,
                file,
                measured,
                objective,
            )
            if self._uses is not None:
                self._uses[slot] = words[WATCHED_WORD]
            return slot, generation, until, tuple.__new__(Hit, fields)
        # Another thread has unmapped the table, or a daemon of another version has written it.
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.exceptions.UnpackException):
            return None

    def _read_rules(self, table: Table, question: Question) -> _Rules | None:
        # A full name, or a short name that only one kernel has; else, the meaning of the name in this directory.
        entry = table.find(make_kernel_key(question.kernel, None))
        if entry is None and self._place is not None and ":" not in question.kernel:
            entry = table.find(make_kernel_key(question.kernel, self._place))
        if entry is None:
            return None
        slot, generation, payload = entry
        name, file, own_objective, models, keys, specialize, bucket = unpack(payload)
        device = question.device
        model = models.get(device or "", device if device in models.values() else None)
        if model is None:
            return None
        wanted = question.objective or own_objective
        rules = _Rules(
            slot,
            generation,
            name,
            file,
            wanted,
            model,
            make_winner_prefix(name, model, wanted),
            None if keys is None else frozenset(map(tuple, keys)),
            specialize,
            bucket,
        )
        if len(self._rules) >= MAX_NAMES:
            self._rules.clear()
        self._rules[question.name] = rules
        return rules

    def find_table(self) -> Table | None:
        """Return the daemon's current table, or the one mapped last if there is no new one; ``None`` if none exists."""
        table = self._table
        if table is not None and not table.is_replaced and self._clock() < table.words[WATCHED_WORD] / 1e9:
            return table
        if self.directory is None:
            return None
        path = os.path.join(self.directory, TABLE_NAME)
        try:
            status = os.lstat(path)
            if table is None or table.identity != (status.st_dev, status.st_ino):
                table = Table(path)
                self._use_table(table)
        except (OSError, ValueError):
            return table
        return table

    def close(self) -> None:
        """Unmap the table; the next question maps it again."""
        self._rules.clear()
        self._use_table(None)

    def _use_table(self, table: Table | None) -> None:
        before, self._table = self._table, table
        # A new daemon never reuses a generation of the old one, so answers of the old table do not hold in this table.
        self.words = NO_WORDS if table is None else table.words
        self._uses = None if table is None or self.directory is None else _map_uses(self.directory)
        if before is not None:
            # If another thread is still reading the old table, its last reader unmaps it.
            with suppress(BufferError):
                before.close()


def _make_winner_key(
    keys: frozenset[tuple[str, ...]] | None,
    specialize: list[str] | None,
    bucket: Mapping[str, Any],
    asked: Problem,
) -> bytes | None:
    """Return the bytes of the key problem that a kernel's rules give; ``None`` if the daemon may refuse the problem."""
    names = _sort_names(tuple(asked))
    if keys is not None and names not in keys:
        return None
    if any(type(value) is float and not math.isfinite(value) for value in asked.values()):
        return None
    bucketed_problem = {name: apply_bucket_rule(bucket.get(name), asked[name]) for name in names}
    key_names = names if specialize is None else _sort_names(tuple(specialize))
    return bytes(pack({name: bucketed_problem[name] for name in key_names}))


def _sort_problem(asked: Problem, problem: bytes) -> bytes:
    """Return a problem's bytes with its keys in order."""
    names = tuple(asked)
    ordered = _sort_names(names)
    return problem if names == ordered else bytes(pack({name: asked[name] for name in ordered}))


@lru_cache(MAX_NAMES)
def _sort_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names))


def apply_bucket_rule(rule: Any, value: Any) -> Any:
    """Return the value that represents the bucket of ``value``, by the rules of ``ktuned.model.apply_bucket_rules``."""
    if type(value) is not int:
        return value
    if rule == "pow2":
        return 1 << (value - 1).bit_length() if value > 1 else value
    if type(rule) is int and rule > 0:
        return -(-value // rule) * rule
    if isinstance(rule, list) and rule:
        return next((end for end in rule if value <= end), rule[-1])
    return value


def _map_uses(directory: str) -> memoryview | None:
    """Map the file in which clients mark the kernels that they look up; the daemon checks those kernels more often."""
    try:
        descriptor = os.open(os.path.join(directory, USES_NAME), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or status.st_size != 8 * WORDS:
                return None
            return memoryview(mmap.mmap(descriptor, 8 * WORDS)).cast("Q")
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
