"""Trials and winners, and the context of a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

from msgspec.structs import replace

from ktuned.model.frozen_struct import FrozenStruct
from ktuned.model.keys import Phase
from ktuned.model.objective import Objective, is_exact, select_figure
from ktuned.model.values import Outcome

Bits = tuple[str, ...]
"""Digests of a config's outputs, by input."""


def have_same_bits(bits: Sequence[str], anchor: Sequence[str]) -> bool | None:
    """Return whether a config's outputs equal the anchor's on all inputs; None if some are unknown."""
    common = min(len(bits), len(anchor))
    if tuple(bits[:common]) != tuple(anchor[:common]):
        return False
    return None if not anchor or len(bits) < len(anchor) else True


class Stage(FrozenStruct, omit_defaults=True):
    """What one stage adds to a trial's detail; a fact that a trial lacks is nowhere written."""


class FailureFacts(Stage):
    """Where a trial failed, and what it left.

    Attributes:
        phase: the phase in which it failed; ``import`` for a winner from a file.
        signal: the signal that ended its process.
        after_s: the deadline that passed.
        granted: what it was granted and may have failed for want of, by name; more of it and the config is tried again.
        tries: number of jobs in which it ended without evidence about the config.
        deaths: number of daemons that died while a worker had it.
        story: its events.
        stdout, stderr: what the config printed.
    """

    phase: str = ""
    signal: str = ""
    after_s: float = 0.0
    granted: Mapping[str, float] = {}
    tries: int = 0
    deaths: int = 0
    story: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""


class Compiled(Stage):
    """What compiling made.

    Attributes:
        build: the Build, as plain data.
        facts: the backend's facts about the artifact.
        content: digest of everything that decides the measurement; trials with equal content measure the same.
        inputs: digest of the problem's declared inputs, if the kernel file has made none of them itself.
    """

    build: Mapping[str, Any] = {}
    facts: Mapping[str, Any] = {}
    content: str = ""
    inputs: str = ""


class Timing(Stage):
    """The timings of launches.

    Attributes:
        count: number of timings.
        samples: some of the timings in µs, in ascending order.
        low_us, high_us: ends of the median's 95 % interval; with fewer than six timings, of their range.
        beaten: whether sampling ended early, because the config could not win.
        disturbed: whether other programs used the device meanwhile: the figure is better than none.
        carried_from: the trial with equal content whose measurement was taken over.
    """

    count: int = 0
    samples: tuple[float, ...] = ()
    low_us: float = 0.0
    high_us: float = 0.0
    beaten: bool = False
    disturbed: bool = False
    carried_from: int = 0


class Checks(Stage):
    """The checks of outputs and inputs.

    Attributes:
        max_error, mismatched_ratio: how far the outputs were from the expected ones.
        overwritten: inputs that the launch wrote to although they are not declared as written.
        undisputed: the outcome that it gets if the default turns out to be wrong, for a config whose only fault is that
            its outputs differ from the default's. Such a config is timed, too.
        compared: number of launches whose outputs were compared, in all rounds.
    """

    max_error: float | None = None
    mismatched_ratio: float | None = None
    overwritten: tuple[str, ...] = ()
    undisputed: Outcome | None = None
    compared: int = 0


class Numerics(Stage):
    """The comparison of output bits.

    Attributes:
        bits: digests of the outputs by input, if requested; only for the first input if the config was given up.
        same_bits: whether the bits are the anchor's.
        nondeterministic: whether launches have left different outputs from the same inputs.
    """

    bits: Bits = ()
    same_bits: bool | None = None
    nondeterministic: bool = False


class Profile(Stage):
    """Where and how the trial ran, and what it used.

    Attributes:
        cores: how many cores it used.
        phase_s: the lane's time by phase.
        open_s: how long it took to open the problem for it.
        spans: for each part of its work, ``compile`` or ``lane``, the slot or device, and its start (Unix s).
        read: digest of the data files and variables that had been read when it ended.
        contention: why it is unknown whether others used the device.
        metrics_fault: why the kernel file's own metrics failed.
    """

    cores: int | None = None
    phase_s: Mapping[str, float] = {}
    open_s: float = 0
    spans: tuple[tuple[str, str, float], ...] = ()
    read: str = ""
    contention: str = ""
    metrics_fault: str = ""


class FinalRounds(Stage):
    """The rounds of a finalist.

    Attributes:
        rounds: number of its rounds.
        round_medians_us: the medians of these rounds.
        first_latency_us: its latency before these rounds.
        reference_us, reference_spread_us: the reference's latency and spread in these rounds.
    """

    rounds: int = 0
    round_medians_us: tuple[float, ...] = ()
    first_latency_us: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None


class JudgeVerdict(StrEnum):
    """What ``ktuned judge`` says of a candidate that is not trusted, from the best to the worst."""

    RIGHT = "right"
    REFUSED = "refused"
    COMPILE_ERROR = "compile_error"
    WRONG = "wrong"
    CRASHED = "crashed"
    HUNG = "hung"
    CHEATING = "cheating"


class Judgement(Stage):
    """The verdict on a config that was judged, and what it rests on.

    Attributes:
        verdict: a :class:`JudgeVerdict`; empty if the config was not judged.
        reason: why, in one sentence.
        checked: what was checked, each in a sentence.
        not_enforced: what the system does not allow to enforce, each in a sentence.
    """

    verdict: str = ""
    reason: str = ""
    checked: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()


class TrialDetail(FrozenStruct, omit_defaults=True):
    """The facts about a trial besides its figures: a struct for each stage, empty if the trial did not get there.

    The end of a name is the unit of a time. To add a fact, add a field to its stage: the store keeps it, ``results``
    sends it, ``ktuned results --trial`` shows it.
    """

    failure: FailureFacts = FailureFacts()
    compiled: Compiled = Compiled()
    timing: Timing = Timing()
    checks: Checks = Checks()
    numerics: Numerics = Numerics()
    profile: Profile = Profile()
    final: FinalRounds = FinalRounds()
    judged: Judgement = Judgement()


NO_DETAIL = TrialDetail()


class TrialResult(FrozenStruct):
    """The result of one config. The worker makes it, the daemon adds what only it knows, the store keeps it.

    Attributes:
        outcome: how the trial ended; None while it runs, or if it has to be tried again.
        latency_us, spread_us: median and interquartile range of its timings.
        compile_s, lane_s: the time that it took to compile, and on the lane.
        message: why it failed, or a remark.
        artifact: its artifact's key.
        detail: further facts.
        metrics: the kernel file's own figures, and the energy of a launch (J) if that was measured.
    """

    outcome: Outcome | None
    latency_us: float | None = None
    spread_us: float | None = None
    compile_s: float = 0.0
    lane_s: float = 0.0
    message: str = ""
    artifact: str | None = None
    detail: TrialDetail = NO_DETAIL
    metrics: Mapping[str, float] = {}

    @property
    def launch_s(self) -> float | None:
        """How long its first launch took by the wall clock, if that is known."""
        return self.detail.profile.phase_s.get(Phase.FIRST_LAUNCH)

    def figure(self, objective: Objective) -> float | None:
        """Return its figure by an objective, if it has one."""
        if is_exact(objective) and not self.detail.numerics.same_bits:
            return None
        return select_figure(objective, self.latency_us, self.metrics)

    def interval(self) -> tuple[float, float] | None:
        """Return the ends of the 95 % interval of its latency, relative to that, if they are known."""
        latency_us, timing = self.latency_us, self.detail.timing
        return (timing.low_us / latency_us, timing.high_us / latency_us) if latency_us and timing.high_us else None

    def doubt(self) -> float | None:
        """Return half the width of :meth:`interval`, if it is known."""
        found = self.interval()
        return None if found is None else (found[1] - found[0]) / 2

    def add_facts(self, stage: str, **facts: Any) -> Self:
        """Return the result with further facts of a stage: ``result.add_facts("profile", cores=2)``."""
        known = replace(getattr(self.detail, stage), **facts)
        return replace(self, detail=replace(self.detail, **{stage: known}))

    def add_checks(self, checks: Checks) -> Self:
        """Return the result with earlier checks; it keeps the number of launches that it has compared itself."""
        return replace(self, detail=replace(self.detail, checks=replace(checks, compared=self.detail.checks.compared)))
