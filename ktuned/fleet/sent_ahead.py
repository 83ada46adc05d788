"""Requests that are sent to a node's worker before they are waited for, and the answers that come meanwhile.

The node begins such a request as soon as the trials before it are over. Its answers are kept until they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from ktuned.fleet.failures import Output
from ktuned.ipc import replies, requests
from ktuned.model import KtunedError


class Answers:
    """Answers of a worker to one request; where it was sent ahead, items are kept until it is asked for them."""

    def __init__(self, on_item: Callable[[Any], None] | None = None, *, holds: bool = False) -> None:
        self.said: list[Output] = []
        self._on_item = on_item
        self._held: list[tuple[Any, Output]] | None = [] if holds else None

    def take(self, value: Any, output: Output) -> None:
        """Take an item, and what was printed for it."""
        if self._held is not None:
            self._held.append((value, output))
            return
        self.said.append(output)
        if self._on_item is not None:
            self._on_item(value)

    def pass_on(self, on_item: Callable[[Any], None] | None) -> None:
        """Pass items on from now on, those that are held first."""
        held, self._held, self._on_item = self._held or [], None, on_item
        # What was printed with the reply comes after what was printed with them.
        said, self.said = self.said, []
        for value, output in held:
            self.take(value, output)
        self.said += said

    def output(self) -> Output:
        """Return what was printed since this was last asked."""
        said, self.said = self.said, []
        return Output("".join(one.stdout for one in said), "".join(one.stderr for one in said))


class SentAhead:
    """A request that was sent ahead: its answers, and when it has ``ended`` its reply, or the error."""

    def __init__(self, request: requests.Trial) -> None:
        self.request = request
        self.answers = Answers(holds=True)
        self.ended = anyio.Event()
        self.reply: replies.Measurement | None = None
        self.error: KtunedError | None = None
