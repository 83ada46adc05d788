"""The anchor of a job whose numerics are exact: the config whose bits others must have to win. No IO.

It is known by its trial. Until that has ended no config is known to have its bits, so it is the first one that is
tried. A config without bits yet, as one that was measured under a tolerance, is launched again for them alone; its
latency stays. An anchor that fails, or that leaves other bits each time, ends the job: nothing can be equal to it.
"""

from __future__ import annotations

from dataclasses import replace

from ktuned.ipc import replies, requests
from ktuned.model import (
    RETRIED_BY_NEXT_JOB,
    Bits,
    Config,
    Outcome,
    Trial,
    canonical,
    have_same_bits,
    is_nondeterministic,
)


class Anchor:
    """One job's anchor, its ``bits`` once they are known, and the ``fault`` for which it can be none.

    Outputs are compared on so many ``inputs``.
    """

    def __init__(self, config: Config, inputs: int) -> None:
        self.config = config
        self.inputs = inputs
        self.bits: Bits = ()
        self.fault = ""

    @property
    def request(self) -> requests.SameBits:
        """What a lane's worker is to find out of configs."""
        return requests.SameBits(self.inputs, self.bits)

    def is_anchor(self, config: Config) -> bool:
        """Return whether a config is the anchor."""
        return canonical(config) == canonical(self.config)

    def judge_bits(self, config: Config, measured: replies.Measurement) -> replies.Measurement:
        """Return a measurement with the verdict on its bits: a worker may not have known the anchor's."""
        if measured.bits is None:
            return measured
        if self.is_anchor(config) and not measured.nondeterministic:
            self.bits = measured.bits
        same = have_same_bits(measured.bits, self.bits) if self.bits else None
        return replace(measured, same_bits=False if measured.nondeterministic else same)

    def lacks_bits(self, trial: Trial) -> bool:
        """Return whether a measured config is to be launched again for its bits: the anchor's on all inputs, those of
        others on the first one. Finalists are launched on the other inputs before they compete.
        """
        bits = trial.detail.get("bits") or ()
        if is_nondeterministic(trial.detail):
            return False
        return len(bits) < self.inputs if self.is_anchor(trial.config) else not bits

    def may_equal_anchor(self, trial: Trial) -> bool:
        """Return whether a measured config has the anchor's bits, for all that is known of them."""
        bits = trial.detail.get("bits") or ()
        return bool(bits) and not is_nondeterministic(trial.detail) and have_same_bits(bits, self.bits) is not False

    def has_all_bits(self, trial: Trial) -> bool:
        """Return whether a measured config was launched on all inputs."""
        return len(trial.detail.get("bits") or ()) >= self.inputs

    def record_trial_end(self, trial: Trial) -> None:
        """Take note of a trial's end: the anchor's own says whether it can be one."""
        if not self.is_anchor(trial.config) or trial.outcome is None or trial.outcome in RETRIED_BY_NEXT_JOB:
            return
        words = ", ".join(f"{name}={value}" for name, value in self.config.items())
        if trial.outcome is not Outcome.MEASURED:
            self.fault = f"the anchor {words} failed: {trial.outcome}: {trial.message.partition(chr(10))[0]}"
        elif is_nondeterministic(trial.detail):
            self.fault = f"the anchor {words} is nondeterministic: its own outputs differ between launches"
        elif not trial.detail.get("bits"):
            self.fault = f"the anchor {words} leaves no outputs whose bits could be compared"
        else:
            self.bits = tuple(trial.detail["bits"])
