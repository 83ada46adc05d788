"""Hopeless jobs: nothing was measured, and everything that was tried failed for the same reason. No IO.

A kernel that lacks a macro fails at the same line in each of its thousand configs, and a kernel that never ends costs a
deadline for each config. A few equal failures prove this, if the failed configs have little else in common:

1. *Suspected*: a number of configs (:data:`ENOUGH`) failed alike, and none was measured. The job then asks for a few
   configs from anywhere in the space (*probes*): neighbours in a walk may share the value that is at fault.
2. *Hopeless*: each knob that varies among all configs proposed so far has at least two values among the failed configs.
   So no single value is to blame.

A config that was measured, or that was stopped as too slow, ends the suspicion for good.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import anyio

from ktuned.model import RETRIED_BY_NEXT_JOB, Config, Outcome, Scalar

PROBES = 4
"""Configs from anywhere in the space that a suspected job tries: enough to show which knobs vary."""

ENOUGH: Mapping[Outcome, int] = {
    # A source that lacks a macro, or a kernel that computes something else, fails in each config.
    Outcome.COMPILE_ERROR: 8,
    Outcome.MISMATCH: 8,
    Outcome.CRASHED: 8,
    # Each costs a deadline of seconds.
    Outcome.HUNG: 4,
    Outcome.COMPILE_TIMEOUT: 4,
    # Most configs of a space may need more registers or shared memory than the device has.
    Outcome.LAUNCH_ERROR: 24,
    Outcome.UNSUPPORTED: 24,
}
"""Equal failures, by their outcome, after which a job is suspected to be hopeless."""

ENOUGH_ASSERTIONS = 24
"""The same for failed assertions at compile time, which may depend on the config's own numbers."""

_PLACE = re.compile(r"[^\s:()]+[:(]\d+")
"""``file.cu:12`` or ``file.cu(12``, which a compiler's message begins with."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?")

_Values = dict[str, set[Scalar]]


class Hopelessness:
    """Decides from the outcomes of a job's configs whether to give the job up.

    Attributes:
        given_up: Set once the job is given up.
        reason: Why the job was given up, as a text for its message; empty while there is hope.
        is_proven: Another job on this space would end in the same way, whatever its budget and preset, because probes
            from all over the space failed, or it was exhausted.
    """

    def __init__(self) -> None:
        self.given_up = anyio.Event()
        self.reason = ""
        self.is_proven = False
        self._covers_space = False
        self._is_open = True
        self._has_probed = False
        self._suspect: tuple[Outcome, str] | None = None
        self._proposed: _Values = {}
        self._failed: dict[tuple[Outcome, str], tuple[int, str, _Values]] = {}

    @property
    def wants_probes(self) -> bool:
        """True if the next configs should be probes, from anywhere in the space."""
        return self._is_open and self._suspect is not None and not self._has_probed

    def give_job_up(self, reason: str) -> None:
        """Give the job up, for its configs' outcomes or for another reason."""
        self.reason, self._is_open = self.reason or reason, False
        self.given_up.set()

    def record_proposed(self, configs: Iterable[Config], *, are_probes: bool = False) -> None:
        """Take note of configs that are about to be tried."""
        if not self._is_open:
            return
        for config in configs:
            _add_values(self._proposed, config)
            self._covers_space |= are_probes
        self._has_probed |= are_probes
        self._decide_if_hopeless()

    def record_last_proposed(self, *, is_exhausted: bool) -> None:
        """Take note that no more configs (or probes) will be proposed; ``is_exhausted`` if the space has no more."""
        self._has_probed = True
        self._covers_space |= is_exhausted
        self._decide_if_hopeless()

    def record_outcome(self, config: Config, outcome: Outcome, message: str, phase: str | None = None) -> None:
        """Take note of a config's outcome."""
        if not self._is_open or outcome in RETRIED_BY_NEXT_JOB:
            return
        if outcome not in ENOUGH:
            self._is_open = False
            return
        symptom = outcome, find_symptom(outcome, message, phase)
        count, said, values = self._failed.get(symptom, (0, find_first_line(message), {}))
        _add_values(values, config)
        self._failed[symptom] = count + 1, said, values
        if self._suspect is None and count + 1 >= _get_failure_threshold(*symptom):
            self._suspect = symptom
        self._decide_if_hopeless()

    def _decide_if_hopeless(self) -> None:
        if self._suspect is None or not self._has_probed or not self._is_open:
            return
        for (outcome, symptom), (count, said, values) in self._failed.items():
            if count < _get_failure_threshold(outcome, symptom):
                continue
            if all(len(known) < 2 or len(values.get(knob, ())) > 1 for knob, known in self._proposed.items()):
                self.is_proven = self._covers_space
                self.give_job_up(
                    f"stopped: {count} configs failed alike and none could be measured; {outcome}: {said or symptom}"
                )
                return


def find_symptom(outcome: Outcome, message: str, phase: str | None) -> str:
    """Return what equal failures share: the place and text of the compiler's error, or the message without numbers."""
    if outcome in (Outcome.HUNG, Outcome.COMPILE_TIMEOUT):
        return phase or ""
    line = next((line for line in message.splitlines() if "error" in line.lower()), find_first_line(message))
    if outcome is Outcome.COMPILE_ERROR:
        place = _PLACE.search(line)
        if place is not None:
            return f"{place.group()} {_NUMBER.sub('#', line[place.end() :])}"
    return _NUMBER.sub("#", line)


def find_first_line(message: str) -> str:
    """Return the first line with text."""
    return next((line.strip() for line in message.splitlines() if line.strip()), "")


def _get_failure_threshold(outcome: Outcome, symptom: str) -> int:
    return ENOUGH_ASSERTIONS if "assert" in symptom.lower() else ENOUGH[outcome]


def _add_values(known: _Values, config: Config) -> None:
    for knob, value in config.items():
        values = known.setdefault(knob, set())
        # Two values are enough to show that a knob varies.
        if len(values) < 2:
            values.add(value)
