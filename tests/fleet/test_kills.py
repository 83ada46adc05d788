"""Whether a worker was killed from outside."""

import signal

import pytest

from ktuned.fleet.failures import CannotOpen, Output, WorkerDied, is_outside_kill
from ktuned.model.errors import WorkerError
from ktuned.model.keys import Phase


@pytest.mark.parametrize(
    ("returncode", "stopped", "is_outside"),
    [
        (-signal.SIGKILL, "", True),
        (-signal.SIGKILL, "out of memory", False),
        (-signal.SIGSEGV, "", False),
        (-signal.SIGTERM, "", False),
        (1, "", False),
        (0, "", False),
    ],
)
def test_only_a_sigkill_that_is_not_ours_comes_from_outside(returncode: int, stopped: str, is_outside: bool) -> None:
    """A config can crash, exit or be stopped for its memory, but it does not send itself SIGKILL."""
    died = WorkerDied(returncode, Phase.TIMING, Output(), stopped)
    assert is_outside_kill(died) is is_outside


def test_a_wrapped_kill_is_recognised() -> None:
    """The cause counts, however many errors wrap it."""
    wrapped = CannotOpen("a lane cannot be opened")
    wrapped.__cause__ = WorkerError("cannot run a worker")
    wrapped.__cause__.__cause__ = WorkerDied(-signal.SIGKILL, Phase.SPAWN, Output())
    assert is_outside_kill(wrapped)
    assert not is_outside_kill(CannotOpen("the reference raised"))
    assert not is_outside_kill(None)
