"""A worker's reply without a pipe."""

from __future__ import annotations

from typing import Any

from ktuned.model import Phase
from ktuned.worker.reply import Reply


class ReplyCollector(Reply):
    """A reply that keeps its phases and items."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.items: list[Any] = []

    def begin_phase(self, phase: Phase) -> None:
        self.phases.append(phase)

    def send_item(self, value: Any, *, hold_s: float = 0.0) -> None:
        self.items.append(value)
