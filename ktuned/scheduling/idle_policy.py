"""Idle policy: decides from readings when tuning leaves the machine to others. No IO."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ktuned.model import Job, Priority

POLICIES = ("always", "idle", "manual")
"""``always`` tunes whenever there is work, ``idle`` while no other program uses the machine, ``manual`` only what was
requested by name. A job that a client waits for runs under all of them."""

PRESSURE_SHARE = 0.10
"""Of the time something has to wait for a CPU, before the machine counts as short of them."""

BUSY_SHARE = 0.15
"""Of all CPUs others must use, on a machine that is short of them, before tuning yields: a build, a game, a call; not
an editor or a browser at rest."""

CROWDED_SHARE = 0.5
"""Of all CPUs others must use where the kernel reports no pressure."""

REST_SHARE = 0.05
"""Of all CPUs others may use for tuning to begin again: pressure says nothing while tuning itself rests."""

BUSY_READINGS = 2
"""So many readings in a row must say that the machine is used: one is a page being loaded."""

REST_READINGS = 5
"""So many must say that it is not: a build pauses between its steps."""


class Reading(msgspec.Struct, frozen=True):
    """The use of the machine since the last reading.

    ``others`` is the share of all CPUs that processes used which are not the daemon's; ``pressure`` the share of the
    time that something had to wait for a CPU, ``None`` where the kernel does not report it; ``gpu_users`` how many
    processes not the daemon's had work on a device, by its name (``cuda:0``).
    """

    others: float = 0.0
    pressure: float | None = None
    on_battery: bool = False
    gpu_users: Mapping[str, int] = msgspec.field(default_factory=dict)


class _UseOpinion(msgspec.Struct):
    """Debounced state of one resource: in use or not."""

    is_used: bool = False
    _against: int = 0

    def count_reading(self, is_busy: bool, is_at_rest: bool) -> None:
        """Count what speaks against the present opinion, and change it when that is enough."""
        speaks_against = is_at_rest if self.is_used else is_busy
        self._against = self._against + 1 if speaks_against else 0
        if self._against >= (REST_READINGS if self.is_used else BUSY_READINGS):
            self.is_used, self._against = not self.is_used, 0


class IdlePolicy:
    """Says which jobs must not run now, and why."""

    def __init__(self, policy: str = "always") -> None:
        self.policy = policy
        self._cpus = _UseOpinion()
        self._gpus: dict[str, _UseOpinion] = {}
        self._reading = Reading()

    @property
    def needs_readings(self) -> bool:
        """``True`` if readings decide anything."""
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
            self._gpus.setdefault(name, _UseOpinion()).count_reading(users > 0, users == 0)

    def forget_readings(self) -> None:
        """Forget all readings: the last one is too old to be continued."""
        self._cpus, self._gpus, self._reading = _UseOpinion(), {}, Reading()

    def refuse_job(self, job: Job, level: int) -> str:
        """Return why a job of that level must not run now; nothing if it may."""
        if self.policy == "always" or level >= Priority.WAITED_FOR:
            return ""
        if self.policy == "manual":
            return "" if level >= Priority.REQUESTED else "policy is manual: `ktuned tune` starts it"
        return self.reason

    @property
    def reason(self) -> str:
        """The reason why jobs that no client waits for rest now under the policy ``idle``; empty if they do not."""
        if not self.needs_readings:
            return ""
        if self._reading.on_battery:
            return "the machine runs on battery"
        if self._cpus.is_used:
            return f"the machine is used: others take {self._reading.others:.0%} of its CPUs"
        used = sorted(name for name, use in self._gpus.items() if use.is_used)
        return f"other programs use {', '.join(used)}" if used else ""
