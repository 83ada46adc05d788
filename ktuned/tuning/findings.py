"""Conclusions that only the results of a whole job allow. No IO.

:class:`Findings` are oddities of a kernel file that its author should know about: knobs without effect, inputs that are
overwritten, metrics that fail.

:class:`DisputedOutputs` is for kernels whose only reference is the default's outputs. It decides whether a config whose
outputs differ is wrong. Atomics, random numbers, and buffers whose shape depends on the config differ without a fault.
So if most configs differ from the default, or the default from itself, its outputs prove nothing, and no config counts
as wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from ktuned.model import Config, Outcome, Scalar, Trial, TrialDetail, TrialResult, canonical

COMPARED = 2_000
"""Most configs of a job that are compared, so that the comparison takes milliseconds however long the job is."""

LEAST_GROUPS = 2
"""Groups of configs, equal but for one knob, that are needed to report that the knob has no effect: for a single
setting of the other knobs this may be chance. One group is enough where there cannot be more."""


class Findings:
    """Compares a job's configs to find effects that their author will not have intended."""

    def __init__(self) -> None:
        self._contents: dict[tuple[tuple[str, Scalar], ...], str] = {}
        self._overwritten: Counter[str] = Counter()
        self._metrics_fault = ""
        self._without_metrics = 0
        self._measured = 0

    def record_result(self, config: Config, detail: TrialDetail) -> None:
        """Take note of the detail of a config's result."""
        if detail.content and len(self._contents) < COMPARED:
            self._contents[tuple(sorted(config.items()))] = detail.content
        self._measured += detail.count is not None
        self._overwritten.update(detail.overwritten or ())
        if detail.metrics_fault:
            self._metrics_fault = self._metrics_fault or detail.metrics_fault
            self._without_metrics += 1

    def describe_findings(self) -> list[str]:
        """Return the findings, one sentence each."""
        knobs = [
            f"{knob} has no effect: configs that differ in it alone compile to the same bytes, and are called alike "
            f"({count} compared)"
            for knob, count in find_knobs_without_effect(self._contents).items()
        ]
        inputs = [
            f"the kernel overwrites its input {name}, which is neither an output nor in `setup`: later launches see "
            f"other data ({count} of {max(count, self._measured)} configs)"
            for name, count in sorted(self._overwritten.items())
        ]
        of = f"({self._without_metrics} of {max(self._without_metrics, self._measured)} configs have no metrics)"
        return [*knobs, *inputs, *([f"{self._metrics_fault} {of}"] if self._metrics_fault else [])]


def find_knobs_without_effect(contents: Mapping[tuple[tuple[str, Scalar], ...], str]) -> dict[str, int]:
    """Return the knobs that made no difference to any config, with the number of configs compared.

    ``contents`` maps configs, as sorted pairs, to a digest of everything that decides their figure.
    """
    found = {}
    for knob in sorted({name for config in contents for name, _ in config}):
        groups: defaultdict[tuple[tuple[str, Scalar], ...], list[str]] = defaultdict(list)
        for config, content in contents.items():
            groups[tuple(pair for pair in config if pair[0] != knob)].append(content)
        compared = [group for group in groups.values() if len(group) > 1]
        is_enough = len(compared) >= min(LEAST_GROUPS, len(groups))
        if compared and is_enough and all(len(set(group)) == 1 for group in compared):
            found[knob] = sum(map(len, compared))
    return found


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
