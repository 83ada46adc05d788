"""The anchor of a job whose numerics are exact: the config whose output bits a winner must have. No IO.

The anchor is tried first: until its own trial has ended, no config is known to have its bits. A config without known
bits, such as one that was measured under a tolerance, is launched again for its bits alone and keeps its latency. Most
configs are launched on the first inputs only, finalists on all. If the anchor fails, or its outputs differ between
launches, the job ends: nothing can be equal to it.
"""

from __future__ import annotations

from ktuned.ipc import requests
from ktuned.model import RETRIED_BY_NEXT_JOB, Bits, Config, Outcome, TrialResult, canonical, have_same_bits
from ktuned.protocol import Trial


class Anchor:
    """One job's anchor.

    Attributes:
        config: The anchor's config.
        inputs: The number of inputs on which outputs are compared.
        bits: The anchor's bits; empty until they are known.
        fault: The reason why this config cannot be the anchor, or empty.
    """

    def __init__(self, config: Config, inputs: int) -> None:
        self.config = config
        self.inputs = inputs
        self.bits: Bits = ()
        self.fault = ""

    @property
    def request(self) -> requests.SameBits:
        """What a lane's worker must find out about configs' bits."""
        return requests.SameBits(self.inputs, self.bits)

    def is_anchor(self, config: Config) -> bool:
        """Return whether a config is the anchor."""
        return canonical(config) == canonical(self.config)

    def judge_bits(self, config: Config, result: TrialResult) -> TrialResult:
        """Return a result with ``same_bits`` set, because its worker may not have known the anchor's bits."""
        detail = result.detail
        if detail.bits is None:
            return result
        if self.is_anchor(config) and not detail.nondeterministic:
            self.bits = detail.bits
        same = have_same_bits(detail.bits, self.bits) if self.bits else None
        return result.add_details(same_bits=False if detail.nondeterministic else same)

    def lacks_bits(self, trial: Trial) -> bool:
        """Return whether a measured config must be launched again for its bits.

        The anchor's bits are needed on all inputs, those of other configs only on the first.
        """
        bits = trial.detail.bits or ()
        if trial.detail.nondeterministic:
            return False
        return len(bits) < self.inputs if self.is_anchor(trial.config) else not bits

    def may_equal_anchor(self, trial: Trial) -> bool:
        """Return whether a measured config has the anchor's bits, as far as they are known."""
        bits = trial.detail.bits or ()
        return bool(bits) and not trial.detail.nondeterministic and have_same_bits(bits, self.bits) is not False

    def has_all_bits(self, trial: Trial) -> bool:
        """Return whether a measured config has its bits on all inputs."""
        return len(trial.detail.bits or ()) >= self.inputs

    def record_trial_end(self, trial: Trial) -> None:
        """Take note of a trial's end. The anchor's own trial shows its bits, or why it cannot be the anchor."""
        if not self.is_anchor(trial.config) or trial.outcome is None or trial.outcome in RETRIED_BY_NEXT_JOB:
            return
        words = ", ".join(f"{name}={value}" for name, value in self.config.items())
        if trial.outcome is not Outcome.MEASURED:
            self.fault = f"the anchor {words} failed: {trial.outcome}: {trial.message.partition(chr(10))[0]}"
        elif trial.detail.nondeterministic:
            self.fault = f"the anchor {words} is nondeterministic: its own outputs differ between launches"
        elif not trial.detail.bits:
            self.fault = f"the anchor {words} leaves no outputs whose bits could be compared"
        else:
            self.bits = trial.detail.bits
