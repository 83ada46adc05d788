"""Several lookups of one call: the hits that need no daemon, requests for the others, and their answers. No IO.

Both clients send the requests, each in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ktuned_client.answers import DaemonError, DaemonUnavailable, Hit, completed, hit_from, unavailable
from ktuned_client.memo import name_of
from ktuned_client.wire import MAX_LOOKUPS, MAX_REQUEST_BYTES, encode_lookups

if TYPE_CHECKING:
    from ktuned_client.knowledge import Knowledge

Question = tuple[str, Mapping[str, Any]] | tuple[str, Mapping[str, Any], Mapping[str, Any] | None]
"""A kernel, a problem, and the caller's default if it has one."""

_ROOM: Final = MAX_REQUEST_BYTES - 64
"""Bytes for the questions of one request, beside its own few."""


class Batch:
    """Lookups in their order; the answers to each of ``parts`` are taken, or why there is none."""

    def __init__(
        self, knowledge: Knowledge, questions: Iterable[Question], device: str | None, objective: str | None
    ) -> None:
        self._knowledge = knowledge
        self._device = device
        self._objective = objective
        self._asked = [(question[0], question[1], question[2] if len(question) > 2 else None) for question in questions]
        # An open one's place has its problem's bytes.
        self._found: list[Hit | bytes] = [
            knowledge.find(kernel, problem, default, device, objective) for kernel, problem, default in self._asked
        ]

    @property
    def hits(self) -> list[Hit]:
        """All hits, once what was asked is answered."""
        return [found for found in self._found if type(found) is Hit]

    def requests(self) -> Iterator[tuple[Sequence[int], bytes]]:
        """Yield each request that is needed, from its method on, with the places of its questions."""
        places: list[int] = []
        questions: list[bytes] = []
        room = _ROOM
        for place, found in enumerate(self._found):
            if type(found) is not bytes:
                continue
            question = self._knowledge.opening(self._asked[place][0], self._device, self._objective) + found
            if len(question) > room or len(places) == MAX_LOOKUPS:
                yield places, encode_lookups(questions)
                places, questions, room = [], [], _ROOM
            places.append(place)
            questions.append(question)
            room -= len(question)
        if places:
            yield places, encode_lookups(questions)

    def take(self, places: Sequence[int], result: Any) -> None:
        """Take in the result of a request."""
        try:
            answers = result["answers"]
            if len(answers) != len(places):
                raise ValueError(f"{len(answers)} answers to {len(places)} lookups")
        except (TypeError, KeyError, ValueError) as error:
            self.refused(places, f"the daemon's answer is not one to several lookups: {error!r}")
            return
        knowledge, device, objective = self._knowledge, self._device, self._objective
        knowledge.backoff.succeeded()
        remember = knowledge.memo.remember
        for place, answer in zip(places, answers, strict=True):
            kernel, problem, default = self._asked[place]
            key: Any = self._found[place]
            try:
                hit = hit_from(answer)
                remember(name_of(kernel, device, objective), key, hit)
                self._found[place] = completed(hit, default)
            except DaemonError as error:
                self._found[place] = knowledge.refuse(kernel, problem, device, default, error)
            except ValueError as error:
                self._found[place] = unavailable(kernel, problem, device, default, str(error))

    def unanswered(self, places: Sequence[int], error: DaemonUnavailable) -> None:
        """Give the last known answers to a request that no daemon answers."""
        self._knowledge.backoff.failed(str(error))
        for place in places:
            kernel, problem, default = self._asked[place]
            key: Any = self._found[place]
            self._found[place] = self._knowledge.last_word(
                kernel, problem, default, self._device, key, str(error), self._objective
            )

    def refused(self, places: Sequence[int], reason: str) -> None:
        """Give the defaults to a request that was refused as a whole."""
        for place in places:
            kernel, problem, default = self._asked[place]
            self._found[place] = unavailable(kernel, problem, self._device, default, reason)
