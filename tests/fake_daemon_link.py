"""A stand-in for a drop-in's connection to the daemon: it gives the test's answers and records requests."""

from collections.abc import Callable
from typing import Any

from ktuned.dropin import Answer, CallKey


class FakeDaemonLink:
    """A link whose answers a test sets.

    Attributes:
        answer: the answer to every request; ``None`` if no daemon runs.
        final_answer: the answer after a tuning that a call waited for.
        asked_keys: the requested keys, in order.
        waited_keys: the keys whose tunings a call waited for.
        followed_keys: the followed keys, each with the callback for later answers.
    """

    def __init__(self) -> None:
        self.answer: Answer | None = Answer()
        self.final_answer: Answer | None = Answer()
        self.asked_keys: list[CallKey] = []
        self.waited_keys: list[CallKey] = []
        self.followed_keys: list[tuple[CallKey, Callable[[Answer], bool]]] = []

    def ask_about(self, key: CallKey, **more: Any) -> Answer | None:
        """Record the key and return ``answer``."""
        self.asked_keys.append(key)
        return self.answer

    def await_tuning(self, key: CallKey) -> Answer | None:
        """Record the key and return ``final_answer`` at once."""
        self.waited_keys.append(key)
        return self.final_answer

    def prepare_workers(self, tool: str, variables: Any, library: Any = None) -> None:
        """Do nothing."""

    def follow_key(self, key: CallKey, on_answer: Callable[[Answer], bool]) -> None:
        """Record the key and its callback."""
        self.followed_keys.append((key, on_answer))
