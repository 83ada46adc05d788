"""The methods by which applications ask about keys of their functions' calls, which they write into the spool."""

from __future__ import annotations

from typing import Any

from ktuned.adoption import Adoptions
from ktuned.fleet import Applications
from ktuned.model import FrozenStruct, UsageError
from ktuned.protocol import CALLS, PREPARE_WORKERS, CallsAnswer, CallsParams, EmptyAnswer, PrepareParams
from ktuned.serve.method import Handler, Peer

MAX_KEYS = 2_000
"""Keys in one request: a process follows at most a thousand."""


class CallMethods(FrozenStruct):
    """Answers requests about the keys of applications' functions."""

    adoptions: Adoptions
    applications: Applications

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return every method with its handler."""
        return [
            Handler(CALLS, self.handle_calls),
            Handler(PREPARE_WORKERS, self.handle_prepare),
        ]

    def handle_prepare(self, params: PrepareParams, peer: Peer) -> EmptyAnswer:
        """Start workers in the background, because an application is about to call functions to be tuned."""
        self.adoptions.prepare_workers(params.tool, params.python, params.variables, params.library)
        return EmptyAnswer()

    def handle_calls(self, params: CallsParams, peer: Peer) -> CallsAnswer:
        """Return the answer for each key, in the order of the keys."""
        if len(params.keys) > MAX_KEYS:
            raise UsageError(f"{len(params.keys)} keys are asked for at once", hint=f"ask for {MAX_KEYS} at most")
        if params.beside is not None:
            self.applications.add_process(params.beside)
        # A program may ask over several connections, and counts as one client.
        waiter = (peer if params.beside is None else params.beside) if params.waits else None
        return CallsAnswer([self.adoptions.find_answer(key, waiter=waiter) for key in params.keys])
