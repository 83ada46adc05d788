"""Encoded answers, by the bytes of their requests. No IO.

Most lookups have exactly the same bytes as an earlier one, except for the id at their front. The same holds for the
lookups of many processes of one application when they start. To decode, compute and encode an answer takes 100 µs; this
takes 1 µs.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import msgspec

HOLDS_S = 1.0
"""Lifetime of an answer, after which the repeated lookups are counted: the most frequent ones are tuned first."""

MAX_RESPONSES = 4_096
MAX_QUESTION_BYTES = 16 * 1024
MAX_ANSWER_BYTES = 96 * 1024
"""Enough for 250 lookups in one request: a question takes some 50 bytes, an answer 300."""

MAX_BYTES = 8 * 1024 * 1024
"""Limit of all questions and answers together."""

_LOOKUP = b"\xa6lookup\x91"
_LOOKUP_MANY = b"\xablookup_many\x91\x81\xa7lookups"
_REQUEST_OPENS = b"\x94\x00"
_RESPONSE_OPENS = b"\x94\x01"
_ID_ENDS = {**dict.fromkeys(range(0x80), 3), 0xCC: 4, 0xCD: 5, 0xCE: 7}
"""Where the id ends, which begins at byte 2, by the value of that byte (MessagePack's unsigned numbers up to 32 bits).
"""


class _KeptResponse(msgspec.Struct):
    until: float
    answer: bytes
    lookups: int
    given: int = 0


class Responses:
    """Finds the bytes of an answer by the bytes of its request.

    Args:
        read_version: Returns another number whenever any answer may have changed.

    Attributes:
        taken: How many requests were answered from here.
        lookups: How many lookups these requests had.
        repeats: If the last call of :meth:`find_response` found an answer that was too old, how often that answer had
            been returned before; otherwise 0.
    """

    def __init__(
        self,
        read_version: Callable[[], int],
        *,
        max_questions: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._max_questions = max_questions
        self._max_bytes = max_bytes
        self._clock = clock
        self._read_version = read_version
        self._version = read_version()
        self.taken = 0
        self.lookups = 0
        self.repeats = 0
        self._bytes = 0
        self._answers: dict[bytes, _KeptResponse] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def find_response(self, request: bytes) -> bytes | None:
        """Return the response to the bytes of a ``request``, if the same request was answered a moment ago."""
        end = _ID_ENDS.get(request[2]) if len(request) > 2 else None
        if end is None:
            return None
        if self._version != self._read_version():
            self._forget_responses()
        kept = self._answers.get(request[end:])
        self.repeats = 0
        if kept is None or not request.startswith(_REQUEST_OPENS):
            return None
        if self._clock() >= kept.until:
            self.repeats, kept.given = kept.given, 0
            return None
        self.taken += 1
        self.lookups += kept.lookups
        kept.given += 1
        return _RESPONSE_OPENS + request[2:end] + kept.answer

    def keep_response(self, request: bytes, response: bytes) -> None:
        """Keep the response to the bytes of a ``request``, if it answers lookups and is not an error."""
        if len(request) > MAX_QUESTION_BYTES or len(response) > MAX_ANSWER_BYTES:
            return
        question = request[_ID_ENDS.get(request[2], len(request)) :]
        answer = response[_ID_ENDS[response[2]] :]
        lookups = _count_lookups(question)
        if not lookups or not answer.startswith(b"\xc0"):
            return
        size = len(question) + len(answer)
        before = self._answers.pop(question, None)
        if before is not None:
            self._bytes -= len(question) + len(before.answer)
        if len(self._answers) >= self._max_questions or self._bytes + size > self._max_bytes:
            self._forget_responses()
        self._answers[question] = _KeptResponse(self._clock() + HOLDS_S, answer, lookups)
        self._bytes += size

    def _forget_responses(self) -> None:
        self._version = self._read_version()
        self._answers.clear()
        self._bytes = 0


def _count_lookups(question: bytes) -> int:
    """Return how many lookups a request has, given its bytes from the method on; 0 if it is another method."""
    if question.startswith(_LOOKUP):
        return 1
    if not question.startswith(_LOOKUP_MANY):
        return 0
    count = question[len(_LOOKUP_MANY) :]
    if 0x90 <= count[0] <= 0x9F:
        return count[0] & 0x0F
    return int.from_bytes(count[1:3], "big") if count[0] == 0xDC else 0
