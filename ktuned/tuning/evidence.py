"""Evidence: what a config's failure says about the config, and for how long. The only IO is a look at a mount.

A config fails for want of something that ktuned or the machine grants: time, memory, or a mount from which code may be
executed. Its trial keeps what was *granted* then, and the outcome stands until more of it is granted. A passing lack of
the machine (a killed process, a full disk, a library that is not installed) cannot be compared: such a trial stays
untried, with its reason, and the next job tries the config again, at most :data:`MOST_TRIES` jobs in all. If it fails
in all of them, the config is taken for the cause.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec.structs import replace

from ktuned.model import FAILURES, RETRIED_BY_NEXT_JOB, FrozenStruct, Outcome, Phase, Role, TrialResult
from ktuned.protocol import Trial

MOST_TRIES = 3
"""Jobs in which a config may end without evidence; in the last one it is taken for the cause."""

_KILLED = re.compile(
    r"Killed signal terminated program|unable to execute command: Killed|died due to signal 9|was killed by SIGKILL"
)
"""How GCC, Clang, nvcc and ktuned's own code say that a program below them got SIGKILL."""

_LACKED = re.compile(
    r"No space left on device|Disk quota exceeded|Input/output error|Stale file handle|Too many open files"
    r"|Resource temporarily unavailable|cannot open shared object file"
)
"""How programs say that the machine lacked something: ``strerror``, and the loader for a missing library."""

_NO_MEMORY = re.compile(
    r"out of memory: the worker|cc1plus: out of memory|virtual memory exhausted|Cannot allocate memory|std::bad_alloc"
    r"|LLVM ERROR: out of memory"
)
"""How ktuned, GCC, Clang and C++ programs say that a limit of memory was met."""


def was_killed(message: str) -> bool:
    """Return whether a compiler's message says that somebody killed it."""
    return _KILLED.search(message) is not None


def lacked_something(message: str) -> bool:
    """Return whether the message of a compile or a load says that the machine lacked something."""
    return _LACKED.search(message) is not None


class Grant(StrEnum):
    """What a config is granted. More of it may change the outcome."""

    DEADLINE_S = "deadline_s"
    MEMORY_BYTES = "memory_bytes"
    EXECUTION = "execution"


class Grants(FrozenStruct):
    """What configs are granted now.

    Attributes:
        deadlines: Seconds by phase.
        memory_bytes: The memory of a worker by its role.
        artifacts: The directory of the artifacts; its mount may forbid to execute code.
    """

    deadlines: Mapping[str, float]
    memory_bytes: Mapping[Role, int] = {}
    artifacts: str = "/"

    def read(self, grant: str, phase: str) -> float:
        """Return how much of something is granted in a phase."""
        if grant == Grant.DEADLINE_S:
            return self.deadlines.get(phase, 0.0)
        if grant == Grant.MEMORY_BYTES:
            return self.memory_bytes.get(Role.COMPILE if phase == Phase.COMPILE else Role.BENCH, 0)
        return 0.0 if self._forbids_execution() else 1.0

    def note_grants(self, result: TrialResult) -> TrialResult:
        """Add to a failure's result what was granted to the config, for want of which it may have failed."""
        phase, held = result.detail.failure.phase, dict[str, float]()
        if result.outcome is Outcome.HUNG:
            held[Grant.DEADLINE_S] = max(self.read(Grant.DEADLINE_S, phase), result.detail.failure.after_s)
        if result.outcome is Outcome.COMPILE_TIMEOUT:
            # A straggler was given up long before its deadline.
            held[Grant.DEADLINE_S] = result.detail.failure.after_s or self.read(Grant.DEADLINE_S, phase)
        if result.outcome in FAILURES and _NO_MEMORY.search(result.message):
            held[Grant.MEMORY_BYTES] = self.read(Grant.MEMORY_BYTES, phase)
        if result.outcome in _MAY_BE_MOUNT and self._forbids_execution():
            held[Grant.EXECUTION] = 0.0
            note = f"{self.artifacts} is on a mount with noexec"
            result = replace(result, message=f"{result.message}; {note}" if result.message else note)
        return result.add_facts("failure", granted=held) if held else result

    def _forbids_execution(self) -> bool:
        try:
            return bool(os.statvfs(self.artifacts).f_flag & os.ST_NOEXEC)
        except OSError:
            return False


_MAY_BE_MOUNT = frozenset({Outcome.COMPILE_ERROR, Outcome.LAUNCH_ERROR, Outcome.CRASHED})


def is_outcome_final(known: Trial, grants: Grants) -> bool:
    """Return whether a config with this outcome is not tried again in the same context.

    This quarantines configs that hang or crash, until more is granted of what they lacked.
    """
    if known.outcome is None or known.outcome in RETRIED_BY_NEXT_JOB or known.detail.timing.disturbed:
        return False
    held = known.detail.failure.granted
    return all(grants.read(grant, known.detail.failure.phase) <= amount for grant, amount in held.items())
