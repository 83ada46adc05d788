"""What one connection may spend: candidates, and seconds of measuring."""

from __future__ import annotations

import math


class RefusedCall(Exception):
    """A tool call that this server refuses: ``code``, ``message`` and ``hint`` as in an error of the daemon."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


class Budget:
    """The budget of one connection.

    The last call may overspend it: ktuned does not stop a config that is being measured, and a job measures its fastest
    configs once more at its end.

    Args:
        candidates: most configs to try; None for no limit.
        lane_s: most seconds for which the device may be held to measure them; None for no limit.

    Attributes:
        candidates, lane_s: what is left; infinite without a limit.
    """

    def __init__(self, candidates: int | None = None, lane_s: float | None = None) -> None:
        self.candidates = math.inf if candidates is None else candidates
        self.lane_s = math.inf if lane_s is None else lane_s

    @property
    def is_overspent(self) -> bool:
        """True if more than a limit was spent."""
        return self.candidates < 0 or self.lane_s < 0

    def require_candidates(self, candidates: int = 1) -> None:
        """Raise :class:`RefusedCall` if fewer candidates than this are left, or no seconds."""
        if self.candidates < candidates:
            left = f"{max(0, self.candidates)} candidates are left, and this call needs {candidates}"
        elif self.lane_s <= 0:
            left = "no seconds of measuring are left"
        else:
            return
        raise RefusedCall(
            "budget",
            f"the budget of this connection is spent: {left}",
            "the tools that only read still answer; `ktuned mcp --help` shows how its user sets the budget",
        )

    def limit_trials(self, asked: int | None) -> int | None:
        """Return how many configs a job may try at most; None for no limit."""
        limit = min(self.candidates, math.inf if asked is None else asked)
        return None if limit == math.inf else int(limit)

    def subtract_cost(self, candidates: int, lane_s: float) -> None:
        """Subtract what a call has cost."""
        self.candidates -= candidates
        self.lane_s -= lane_s

    def describe_rest(self) -> dict[str, float | None]:
        """Return what is left: not below 0, and None without a limit."""
        left = {"candidates_left": self.candidates, "lane_s_left": self.lane_s}
        return {name: None if value == math.inf else max(0, round(value, 3)) for name, value in left.items()}
