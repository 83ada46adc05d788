"""Kills from outside: who is not to blame when somebody else ends a worker. No IO."""

from __future__ import annotations

from ktuned.fleet.failures import WorkerDied

KILLS_EXCUSED = 2
"""How often what a worker did is done again because somebody killed it, before its own code is taken for the cause."""


def is_outside_kill(error: BaseException | None) -> bool:
    """Tell whether something failed, however it was wrapped since, because its worker was killed from outside."""
    while error is not None and not isinstance(error, WorkerDied):
        error = error.__cause__
    return error is not None and error.is_outside_kill
