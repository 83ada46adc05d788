"""Back-off for something that fails repeatedly, with the reason of the last failure. No IO."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 60.0
"""Pauses before retries, in seconds: the first is ``FIRST_PAUSE_S``, each further one is twice as long, and none is
longer than ``LAST_PAUSE_S``."""


class Health:
    """Counts failures in a row. Each failure beyond the first ``tolerated`` ones begins a pause before the next try."""

    def __init__(
        self, *, tolerated: int = 0, first_pause_s: float = FIRST_PAUSE_S, clock: Callable[[], float] = monotonic
    ) -> None:
        self._tolerated = tolerated
        self._first_pause_s = first_pause_s
        self._clock = clock
        self._failures = 0
        self._retry_at = 0.0
        self.reason = ""

    @property
    def is_sick(self) -> bool:
        """True if there were more failures in a row than are tolerated, and no success since."""
        return self._failures > self._tolerated

    @property
    def failures(self) -> int:
        """The number of failures since the last success."""
        return self._failures

    @property
    def pause_s(self) -> float:
        """Seconds until the next try is allowed; 0 if it is allowed now."""
        return max(0.0, self._retry_at - self._clock()) if self.is_sick else 0.0

    def record_failure(self, reason: str) -> None:
        """Count a failure, keep its reason, and begin the pause after it."""
        self._failures += 1
        self.reason = reason
        if self.is_sick:
            doublings = min(self._failures - self._tolerated - 1, 10)
            self._retry_at = self._clock() + min(LAST_PAUSE_S, self._first_pause_s * 2**doublings)

    def record_success(self) -> None:
        """Forget all failures."""
        self._failures = 0
        self.reason = ""
