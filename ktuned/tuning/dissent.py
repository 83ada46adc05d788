"""Configs that differ from the default's outputs, and the rule for whose fault that is. No IO.

Atomics, random numbers and buffers of a config's own shape differ without a fault. Where most configs differ from the
default, or the default from itself, its outputs prove nothing, so none of them is held to be wrong.
"""

from __future__ import annotations

from ktuned.model import Config, Outcome, Trial, TrialResult, canonical


class Dissent:
    """The configs of a job whose outputs were compared with those of the ``default`` config."""

    def __init__(self, default: Config | None) -> None:
        self._default = None if default is None else canonical(default)
        self._agreeing = 0
        self._differing: dict[int, Trial] = {}
        self._default_differs = False

    def note(self, trial: Trial) -> None:
        """Take note of a trial's end; one without outputs says nothing."""
        if trial.detail.get("undisputed") is None:
            self._agreeing += trial.outcome in (Outcome.MEASURED, Outcome.SLOWER)
            return
        self._differing[trial.id] = trial
        self._default_differs |= canonical(trial.config) == self._default

    @property
    def is_default_doubtful(self) -> bool:
        """True if the default's outputs prove nothing."""
        return self._default_differs or len(self._differing) > self._agreeing

    def acquitted(self) -> list[tuple[Trial, TrialResult]]:
        """Return the trials that are no mismatches after all, each with the result that it has instead."""
        if not self.is_default_doubtful:
            return []
        return [(trial, _undisputed(trial)) for trial in self._differing.values() if trial.outcome is Outcome.MISMATCH]

    def line(self) -> str:
        """Return a sentence for the job's message; nothing where the default was to be trusted."""
        if not self._differing or not self.is_default_doubtful:
            return ""
        count = len(self._differing) + self._agreeing
        return (
            f"{len(self._differing)} of {count} configs differ from the default's outputs, so none is held to be wrong "
            "and nothing was checked (atomics, random numbers or buffers of a config's own shape may differ): give a "
            "reference="
        )


def _undisputed(trial: Trial) -> TrialResult:
    return TrialResult(
        Outcome(trial.detail["undisputed"]),
        trial.latency_us,
        trial.spread_us,
        trial.compile_s,
        trial.lane_s,
        trial.message,
        artifact=trial.artifact,
        detail={name: value for name, value in trial.detail.items() if name != "phase"},
    )
