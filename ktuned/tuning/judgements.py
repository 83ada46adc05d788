"""Judgements that need the results of several configs of a job. No IO.

*Served configs.* A context without a winner still answers lookups: with the winner from before an edit, the winner of a
near problem, or the declared default. The first measured config would replace that answer, although it may be much
worse. So a job tries these *served* configs first, and changes nothing until the config that lookups get has an
outcome:

=======================================  ==============================================================================
its outcome                              what follows
=======================================  ==============================================================================
none yet, or one that says nothing       the job keeps waiting. At its end a ``contended`` config is measured beside
                                         the other programs; without a figure even so, a config that surely beats it
                                         is served (:func:`surely_beats`)
measured, or too slow                    from now on a better config may become the winner
a failure                                lookups would get the next served config, so the job waits for that one
=======================================  ==============================================================================

*The anchor*, if numerics are exact, is the config whose output bits a winner must have. It is tried first: until its
own trial has ended, no config is known to have its bits. A config without known bits, such as one that was measured
under a tolerance, is launched again for its bits alone and keeps its latency. Most configs are launched on the first
inputs only, finalists on all. If the anchor fails, or its outputs differ between launches, the job ends: nothing can be
equal to it.

*Disputed outputs.* The default's outputs may be the only reference. Atomics, random numbers, and buffers whose shape
depends on the config differ without a fault. So if most configs differ from the default, or the default from itself,
its outputs prove nothing, and no config counts as wrong.

*Hopeless jobs.* Nothing was measured, and everything that was tried failed for the same reason. A kernel that lacks a
macro fails at the same line in each of its thousand configs, and a kernel that never ends costs a deadline for each
config. A few equal failures prove this, if the failed configs have little else in common:

1. *Suspected*: a number of configs (:data:`ENOUGH`) failed alike, and none was measured. The job then asks for a few
   configs from anywhere in the space (*probes*): neighbours in a walk may share the value that is at fault.
2. *Hopeless*: each knob that varies among all configs proposed so far has at least two values among the failed configs.
   So no single value is to blame.

A config that was measured, or that was stopped as too slow, ends the suspicion for good.

*Findings* are oddities of a kernel file that only the results of a whole job show: knobs without effect, inputs that
are overwritten, metrics that fail.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto

import anyio
import msgspec
from msgspec.structs import replace

from ktuned.ipc import requests
from ktuned.model import (
    FAILURES,
    RETRIED_BY_NEXT_JOB,
    Bits,
    Config,
    Outcome,
    Scalar,
    TrialDetail,
    TrialResult,
    canonical,
    have_same_bits,
    spell_values,
)
from ktuned.protocol import Trial
from ktuned.store import Winner


class _Standing(Enum):
    """What is known of a served config in this context."""

    UNKNOWN = auto()
    WORKS = auto()
    FAILS = auto()


def _read_standing(outcome: Outcome | None) -> _Standing:
    if outcome is None or outcome in RETRIED_BY_NEXT_JOB:
        return _Standing.UNKNOWN
    return _Standing.FAILS if outcome in FAILURES else _Standing.WORKS


class ServedConfigs:
    """The served configs of one job, and what is known of each.

    Args:
        configs: The configs, in the order of lookups, which get the first that does not fail.
        find_outcome: Returns the known outcome of a config, or ``None``.
    """

    def __init__(
        self, configs: Iterable[Config] = (), find_outcome: Callable[[Config], Outcome | None] = lambda config: None
    ) -> None:
        self.configs = tuple({canonical(config): config for config in configs}.values())
        self._standings = {canonical(config): _read_standing(find_outcome(config)) for config in self.configs}

    @property
    def awaited_config(self) -> Config | None:
        """The config that lookups get, while its outcome is unknown; otherwise ``None``."""
        for config in self.configs:
            standing = self._standings[canonical(config)]
            if standing is not _Standing.FAILS:
                return config if standing is _Standing.UNKNOWN else None
        return None

    @property
    def are_judged(self) -> bool:
        """True when another config may become the winner."""
        return self.awaited_config is None

    def record_outcome(self, config: Config, outcome: Outcome) -> bool:
        """Take note of a config's outcome; return whether it was the last one that the job waited for."""
        were_judged, text = self.are_judged, canonical(config)
        if text in self._standings:
            self._standings[text] = _read_standing(outcome)
        return not were_judged and self.are_judged


def choose_served_configs(
    incumbent: Config | None, near: Iterable[Config], default: Config | None, admits: Callable[[Config], bool]
) -> list[Config]:
    """Return the configs that lookups get while a context has no winner, in their order.

    Args:
        incumbent: The winner from before a change.
        near: The winners of near problems, the nearest first.
        default: The declared default.
        admits: Returns whether the kernel's space still holds a config.
    """
    if incumbent is not None and admits(incumbent):
        return [incumbent]
    return [config for config in (*near, default) if config is not None and admits(config)]


def surely_beats(best: Trial, disturbed: Trial | None, before: Winner | None) -> bool:
    """Return whether a measured config is faster than a served one without a figure, by more than the uncertainty.

    Args:
        best: The measured config.
        disturbed: The served config's trial in this context. Disturbance only adds time, so its fastest timing counts.
        before: The served config as the winner of an earlier context, if it has no such timing.
    """
    fastest_us = None if disturbed is None else disturbed.detail.timing.low_us
    if fastest_us is None and before is not None:
        fastest_us = before.latency_us - (before.spread_us or 0.0)
    slowest_us = best.detail.timing.high_us or (best.latency_us or 0.0) + (best.spread_us or 0.0)
    return fastest_us is not None and slowest_us < fastest_us


class Anchor(msgspec.Struct, eq=False):
    """One job's anchor.

    Attributes:
        config: The anchor's config.
        inputs: The number of inputs on which outputs are compared.
        bits: The anchor's bits; empty until they are known.
        fault: The reason why this config cannot be the anchor, or empty.
    """

    config: Config
    inputs: int
    bits: Bits = ()
    fault: str = ""

    @property
    def request(self) -> requests.SameBits:
        """What a lane's worker must find out about configs' bits."""
        return requests.SameBits(self.inputs, self.bits)

    def is_anchor(self, config: Config) -> bool:
        """Return whether a config is the anchor."""
        return canonical(config) == canonical(self.config)

    def judge_bits(self, config: Config, result: TrialResult) -> TrialResult:
        """Return a result with ``same_bits`` set, because its worker may not have known the anchor's bits."""
        found = result.detail.numerics
        if not found.bits:
            return result
        if self.is_anchor(config) and not found.nondeterministic:
            self.bits = found.bits
        same = have_same_bits(found.bits, self.bits) if self.bits else None
        return result.add_facts("numerics", same_bits=False if found.nondeterministic else same)

    def lacks_bits(self, trial: Trial) -> bool:
        """Return whether a measured config must be launched again for its bits.

        The anchor's bits are needed on all inputs, those of other configs only on the first.
        """
        found = trial.detail.numerics
        if found.nondeterministic:
            return False
        return len(found.bits) < self.inputs if self.is_anchor(trial.config) else not found.bits

    def may_equal_anchor(self, trial: Trial) -> bool:
        """Return whether a measured config has the anchor's bits, as far as they are known."""
        found = trial.detail.numerics
        return bool(found.bits) and not found.nondeterministic and have_same_bits(found.bits, self.bits) is not False

    def has_all_bits(self, trial: Trial) -> bool:
        """Return whether a measured config has its bits on all inputs."""
        return len(trial.detail.numerics.bits) >= self.inputs

    def record_trial_end(self, trial: Trial) -> None:
        """Take note of a trial's end. The anchor's own trial shows its bits, or why it cannot be the anchor."""
        if not self.is_anchor(trial.config) or trial.outcome is None or trial.outcome in RETRIED_BY_NEXT_JOB:
            return
        words = spell_values(self.config)
        if trial.outcome is not Outcome.MEASURED:
            self.fault = f"the anchor {words} failed: {trial.outcome}: {trial.message.partition(chr(10))[0]}"
        elif trial.detail.numerics.nondeterministic:
            self.fault = f"the anchor {words} is nondeterministic: its own outputs differ between launches"
        elif not trial.detail.numerics.bits:
            self.fault = f"the anchor {words} leaves no outputs whose bits could be compared"
        else:
            self.bits = trial.detail.numerics.bits


class DisputedOutputs:
    """The trials of a job whose outputs were compared with the ``default`` config's outputs."""

    def __init__(self, default: Config | None) -> None:
        self._default = None if default is None else canonical(default)
        self._agreeing = 0
        self._differing: dict[int, Trial] = {}
        self._default_differs = False

    def record_trial(self, trial: Trial) -> None:
        """Take note of a trial's end; a trial without outputs says nothing."""
        if trial.detail.checks.undisputed is None:
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
            f"{len(self._differing)} of {count} configs differ from the default's outputs, so ktuned rejected none: "
            "correctness is unchecked (atomics, random numbers and outputs whose shape depends on the config may "
            "differ); give a reference="
        )


def _make_undisputed_result(trial: Trial) -> TrialResult:
    return replace(trial.result, outcome=trial.detail.checks.undisputed).add_facts("failure", phase="")


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
            f"{knob} has no effect: configs that differ only in it compile to the same bytes and launch alike "
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
