"""Several lookups in one call: hits that need no daemon, requests for the others, and their answers. No IO.

The two clients send the requests, each in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ktuned_client.answers import Config, DaemonUnavailable, Hit, Problem, Question
from ktuned_client.table_answers import pack
from ktuned_client.wire import MAX_LOOKUPS, MAX_REQUEST_BYTES, encode_lookups

if TYPE_CHECKING:
    from ktuned_client.knowledge import Knowledge

Asked = tuple[str, Problem] | tuple[str, Problem, Config | None]
"""A kernel, a problem, and the caller's default if there is one."""

_ROOM: Final = MAX_REQUEST_BYTES - 64
"""Bytes for the questions of one request; the remaining 64 are for its head."""


class Batch:
    """Several lookups, in order.

    Send each request of :meth:`encode_requests`, and pass its outcome to one of the ``take_`` methods.
    """

    def __init__(
        self, knowledge: Knowledge, questions: Iterable[Asked], device: str | None, objective: str | None
    ) -> None:
        self._knowledge = knowledge
        self._questions = [
            Question(
                asked[0] if device is None and objective is None else (asked[0], device, objective),
                asked[0],
                asked[1],
                asked[2] if len(asked) > 2 else None,
                device,
                objective,
            )
            for asked in questions
        ]
        # A question that must be requested has its problem's bytes here in place of a hit.
        self._found: list[Hit | bytes] = [
            knowledge.find_hit(question, _pack_or_none(question.problem)) for question in self._questions
        ]

    @property
    def hits(self) -> list[Hit]:
        """All hits in the order of the questions; complete once the outcomes of all requests were taken."""
        return [found for found in self._found if type(found) is Hit]

    def encode_requests(self) -> Iterator[tuple[Sequence[int], bytes]]:
        """Yield the places of the questions of each request, and the request's bytes from its method on."""
        places: list[int] = []
        questions: list[bytes] = []
        room = _ROOM
        for place, found in enumerate(self._found):
            if type(found) is not bytes:
                continue
            question = self._knowledge.encode_opening(self._questions[place]) + found
            if len(question) > room or len(places) == MAX_LOOKUPS:
                yield places, encode_lookups(questions)
                places, questions, room = [], [], _ROOM
            places.append(place)
            questions.append(question)
            room -= len(question)
        if places:
            yield places, encode_lookups(questions)

    def take_answers(self, places: Sequence[int], result: Any) -> None:
        """Take the result of a request."""
        try:
            answers = result["answers"]
            if len(answers) != len(places):
                raise ValueError(f"{len(answers)} answers to {len(places)} lookups")
        except (TypeError, KeyError, ValueError) as error:
            self.take_refusal(places, f"the daemon's answer is not one to several lookups: {error!r}")
            return
        for place, answer in zip(places, answers, strict=True):
            key: Any = self._found[place]
            self._found[place] = self._knowledge.learn_answer(self._questions[place], key, answer)

    def take_absence(self, places: Sequence[int], error: DaemonUnavailable) -> None:
        """Note that no daemon answered a request: its questions get their last known answers."""
        self._knowledge.backoff.record_failure(str(error))
        for place in places:
            key: Any = self._found[place]
            self._found[place] = self._knowledge.answer_unavailable(self._questions[place], key, str(error))

    def take_refusal(self, places: Sequence[int], reason: str) -> None:
        """Note that a request was refused as a whole: its questions get the callers' defaults."""
        for place in places:
            self._found[place] = self._questions[place].answer_unavailable(reason)


def _pack_or_none(problem: Problem) -> bytes | None:
    try:
        return pack(problem)  # type: ignore[no-any-return]
    except (TypeError, ValueError, OverflowError):
        return None
