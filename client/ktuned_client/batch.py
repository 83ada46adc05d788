"""Several lookups in one call: hits that need no daemon, requests for the others, and their answers. No IO.

The two clients send the requests, each in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ktuned_client.answers import Config, DaemonUnavailable, Hit, Problem, Question
from ktuned_client.table_answers import pack
from ktuned_client.wire import MAX_LOOKUPS, MAX_REQUEST_BYTES, encode_lookups

if TYPE_CHECKING:
    from ktuned_client.knowledge import Knowledge
    from ktuned_client.messages import LookupManyAnswer

Asked = tuple[str, Problem] | tuple[str, Problem, Config | None]
"""A kernel, a problem, and the caller's default if there is one."""

_ROOM: Final = MAX_REQUEST_BYTES - 64
"""Bytes for the questions of one request; the remaining 64 are for its head."""


class Batch:
    """Several lookups, in order.

    Send each request of :meth:`encode_requests`, and pass its outcome to :meth:`learn_answers`,
    :meth:`answer_unavailable` or :meth:`answer_refused`.
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
        self._hits: dict[int, Hit] = {}
        self._requested: dict[int, bytes] = {}  # the problem's bytes, by the question's place
        for place, question in enumerate(self._questions):
            found = knowledge.find_hit(question, _pack_or_none(question.problem))
            if isinstance(found, bytes):
                self._requested[place] = found
            else:
                self._hits[place] = found

    @property
    def hits(self) -> list[Hit]:
        """All hits in the order of the questions; complete once the outcomes of all requests were taken."""
        return [self._hits[place] for place in sorted(self._hits)]

    def encode_requests(self) -> Iterator[tuple[Sequence[int], bytes]]:
        """Yield the places of the questions of each request, and the request's bytes from its method on."""
        places: list[int] = []
        questions: list[bytes] = []
        room = _ROOM
        for place, key in self._requested.items():
            question = self._knowledge.encode_opening(self._questions[place]) + key
            if len(question) > room or len(places) == MAX_LOOKUPS:
                yield places, encode_lookups(questions)
                places, questions, room = [], [], _ROOM
            places.append(place)
            questions.append(question)
            room -= len(question)
        if places:
            yield places, encode_lookups(questions)

    def learn_answers(self, places: Sequence[int], result: LookupManyAnswer) -> None:
        """Keep the answers to a request."""
        try:
            answers = result["answers"]
            if len(answers) != len(places):
                raise ValueError(f"{len(answers)} answers to {len(places)} lookups")
        except (TypeError, KeyError, ValueError) as error:
            self.answer_refused(places, f"the daemon's reply is not the answer to several lookups: {error!r}")
            return
        for place, answer in zip(places, answers, strict=True):
            question, key = self._questions[place], self._requested[place]
            self._hits[place] = self._knowledge.learn_answer(question, key, answer)

    def answer_unavailable(self, places: Sequence[int], error: DaemonUnavailable) -> None:
        """Give the questions of a request that no daemon answered their last known answers."""
        self._knowledge.backoff.record_failure(str(error))
        for place in places:
            question, key = self._questions[place], self._requested[place]
            self._hits[place] = self._knowledge.answer_unavailable(question, key, str(error))

    def answer_refused(self, places: Sequence[int], reason: str) -> None:
        """Give the questions of a request that was refused as a whole the callers' defaults."""
        for place in places:
            self._hits[place] = self._questions[place].answer_unavailable(reason)


def _pack_or_none(problem: Problem) -> bytes | None:
    try:
        return pack(problem)  # type: ignore[no-any-return]
    except (TypeError, ValueError, OverflowError):
        return None
