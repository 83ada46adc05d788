"""A stand-in for a drop-in's connection to the daemon: it knows what a test says, and keeps what it is asked."""

from collections.abc import Callable
from typing import Any

from ktuned.dropin import Answer, CallKey


class FakeDaemonLink:
    """A daemon that knows what a test says.

    Attributes:
        known: what it answers; ``None`` if no daemon runs.
        ending: what it answers when a tuning that is waited for has ended.
        asked: the keys that were asked for, in their order.
        waited: the keys whose tunings were waited for.
        followed: the keys that are followed, and what takes later answers.
    """

    def __init__(self) -> None:
        self.known: Answer | None = Answer()
        self.ending: Answer | None = Answer()
        self.asked: list[CallKey] = []
        self.waited: list[CallKey] = []
        self.followed: list[tuple[CallKey, Callable[[Answer], bool]]] = []

    def ask_about(self, key: CallKey, **more: Any) -> Answer | None:
        """Return what the test says."""
        self.asked.append(key)
        return self.known

    def await_tuning(self, key: CallKey) -> Answer | None:
        """Return how the test's tuning ends, at once."""
        self.waited.append(key)
        return self.ending

    def prepare_library(self, tool: str, library: Any, variables: Any) -> None:
        """Import nothing."""

    def follow_key(self, key: CallKey, on_answer: Callable[[Answer], bool]) -> None:
        """Keep a key that is followed."""
        self.followed.append((key, on_answer))
