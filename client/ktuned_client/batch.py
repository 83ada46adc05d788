"""Several lookups in one call: hits that need no daemon, requests for the others, and their answers. No IO.

The two clients send the requests, each in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ktuned_client.answers import DaemonError, DaemonUnavailable, Hit, complete_hit, make_hit, make_unavailable_hit
from ktuned_client.memo import make_question_name
from ktuned_client.wire import MAX_LOOKUPS, MAX_REQUEST_BYTES, encode_lookups

if TYPE_CHECKING:
    from ktuned_client.knowledge import Knowledge

Question = tuple[str, Mapping[str, Any]] | tuple[str, Mapping[str, Any], Mapping[str, Any] | None]
"""A kernel, a problem, and the caller's default if it has one."""

_ROOM: Final = MAX_REQUEST_BYTES - 64
"""Bytes for the questions of one request; the rest is for the request's own bytes."""


class Batch:
    """Lookups in order. Send each of :meth:`encode_requests`, and give its outcome to one of the ``take_`` methods."""

    def __init__(
        self, knowledge: Knowledge, questions: Iterable[Question], device: str | None, objective: str | None
    ) -> None:
        self._knowledge = knowledge
        self._device = device
        self._objective = objective
        self._asked = [(question[0], question[1], question[2] if len(question) > 2 else None) for question in questions]
        # An open question has its problem's bytes in place of a hit.
        self._found: list[Hit | bytes] = [
            knowledge.find_hit(kernel, problem, default, device, objective) for kernel, problem, default in self._asked
        ]

    @property
    def hits(self) -> list[Hit]:
        """All hits in order, after the outcomes of all requests were taken."""
        return [found for found in self._found if type(found) is Hit]

    def encode_requests(self) -> Iterator[tuple[Sequence[int], bytes]]:
        """Yield the requests, each from its method on, with the places of its questions."""
        places: list[int] = []
        questions: list[bytes] = []
        room = _ROOM
        for place, found in enumerate(self._found):
            if type(found) is not bytes:
                continue
            question = self._knowledge.encode_opening(self._asked[place][0], self._device, self._objective) + found
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
        knowledge, device, objective = self._knowledge, self._device, self._objective
        knowledge.backoff.record_success()
        remember = knowledge.memo.remember
        for place, answer in zip(places, answers, strict=True):
            kernel, problem, default = self._asked[place]
            key: Any = self._found[place]
            try:
                hit = make_hit(answer)
                remember(make_question_name(kernel, device, objective), key, hit)
                self._found[place] = complete_hit(hit, default)
            except DaemonError as error:
                self._found[place] = knowledge.answer_refused(kernel, problem, device, default, error)
            except ValueError as error:
                self._found[place] = make_unavailable_hit(kernel, problem, device, default, str(error))

    def take_absence(self, places: Sequence[int], error: DaemonUnavailable) -> None:
        """Take that no daemon answered a request: its questions get their last known answers."""
        self._knowledge.backoff.record_failure(str(error))
        for place in places:
            kernel, problem, default = self._asked[place]
            key: Any = self._found[place]
            self._found[place] = self._knowledge.answer_unavailable(
                kernel, problem, default, self._device, key, str(error), self._objective
            )

    def take_refusal(self, places: Sequence[int], reason: str) -> None:
        """Take that a request was refused as a whole: its questions get the callers' defaults."""
        for place in places:
            kernel, problem, default = self._asked[place]
            self._found[place] = make_unavailable_hit(kernel, problem, self._device, default, reason)
