"""Failures of a request to a worker: it dies, takes too long, or reports an error. No IO.

Whose fault it is decides what the job does next:

====================  ===============================================================================================
the config's          :class:`WorkerDied`, :class:`DeadlineExpired`, :class:`RequestFailed` in a trial: its outcome
the problem's         :class:`CannotOpen`, :class:`ReferenceUnusable`: no trial can be measured
the device's          :class:`LaneSick`, :class:`LaneCrowded`: the job waits, or continues on another device
nobody's              :class:`HostLost`, :class:`JournalFailed`, a kill from outside: the work is done again
====================  ===============================================================================================

A kill from outside may still be the config's fault, for example if Linux kills the worker because memory ran out. So it
is excused only :data:`KILLS_EXCUSED` times.

Something that fails repeatedly is tried again only after growing pauses (:class:`Health`).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from time import monotonic

import msgspec

from ktuned.ipc import frames, replies
from ktuned.model import FrozenStruct, Phase, WorkerError


class WorkerDied(WorkerError):
    """The process ended during a request.

    Args:
        returncode: Its exit code, or the negative number of the signal that killed it.
        phase: The phase that it was in.
        output: The last output of its code.
        stopped: Why ktuned killed it, if ktuned did.
        fault: Its access to memory outside its own, if it reported one.
    """

    code = "worker_died"

    def __init__(self, returncode: int, phase: Phase, output: Output, stopped: str = "", fault: str = "") -> None:
        self.returncode = returncode
        self.phase = phase
        self.output = output
        self.stopped = stopped
        self.fault = fault
        if returncode == frames.OUT_OF_MEMORY:
            stopped = "out of memory: the worker's allocation failed"
        if stopped:
            super().__init__(f"{stopped} during {phase}")
            return
        # After a signal the last line belongs to a stack dump, and says nothing by itself.
        words = output.quote_last_line() if returncode >= 0 else ""
        died = f"the worker {describe_exit(returncode)} during {phase}{words}"
        super().__init__(f"{fault}; {died}" if fault else died)

    @property
    def signal(self) -> str | None:
        """The name of the signal that killed it, if one did."""
        return name_signal(-self.returncode) if self.returncode < 0 else None

    @property
    def is_outside_kill(self) -> bool:
        """True if a SIGKILL ended it that ktuned did not send: from a user, or from Linux because memory ran out."""
        return self.returncode == -signal.SIGKILL and not self.stopped


class HostLost(WorkerDied):
    """A worker's host was lost, is unavailable, or is used by others. This says nothing about the work."""

    code = "host_lost"

    def __init__(self, host: str, reason: str, phase: Phase) -> None:
        super().__init__(-signal.SIGKILL, phase, Output())
        self.host = host
        self.message = f"{host} was lost during {phase}: {reason}" if phase is not Phase.SPAWN else f"{host}: {reason}"
        self.args = (self.message,)


class JournalFailed(WorkerDied):
    """A worker's journal cannot be written, so its deadlines cannot be watched. The worker is killed, though its work
    is not to blame.
    """

    code = "unwatched"

    def __init__(self, reason: str, phase: Phase) -> None:
        super().__init__(-signal.SIGKILL, phase, Output())
        self.message = f"the journal of a worker cannot be written: {reason}"
        self.args = (self.message,)


class DeadlineExpired(WorkerError):
    """A phase took longer than its deadline; the worker's whole group was killed."""

    code = "deadline"

    def __init__(self, phase: Phase, deadline_s: float, output: Output) -> None:
        self.phase = phase
        self.deadline_s = deadline_s
        self.output = output
        super().__init__(f"{phase} timed out after {deadline_s:.3g} s{output.quote_last_line()}")


class RequestFailed(WorkerError):
    """The worker could not carry out a request and said why; it stays alive."""

    def __init__(self, failure: replies.Failure, phase: Phase, output: Output) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.code = failure.code
        self.failure = failure
        self.errno = failure.errno
        self.phase = phase
        self.output = output


class CannotOpen(WorkerError):
    """A problem's inputs or its reference cannot be made: none of its trials can be measured."""

    code = "cannot_open"


class LaneSick(WorkerError):
    """The device does not work now; a job that has another device uses that one instead."""

    code = "lane_sick"


class LaneCrowded(LaneSick):
    """An application leaves too little memory for this problem now; smaller problems may still fit."""


class ReferenceUnusable(WorkerError):
    """The artifact that should compute a problem's expected outputs is damaged, or the device cannot run it."""

    code = "reference_unusable"

    def __init__(self, message: str, key: str, *, is_damaged: bool) -> None:
        super().__init__(message)
        self.key = key
        self.is_damaged = is_damaged


class Output(FrozenStruct):
    """The last lines that a worker's code printed during one request."""

    stdout: str = ""
    stderr: str = ""

    def quote_last_line(self) -> str:
        """Return the last line of stderr as the end of a sentence; empty if there is none."""
        lines = self.stderr.strip().splitlines()
        return f": {lines[-1][:200]}" if lines else ""


def name_signal(number: int) -> str:
    """Return ``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(returncode: int) -> str:
    """Return how a process ended: ``was killed by SIGSEGV`` or ``exited with code 3``."""
    return f"was killed by {name_signal(-returncode)}" if returncode < 0 else f"exited with code {returncode}"


KILLS_EXCUSED = 2
"""How often work is repeated after a kill from outside, before its own code counts as the cause."""


def is_outside_kill(error: BaseException | None) -> bool:
    """Return whether an error, or one in its chain of causes, is a worker's kill from outside."""
    while error is not None and not isinstance(error, WorkerDied):
        error = error.__cause__
    return error is not None and error.is_outside_kill


FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 60.0
"""Pauses before retries, in seconds: the first is ``FIRST_PAUSE_S``, each further one is twice as long, and none is
longer than ``LAST_PAUSE_S``."""


class Health(msgspec.Struct, eq=False):
    """Counts failures in a row. Each failure beyond the first ``tolerated`` ones begins a pause before the next try."""

    tolerated: int = 0
    first_pause_s: float = FIRST_PAUSE_S
    clock: Callable[[], float] = monotonic
    failures: int = 0
    _retry_at: float = 0.0
    reason: str = ""

    @property
    def is_sick(self) -> bool:
        """True if there were more failures in a row than are tolerated, and no success since."""
        return self.failures > self.tolerated

    @property
    def pause_s(self) -> float:
        """Seconds until the next try is allowed; 0 if it is allowed now."""
        return max(0.0, self._retry_at - self.clock()) if self.is_sick else 0.0

    def record_failure(self, reason: str) -> None:
        """Count a failure, keep its reason, and begin the pause after it."""
        self.failures += 1
        self.reason = reason
        if self.is_sick:
            doublings = min(self.failures - self.tolerated - 1, 10)
            self._retry_at = self.clock() + min(LAST_PAUSE_S, self.first_pause_s * 2**doublings)

    def record_success(self) -> None:
        """Forget all failures."""
        self.failures = 0
        self.reason = ""
