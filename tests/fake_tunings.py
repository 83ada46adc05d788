"""A stand-in for the daemon of a drop-in: it knows what a test says, and keeps what it is asked."""

from typing import Any

from ktuned.dropin import Best


class FakeTunings:
    """A daemon that knows what a test says, and keeps what it is asked."""

    def __init__(self) -> None:
        self.known: Best | None = None
        self.runs = True
        self.goes_on = False
        self.asked: list[tuple[Any, Any]] = []
        self.waited: list[Any] = []

    def best(self, request: Any) -> Best | None:
        """Return what the test says."""
        return self.known

    def is_open(self, request: Any) -> bool:
        """Return whether the test's tuning goes on."""
        return self.goes_on

    def has_daemon(self) -> bool:
        """Return whether the test has a daemon."""
        return self.runs

    def ask(self, request: Any, upgrade: Any) -> None:
        """Keep a request."""
        self.asked.append((request, upgrade))

    def wait(self, request: Any) -> Best | None:
        """Finish a tuning at once."""
        self.waited.append(request)
        return self.known
