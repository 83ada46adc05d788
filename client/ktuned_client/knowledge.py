"""The state of a client without its connections; the client for threads and the one for asyncio share it.

It decides for each question whether an answer is at hand, in this order: a kept answer that still holds, then exported
winners if the client has any, or else the daemon's table. If the daemon did not answer lately, the last known answer is
given without asking. Only then is a request sent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgpack

from ktuned_client.answers import (
    LOOKUP_DEADLINE_S,
    SETTLE_DEADLINE_S,
    SETTLE_SHARE,
    Backoff,
    DaemonError,
    Hit,
    complete_hit,
    make_hit,
    make_refused_hit,
    make_unavailable_hit,
)
from ktuned_client.memo import Memo, make_question_name, pack_problem
from ktuned_client.table import MAX_NAMES
from ktuned_client.table_answers import pack
from ktuned_client.wire import encode_lookup

if TYPE_CHECKING:
    from ktuned_client.winners import Winners


MAX_NAMES_BYTES: Final = 4 * 1024
"""Limit for the names in one question, with the directory for a short name, so that 250 questions fit one request."""


class Knowledge:
    """State of one client, sync or async: the questions to send, the answers, and the back-off.

    The arguments are the client's. If several projects have a kernel of the same short name, the one in whose directory
    the process works when this is made is meant.

    Raises:
        WinnersError: ``winners`` cannot be read.
    """

    def __init__(
        self,
        socket: str,
        pin: str | None,
        winners: str | os.PathLike[str] | None,
        *,
        strict: bool = False,
        deadline_s: float = LOOKUP_DEADLINE_S,
    ) -> None:
        self.memo = Memo(os.path.dirname(socket) or ".", pin=pin)
        self.backoff = Backoff()
        self._pin = pin
        self._strict = strict
        self._settle_s = SETTLE_SHARE * deadline_s if deadline_s >= SETTLE_DEADLINE_S else 0.0
        self._winners = None if winners is None else _read_winners(winners)
        self._directory = _find_working_directory()
        self._openings: dict[tuple[str, str | None, str | None], bytes] = {}

    def find_hit(
        self,
        kernel: str,
        problem: Mapping[str, Any],
        default: Mapping[str, Any] | None,
        device: str | None,
        objective: str | None = None,
    ) -> Hit | bytes:
        """Return the hit that needs no daemon, or else the problem's bytes for the request."""
        name = make_question_name(kernel, device, objective)
        key: bytes
        try:
            # Without a check: a problem that no daemon accepts is neither kept nor in the table.
            key = pack(problem)
        except (TypeError, ValueError, OverflowError):
            try:
                key = pack_problem(problem)
            except (TypeError, ValueError) as error:
                return self.answer_refused(kernel, problem, device, default, DaemonError("usage", str(error)))
            problem = msgpack.unpackb(key)
        try:
            hit, is_old = self.memo.recall(name, key, default)
            # Exported winners take the place of the table.
            if hit is None and self._winners is None:
                hit = self.memo.read_table(kernel, self._directory, device, objective, problem, key, is_old=is_old)
        except TypeError as error:
            return self.answer_refused(
                kernel, problem, device, default, DaemonError("usage", f"not a valid name: {error}")
            )
        if hit is not None:
            return hit
        try:
            # What was answered before can be sent. Checked here, so that of several questions only the faulty fails.
            if not is_old:
                pack_problem(problem)
                self.encode_opening(kernel, device, objective)
        except (TypeError, ValueError) as error:
            return self.answer_refused(kernel, problem, device, default, DaemonError("usage", str(error)))
        if self._winners is not None:
            try:
                hit = self._winners.lookup(kernel, msgpack.unpackb(key), device, objective)
            except (TypeError, ValueError) as error:
                # MessagePack carries types that JSON, and thus a file of winners, does not have.
                fault = DaemonError("usage", f"not a valid problem: {error}")
                return self.answer_refused(kernel, problem, device, default, fault)
            self.memo.remember_for_good(name, key, hit)
            return complete_hit(hit, default)
        if self.backoff.is_waiting:
            return self.answer_unavailable(kernel, problem, default, device, key, self.backoff.message, objective)
        return key

    def answer_refused(
        self,
        kernel: str,
        problem: Mapping[str, Any],
        device: str | None,
        default: Mapping[str, Any] | None,
        error: DaemonError,
    ) -> Hit:
        """Return the hit of a refused question; raises as :func:`ktuned_client.answers.make_refused_hit`."""
        return make_refused_hit(kernel, problem, device, default, error, strict=self._strict)

    def encode_opening(self, kernel: str, device: str | None, objective: str | None) -> bytes:
        """Return a lookup's encoded params up to the problem's bytes.

        Raises:
            TypeError: the name of the kernel, the device or the objective is not a string that can be sent.
        """
        known = self._openings.get((kernel, device, objective))
        if known is None:
            if len(self._openings) >= MAX_NAMES:
                self._openings.clear()
            try:
                known = encode_lookup(
                    kernel, device, self._pin, self._find_directory(kernel), objective, self._settle_s
                )
            except UnicodeEncodeError as error:
                raise TypeError(f"a name cannot be sent: {error}") from error
            if len(known) > MAX_NAMES_BYTES:
                raise TypeError(f"the names of a kernel, device and objective have more than {MAX_NAMES_BYTES} bytes")
            self._openings[kernel, device, objective] = known
        return known

    def add_directory(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a request's params, with the directory that decides which project's kernel a short name means."""
        place = self._find_directory(params["kernel"]) if "kernel" in params else None
        return params if place is None else {"directory": place, **params}

    def _find_directory(self, kernel: str) -> str | None:
        """Return the directory that decides which project a short name means; ``None`` for a full name."""
        return None if type(kernel) is not str or ":" in kernel else self._directory

    def learn_answer(
        self,
        kernel: str,
        default: Mapping[str, Any] | None,
        device: str | None,
        key: bytes,
        answer: Mapping[str, Any],
        objective: str | None = None,
    ) -> Hit:
        """Keep the daemon's answer, and return it as a hit.

        Raises:
            DaemonError: the daemon refused this question, as one of several.
            ValueError: it is not an answer.
        """
        self.backoff.record_success()
        hit = make_hit(answer)
        self.memo.remember(make_question_name(kernel, device, objective), key, hit)
        return complete_hit(hit, default)

    def answer_unavailable(
        self,
        kernel: str,
        problem: Mapping[str, Any],
        default: Mapping[str, Any] | None,
        device: str | None,
        key: bytes,
        reason: str,
        objective: str | None = None,
    ) -> Hit:
        """Return the hit of a question that no daemon answers: the last known answer, or the default.

        ``reason`` says why no daemon answers.
        """
        known = self.memo.find_last_answer(make_question_name(kernel, device, objective), key, default, reason)
        if known is None or known.status == "unavailable":
            problem = msgpack.unpackb(key)
            known = (
                self.memo.read_table(kernel, self._directory, device, objective, problem, key, unwatched=reason)
                or known
            )
        return make_unavailable_hit(kernel, problem, device, default, reason) if known is None else known


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
