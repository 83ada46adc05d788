"""The state of a client without its connections; the client for threads and the one for asyncio share it.

For each question it looks for an answer in this order: a kept answer that still holds; then the exported winners if the
client has any, or else the daemon's table; then, if the daemon did not answer lately, the last known answer. If there
is none of these, a request is sent.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import msgpack

from ktuned_client.answers import (
    LOOKUP_DEADLINE_S,
    SETTLE_DEADLINE_S,
    SETTLE_SHARE,
    Backoff,
    DaemonError,
    Hit,
    Question,
    QuestionName,
    make_hit,
)
from ktuned_client.memo import Memo, pack_problem
from ktuned_client.table import MAX_NAMES
from ktuned_client.wire import Unsendable, encode_lookup_opening

if TYPE_CHECKING:
    from ktuned_client.messages import Answer, RefusedLookup
    from ktuned_client.winners import Winners


MAX_NAMES_BYTES: Final = 4 * 1024
"""Limit for the names in one question (including the directory of a short name), so that 250 questions fit a request.
"""


class Knowledge:
    """State of one client, sync or async: the questions to send, the answers, and the back-off.

    The arguments are the client's. If several projects have a kernel of the same short name, the process's working
    directory at the time of construction decides which of them is meant.

    Raises:
        WinnersError: ``winners`` cannot be read.
    """

    def __init__(
        self,
        socket: str,
        winners: str | os.PathLike[str] | None,
        *,
        strict: bool = False,
        deadline_s: float = LOOKUP_DEADLINE_S,
    ) -> None:
        self._directory = _find_working_directory()
        self.memo = Memo(os.path.dirname(socket) or ".", place=self._directory)
        self.backoff = Backoff()
        self._strict = strict
        self._settle_s = SETTLE_SHARE * deadline_s if deadline_s >= SETTLE_DEADLINE_S else 0.0
        self._winners = None if winners is None else _read_winners(winners)
        self._openings: dict[QuestionName, bytes] = {}

    def find_hit(self, question: Question, key: bytes | None) -> Hit | bytes:
        """Return the hit if no request is needed, or else the problem's bytes for the request.

        ``key`` holds the problem's bytes, which need no check here: a problem that no daemon accepts is neither kept
        nor in the table. It is ``None`` if the problem has values of types that MessagePack does not have.
        """
        if key is None:
            try:
                key = pack_problem(question.problem)
            except (TypeError, ValueError) as error:
                return self._refuse_usage(question, str(error))
            question = question._replace(problem=msgpack.unpackb(key))
        try:
            # Exported winners take the place of the table.
            hit, is_old = self.memo.find_hit(question, key, reads_table=self._winners is None)
        except TypeError as error:
            return self._refuse_usage(question, f"not a valid name: {error}")
        if hit is not None:
            return hit
        try:
            # A question that was answered before is valid. Any other is checked here, so that a faulty question does
            # not make the other questions of its request fail.
            if not is_old:
                pack_problem(question.problem)
                self.encode_opening(question)
        except (TypeError, ValueError) as error:
            return self._refuse_usage(question, str(error))
        if self._winners is not None:
            try:
                hit = self._winners.lookup(question.kernel, msgpack.unpackb(key), question.device, question.objective)
            except (TypeError, ValueError) as error:
                # MessagePack carries types that JSON, and thus a file of winners, does not have.
                return self._refuse_usage(question, f"not a valid problem: {error}")
            self.memo.keep_lasting_answer(question, key, hit)
            return question.complete_hit(hit)
        if self.backoff.is_waiting:
            return self.answer_unavailable(question, key, self.backoff.message)
        return key

    def encode_opening(self, question: Question) -> bytes:
        """Return a lookup's encoded params up to the problem's bytes.

        Raises:
            TypeError: the name of the kernel, the device or the objective is not a string that can be sent.
        """
        known = self._openings.get(question.name)
        if known is None:
            if len(self._openings) >= MAX_NAMES:
                self._openings.clear()
            try:
                known = encode_lookup_opening(
                    question.kernel,
                    question.device,
                    self._find_directory(question.kernel),
                    question.objective,
                    self._settle_s,
                )
            except Unsendable as error:
                raise TypeError(f"a name cannot be sent: {error}") from error
            if len(known) > MAX_NAMES_BYTES:
                raise TypeError(f"the names of a kernel, device and objective have more than {MAX_NAMES_BYTES} bytes")
            self._openings[question.name] = known
        return known

    def add_directory(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a request's params, with the directory that decides which project's kernel a short name means.

        Without a short name the params are returned unchanged.
        """
        place = self._find_directory(params["kernel"]) if "kernel" in params else None
        return params if place is None else {"directory": place, **params}

    def learn_answer(self, question: Question, key: bytes, answer: Answer | RefusedLookup) -> Hit:
        """Keep the daemon's answer to a question, and return it as a hit; for a refusal the hit has the reason."""
        self.backoff.record_success()
        try:
            hit = make_hit(answer)
        except DaemonError as error:
            return self.answer_refused(question, error)
        except ValueError as error:
            return question.answer_unavailable(str(error))
        self.memo.keep_answer(question, key, hit)
        return question.complete_hit(hit)

    def answer_refused(self, question: Question, error: DaemonError) -> Hit:
        """Return the hit of a refused question; raises as :meth:`Question.answer_refused`."""
        return question.answer_refused(error, strict=self._strict)

    def answer_unavailable(self, question: Question, key: bytes, reason: str) -> Hit:
        """Return the hit of a question that no daemon answers: the last known answer, or the default.

        ``reason`` says why no daemon answers.
        """
        return self.memo.find_last_answer(question, key, reason) or question.answer_unavailable(reason)

    def _refuse_usage(self, question: Question, message: str) -> Hit:
        return self.answer_refused(question, DaemonError("usage", message))

    def _find_directory(self, kernel: str) -> str | None:
        """Return the directory that decides which project a short name means; ``None`` for a full name."""
        return None if type(kernel) is not str or ":" in kernel else self._directory


def _find_working_directory() -> str | None:
    try:
        directory = os.getcwd()
        directory.encode()
    except (OSError, UnicodeError):
        return None
    return directory


def _read_winners(path: str | os.PathLike[str]) -> Winners:
    # Imported here, because few programs have such files.
    from ktuned_client.winners import Winners

    return Winners.read(path)
