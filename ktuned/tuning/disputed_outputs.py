"""Whether a config is wrong whose outputs differ from the default's, where these are the only reference. No IO.

Atomics, random numbers, and buffers whose shape depends on the config differ without a fault. So if most configs differ
from the default, or the default from itself, its outputs prove nothing, and no config counts as wrong.
"""

from __future__ import annotations

from msgspec.structs import replace

from ktuned.model import Config, Outcome, TrialResult, canonical
from ktuned.protocol import Trial


class DisputedOutputs:
    """The trials of a job whose outputs were compared with the ``default`` config's outputs."""

    def __init__(self, default: Config | None) -> None:
        self._default = None if default is None else canonical(default)
        self._agreeing = 0
        self._differing: dict[int, Trial] = {}
        self._default_differs = False

    def record_trial(self, trial: Trial) -> None:
        """Take note of a trial's end; a trial without outputs says nothing."""
        if trial.detail.undisputed is None:
            self._agreeing += trial.outcome in (Outcome.MEASURED, Outcome.SLOWER)
            return
        self._differing[trial.id] = trial
        self._default_differs |= canonical(trial.config) == self._default

    @property
    def is_default_doubtful(self) -> bool:
        """True if the default's outputs prove nothing."""
        return self._default_differs or len(self._differing) > self._agreeing

    def find_acquitted(self) -> list[tuple[Trial, TrialResult]]:
        """Return the trials that are not mismatches after all, each with its new result."""
        if not self.is_default_doubtful:
            return []
        return [
            (trial, _make_undisputed_result(trial))
            for trial in self._differing.values()
            if trial.outcome is Outcome.MISMATCH
        ]

    def describe_dispute(self) -> str:
        """Return a sentence for the job's message; empty if the default's outputs can be trusted."""
        if not self._differing or not self.is_default_doubtful:
            return ""
        count = len(self._differing) + self._agreeing
        return (
            f"{len(self._differing)} of {count} configs differ from the default's outputs, so none is held to be wrong "
            "and nothing was checked (atomics, random numbers or buffers of a config's own shape may differ): give a "
            "reference="
        )


def _make_undisputed_result(trial: Trial) -> TrialResult:
    return replace(trial.result, outcome=trial.detail.undisputed).add_details(phase=None)
