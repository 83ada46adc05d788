"""Idle policy: decides from readings of the machine's use when tuning yields to other programs. No IO."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ktuned.model import FrozenStruct
from ktuned.protocol import Job, Priority

POLICIES = ("always", "idle", "manual")
"""``always`` tunes whenever there is work, ``idle`` only while no other program uses the machine, ``manual`` only what
was requested by name. A job that a client waits for runs under each of these policies."""

PRESSURE_SHARE = 0.10
"""The machine counts as short of CPUs if some task has to wait for one in more than this share of the time."""

BUSY_SHARE = 0.15
"""Tuning yields on a machine short of CPUs if other programs use more than this share of them. A build, a game or a
video call uses more, an editor or a browser at rest uses less."""

CROWDED_SHARE = 0.5
"""The same share where the operating system does not report pressure."""

REST_SHARE = 0.05
"""Tuning resumes if others use less than this share of the CPUs. Pressure does not count here: without tuning's load it
says nothing."""

BUSY_READINGS = 2
"""This many readings in a row must show that the machine is used. A single reading may be a page that is being
loaded."""

REST_READINGS = 5
"""This many readings in a row must show that the machine is at rest. A build pauses between its steps."""


class Reading(FrozenStruct):
    """The use of the machine since the last reading.

    Attributes:
        others: Share of all CPUs that was used by processes other than the daemon's.
        pressure: Share of the time in which some task had to wait for a CPU; ``None`` if the operating system does not
            report it.
        on_battery: Whether the machine runs on battery.
        gpu_users: Number of processes other than the daemon's with work on a GPU, by the GPU's name (``cuda:0``).
    """

    others: float = 0.0
    pressure: float | None = None
    on_battery: bool = False
    gpu_users: Mapping[str, int] = {}


class _UseEstimate(msgspec.Struct):
    """Debounced state of one resource: in use or not."""

    is_used: bool = False
    _contradictions: int = 0

    def count_reading(self, is_busy: bool, is_at_rest: bool) -> None:
        """Count readings in a row that contradict the present state, and change it after enough of them."""
        speaks_against = is_at_rest if self.is_used else is_busy
        self._contradictions = self._contradictions + 1 if speaks_against else 0
        if self._contradictions >= (REST_READINGS if self.is_used else BUSY_READINGS):
            self.is_used, self._contradictions = not self.is_used, 0


class IdlePolicy(msgspec.Struct, eq=False):
    """Says which jobs must not run now, and why.

    Attributes:
        policy: One of :data:`POLICIES`.
    """

    policy: str = "always"
    _cpus: _UseEstimate = msgspec.field(default_factory=_UseEstimate)
    _gpus: dict[str, _UseEstimate] = {}
    _reading: Reading = msgspec.field(default_factory=Reading)

    @property
    def needs_readings(self) -> bool:
        """True if the policy depends on readings."""
        return self.policy == "idle"

    def take_reading(self, reading: Reading) -> None:
        """Take a reading into account."""
        self._reading = reading
        if reading.pressure is None:
            is_busy = reading.others > CROWDED_SHARE
        else:
            is_busy = reading.others > BUSY_SHARE and reading.pressure > PRESSURE_SHARE
        self._cpus.count_reading(is_busy, reading.others < REST_SHARE)
        for name, users in reading.gpu_users.items():
            self._gpus.setdefault(name, _UseEstimate()).count_reading(users > 0, users == 0)

    def forget_readings(self) -> None:
        """Forget all readings: the last one is too old to be continued."""
        self._cpus, self._gpus, self._reading = _UseEstimate(), {}, Reading()

    def refuse_job(self, job: Job, level: int) -> str:
        """Return why a job of this level must not run now; empty if it may."""
        if self.policy == "always" or level >= Priority.WAITED_FOR:
            return ""
        if self.policy == "manual":
            return "" if level >= Priority.REQUESTED else "policy is manual: `ktuned tune` starts it"
        return self.reason

    @property
    def reason(self) -> str:
        """Why jobs without a waiting client must not run now under the policy ``idle``; empty if they may."""
        if not self.needs_readings:
            return ""
        if self._reading.on_battery:
            return "the machine runs on battery"
        if self._cpus.is_used:
            return f"the machine is busy: other programs use {self._reading.others:.0%} of its CPUs"
        used = sorted(name for name, use in self._gpus.items() if use.is_used)
        return f"other programs use {', '.join(used)}" if used else ""
