"""Oddities of a kernel file that only the results of a whole job show: knobs without effect, inputs that are
overwritten, metrics that fail. No IO.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from ktuned.model import Config, Scalar, TrialDetail

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
        if detail.compiled.content and len(self._contents) < COMPARED:
            self._contents[tuple(sorted(config.items()))] = detail.compiled.content
        self._measured += detail.timing.count > 0
        self._overwritten.update(detail.checks.overwritten)
        if detail.profile.metrics_fault:
            self._metrics_fault = self._metrics_fault or detail.profile.metrics_fault
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
