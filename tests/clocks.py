"""A clock that a test moves."""

from dataclasses import dataclass


@dataclass
class SettableClock:
    """Returns ``now``, in seconds, until a test changes it."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
