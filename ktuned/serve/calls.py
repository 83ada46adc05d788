"""The methods by which applications ask for the keys of their functions, whose calls they leave in the spool."""

from __future__ import annotations

from typing import Any

import msgspec

from ktuned.adoption import Adoptions
from ktuned.fleet import Applications
from ktuned.model import Scalar, UsageError
from ktuned.serve.connection import Connection
from ktuned.serve.method import Method

MAX_KEYS = 2_000
"""Keys in one question: a process follows a thousand at most."""


class CalledKey(msgspec.Struct, frozen=True):
    """A function by its identity, a tuning key, and a GPU's model."""

    identity: str
    problem: dict[str, Scalar]
    device: str | None = None


class CallsParams(msgspec.Struct, frozen=True):
    """``calls``: keys of functions. With ``waits`` their tunings go first while the connection lasts; ``beside`` is the
    process that asks, which uses the device.
    """

    keys: list[CalledKey]
    waits: bool = False
    beside: int | None = None
    pin: str | None = None


class LibraryParams(msgspec.Struct, frozen=True):
    """``prepare_library``: what a plugin's front end imports, for an interpreter with such variables."""

    tool: str
    python: str
    library: dict[str, Any]
    variables: dict[str, str] = msgspec.field(default_factory=dict)


class CallMethods:
    """Answers for keys of applications' functions."""

    def __init__(self, adoptions: Adoptions, applications: Applications) -> None:
        self._adoptions = adoptions
        self._applications = applications

    def list_methods(self) -> dict[str, Method[Any]]:
        """Return every method by its name on the wire."""
        return {
            "calls": Method(CallsParams, self.answer_calls),
            "prepare_library": Method(LibraryParams, self.prepare_library),
        }

    def prepare_library(self, wanted: LibraryParams, connection: Connection) -> dict[str, Any]:
        """Have a library imported whose functions an application is about to call."""
        self._adoptions.prepare_library(wanted.tool, wanted.python, wanted.variables, wanted.library)
        return {}

    async def answer_calls(self, wanted: CallsParams, connection: Connection) -> dict[str, Any]:
        """Return the answer for each key, in the order of the keys."""
        if len(wanted.keys) > MAX_KEYS:
            raise UsageError(f"{len(wanted.keys)} keys are asked for at once", hint=f"ask for {MAX_KEYS} at most")
        if wanted.beside is not None:
            self._applications.note(wanted.beside)
        waiter = connection if wanted.waits else None
        answers = [
            await self._adoptions.find_answer(key.identity, key.problem, key.device, waiter=waiter, pin=wanted.pin)
            for key in wanted.keys
        ]
        return {"answers": [msgspec.to_builtins(answer) for answer in answers]}
