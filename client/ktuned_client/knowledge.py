"""Answers that a client has without its daemon: kept ones that still hold, exported winners, the last known."""

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
    completed,
    hit_from,
    refused,
    unavailable,
)
from ktuned_client.memo import Memo, key_of, name_of
from ktuned_client.table import MAX_NAMES
from ktuned_client.table_answers import pack
from ktuned_client.wire import encode_lookup

if TYPE_CHECKING:
    from ktuned_client.winners import Winners


MAX_NAMES_BYTES: Final = 4 * 1024
"""Limit of the names in one question, with the directory that a short one is for: 250 questions are one request."""


class Knowledge:
    """State of one client, sync or async: the questions to send, the answers, and the back-off.

    ``socket``, ``pin``, ``winners`` (paths of exported winners), ``strict`` and ``deadline_s`` are the client's
    arguments. Of several projects with a kernel of one short name, that is meant in which the process works when this
    is made.

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
        self._directory = _working_directory()
        self._openings: dict[tuple[str, str | None, str | None], bytes] = {}

    def find(
        self,
        kernel: str,
        problem: Mapping[str, Any],
        default: Mapping[str, Any] | None,
        device: str | None,
        objective: str | None = None,
    ) -> Hit | bytes:
        """Return the hit that needs no daemon, or else the problem's bytes for the request."""
        name = name_of(kernel, device, objective)
        key: bytes
        try:
            # Without a check: what no daemon takes is neither kept nor in the table.
            key = pack(problem)
        except (TypeError, ValueError, OverflowError):
            try:
                key = key_of(problem)
            except (TypeError, ValueError) as error:
                return self.refuse(kernel, problem, device, default, DaemonError("usage", str(error)))
            problem = msgpack.unpackb(key)
        try:
            hit, is_old = self.memo.recall(name, key, default)
            # Files of winners come before the table.
            if hit is None and self._winners is None:
                hit = self.memo.read_table(kernel, self._directory, device, objective, problem, key, is_old=is_old)
        except TypeError as error:
            return self.refuse(kernel, problem, device, default, DaemonError("usage", f"not a valid name: {error}"))
        if hit is not None:
            return hit
        try:
            # Names and problems that were answered before can be sent. Among several questions one is refused alone.
            if not is_old:
                key_of(problem)
                self.opening(kernel, device, objective)
        except (TypeError, ValueError) as error:
            return self.refuse(kernel, problem, device, default, DaemonError("usage", str(error)))
        if self._winners is not None:
            try:
                hit = self._winners.lookup(kernel, msgpack.unpackb(key), device, objective)
            except (TypeError, ValueError) as error:
                # MessagePack carries more types than JSON, and thus than a file of winners.
                fault = DaemonError("usage", f"not a valid problem: {error}")
                return self.refuse(kernel, problem, device, default, fault)
            self.memo.remember_for_good(name, key, hit)
            return completed(hit, default)
        if self.backoff.is_waiting:
            return self.last_word(kernel, problem, default, device, key, self.backoff.message, objective)
        return key

    def refuse(
        self,
        kernel: str,
        problem: Mapping[str, Any],
        device: str | None,
        default: Mapping[str, Any] | None,
        error: DaemonError,
    ) -> Hit:
        """Return the hit of a refused question; raises as :func:`ktuned_client.answers.refused`."""
        return refused(kernel, problem, device, default, error, strict=self._strict)

    def opening(self, kernel: str, device: str | None, objective: str | None) -> bytes:
        """Return a lookup's encoded params up to the problem's bytes.

        Raises:
            TypeError: the name of the kernel, the device or the objective is not a string that can be sent.
        """
        known = self._openings.get((kernel, device, objective))
        if known is None:
            if len(self._openings) >= MAX_NAMES:
                self._openings.clear()
            try:
                known = encode_lookup(kernel, device, self._pin, self._place_of(kernel), objective, self._settle_s)
            except UnicodeEncodeError as error:
                raise TypeError(f"a name cannot be sent: {error}") from error
            if len(known) > MAX_NAMES_BYTES:
                raise TypeError(f"the names of a kernel, device and objective have more than {MAX_NAMES_BYTES} bytes")
            self._openings[kernel, device, objective] = known
        return known

    def placed(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a request's params with the directory that says which project a short name of a kernel means."""
        place = self._place_of(params["kernel"]) if "kernel" in params else None
        return params if place is None else {"directory": place, **params}

    def _place_of(self, kernel: str) -> str | None:
        """Return the directory that says which project a short name means; a full name needs none."""
        return None if type(kernel) is not str or ":" in kernel else self._directory

    def learn(
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
            DaemonError: it refuses this question, one of several.
            ValueError: it is not an answer.
        """
        self.backoff.succeeded()
        hit = hit_from(answer)
        self.memo.remember(name_of(kernel, device, objective), key, hit)
        return completed(hit, default)

    def last_word(
        self,
        kernel: str,
        problem: Mapping[str, Any],
        default: Mapping[str, Any] | None,
        device: str | None,
        key: bytes,
        reason: str,
        objective: str | None = None,
    ) -> Hit:
        """Return the hit of a question that no daemon answers, for ``reason``: the last known, or the default."""
        known = self.memo.last_word(name_of(kernel, device, objective), key, default, reason)
        if known is None or known.status == "unavailable":
            problem = msgpack.unpackb(key)
            known = (
                self.memo.read_table(kernel, self._directory, device, objective, problem, key, unwatched=reason)
                or known
            )
        return unavailable(kernel, problem, device, default, reason) if known is None else known


def _working_directory() -> str | None:
    try:
        directory = os.getcwd()
        directory.encode()
    except (OSError, UnicodeError):
        return None
    return directory


def _read_winners(path: str | os.PathLike[str]) -> Winners:
    # Few programs have such files, and the import takes time.
    from ktuned_client.winners import Winners

    return Winners.read(path)
