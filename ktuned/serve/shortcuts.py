"""Answers by the bytes of their questions: what was asked in the same bytes a moment ago is not worked out again.

Most lookups are a repetition, to the byte, of one before; only the id differs, which stands in front. No IO.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Final

HOLDS_S: Final = 1.0
"""How long an answer is given again without being worked out: a new winner ends it at once, an artifact that was
removed or a backend that was installed after this long."""

MAX_SHORTCUTS: Final = 4_096
MAX_QUESTION_BYTES: Final = 1024
MAX_ANSWER_BYTES: Final = 4096
"""Together these hold the memory below 20 MiB; questions are some 50 bytes, and answers 200."""

_LOOKUP: Final = b"\xa6lookup\x91"
_REQUEST_OPENS: Final = b"\x94\x00"
_RESPONSE_OPENS: Final = b"\x94\x01"
_ID_ENDS: Final = {**dict.fromkeys(range(0x80), 3), 0xCC: 4, 0xCD: 5, 0xCE: 7}
"""Where the id ends that begins at byte 2, by that byte (MessagePack's forms of an unsigned number up to 32 bits)."""


@dataclass(slots=True)
class _Kept:
    until: float
    answer: bytes
    given: int = 0


class Shortcuts:
    """From a lookup's bytes to its answer's; ``taken`` counts the answers that were found here.

    ``repeats`` says how often the answer was given that :meth:`find` has just found too old, for whoever makes it anew.
    """

    def __init__(self) -> None:
        self.taken = 0
        self.repeats = 0
        self._answers: dict[bytes, _Kept] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, data: bytes) -> bytes | None:
        """Return the response to ``data``, if that is one request that was answered a moment ago."""
        end = _ID_ENDS.get(data[2]) if len(data) > 2 else None
        if end is None:
            return None
        kept = self._answers.get(data[end:])
        self.repeats = 0
        if kept is None or not data.startswith(_REQUEST_OPENS):
            return None
        if monotonic() >= kept.until:
            self.repeats, kept.given = kept.given, 0
            return None
        self.taken += 1
        kept.given += 1
        return _RESPONSE_OPENS + data[2:end] + kept.answer

    def keep(self, data: bytes, response: bytes) -> None:
        """Keep the response to ``data``, one whole request, if it is a lookup's answer and not an error."""
        if len(data) > MAX_QUESTION_BYTES or len(response) > MAX_ANSWER_BYTES:
            return
        question = data[_ID_ENDS.get(data[2], len(data)) :]
        answer = response[_ID_ENDS[response[2]] :]
        if not question.startswith(_LOOKUP) or not answer.startswith(b"\xc0"):
            return
        if len(self._answers) >= MAX_SHORTCUTS:
            self._answers.clear()
        self._answers[question] = _Kept(monotonic() + HOLDS_S, answer)

    def clear(self) -> None:
        """Forget all: something changed."""
        self._answers.clear()
