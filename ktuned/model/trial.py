"""Trials and winners, and the context of a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import msgspec
from msgspec.structs import replace

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


class TrialDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts about a trial besides its figures, as far as it got. The end of a name is the unit of a time.

    To add a fact, add a field here: the store keeps it, ``results`` sends it, ``ktuned results --trial`` shows it.

    Attributes:
        phase: the phase in which it failed; ``import`` for a winner from a file.
        signal: the signal that ended its process.
        after_s: the deadline that passed.
        granted: what it was granted and may have failed for want of, by name; more of it and the config is tried again.
        tries: number of jobs in which it ended without evidence about the config.
        story: its events.
        stdout, stderr: what the config printed, if it failed.
        count: number of timings.
        samples: some of the timings in µs, in ascending order.
        low_us, high_us: ends of the median's 95 % interval; with fewer than six timings, of their range.
        beaten: whether sampling ended early, because the config could not win.
        max_error, mismatched_ratio: how far the outputs were from the expected ones.
        contention: why it is unknown whether others used the device.
        overwritten: inputs that the launch wrote to although they are not declared as written.
        cores: how many cores it used.
        phase_s: the lane's time by phase.
        metrics_fault: why the kernel file's own metrics failed.
        undisputed: the outcome that it gets if the default turns out to be wrong, for a config whose only fault is that
            its outputs differ from the default's. Such a config is timed, too.
        build: the Build, as plain data.
        facts: the backend's facts about the artifact.
        content: digest of everything that decides the measurement; trials with equal content measure the same.
        read: digest of the data files and variables that had been read when it ended.
        open_s: how long it took to open the problem for it.
        spans: for each part of its work, ``compile`` or ``lane``, the slot or device, and its start (Unix s).
        carried_from: the trial with equal content whose measurement was taken over.
        rounds: number of its rounds as a finalist.
        round_medians_us: the medians of these rounds.
        first_latency_us: its latency before these rounds.
        reference_us, reference_spread_us: the reference's latency and spread in these rounds.
        compared: number of launches whose outputs were compared, in all rounds.
        bits: digests of the outputs by input, if requested; only for the first input if the config was given up.
        same_bits: whether the bits are the anchor's.
        nondeterministic: whether launches have left different outputs from the same inputs.
    """

    phase: str | None = None
    signal: str | None = None
    after_s: float | None = None
    granted: Mapping[str, float] | None = None
    tries: int | None = None
    story: tuple[str, ...] | None = None
    stdout: str | None = None
    stderr: str | None = None
    count: int | None = None
    samples: tuple[float, ...] | None = None
    low_us: float | None = None
    high_us: float | None = None
    beaten: bool | None = None
    max_error: float | None = None
    mismatched_ratio: float | None = None
    contention: str | None = None
    overwritten: tuple[str, ...] | None = None
    cores: int | None = None
    phase_s: Mapping[str, float] | None = None
    metrics_fault: str | None = None
    undisputed: Outcome | None = None
    build: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] | None = None
    content: str | None = None
    read: str | None = None
    open_s: float | None = None
    spans: tuple[tuple[str, str, float], ...] | None = None
    carried_from: int | None = None
    rounds: int | None = None
    round_medians_us: tuple[float, ...] | None = None
    first_latency_us: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None
    compared: int | None = None
    bits: tuple[str, ...] | None = None
    same_bits: bool | None = None
    nondeterministic: bool | None = None


NO_DETAIL: Final = TrialDetail()


class TrialResult(msgspec.Struct, frozen=True):
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
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)

    @property
    def launch_s(self) -> float | None:
        """How long its first launch took by the wall clock, if that is known."""
        return (self.detail.phase_s or {}).get(Phase.FIRST_LAUNCH)

    def figure(self, objective: Objective) -> float | None:
        """Return its figure by an objective, if it has one."""
        if is_exact(objective) and not self.detail.same_bits:
            return None
        return select_figure(objective, self.latency_us, self.metrics)

    def interval(self) -> tuple[float, float] | None:
        """Return the ends of the 95 % interval of its latency, relative to that, if they are known."""
        latency_us, low, high = self.latency_us, self.detail.low_us, self.detail.high_us
        return None if not latency_us or low is None or high is None else (low / latency_us, high / latency_us)

    def doubt(self) -> float | None:
        """Return half the width of :meth:`interval`, if it is known."""
        found = self.interval()
        return None if found is None else (found[1] - found[0]) / 2

    def add_details(self, **details: Any) -> Self:
        """Return the result with further fields of its detail: ``result.add_details(cores=2)``."""
        return replace(self, detail=replace(self.detail, **details))
