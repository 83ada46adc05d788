"""One config on its way through the stages. No IO.

A config is proposed (:class:`~ktuned.ipc.replies.Proposal`), then attempted (:class:`Attempt`, with its trial and its
Build), then :class:`Compiled`, then measured; a :class:`~ktuned.model.TrialResult` ends it at any stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from ktuned.fleet import (
    KILLS_EXCUSED,
    DeadlineExpired,
    NodeLost,
    Output,
    RequestFailed,
    WorkerDied,
    is_outside_kill,
)
from ktuned.ipc import replies, requests
from ktuned.model import (
    Config,
    Event,
    Life,
    Outcome,
    Phase,
    Trial,
    TrialResult,
)
from ktuned.tuning.trial_detail import NO_DETAIL, TrialDetail


class Attempt(msgspec.Struct):
    """One trial under way: its config, its Build, its place in a trial's life, and what it has cost.

    ``unit`` has no key where the kernel function gave no Build. ``disturbed`` and ``killed`` count what is excused,
    ``given_back`` is whether its device failed once, ``doubted`` whether it failed once in a worker that the config
    before may have damaged. ``known`` is its trial as it stands, where that lacks a figure alone. ``cores`` is how many
    the config uses on a CPU, once that is known: its kernel file ``declares_cores``, or its first launch has shown it.
    ``spans`` say where it was last, and since when. What must not share a request with others goes ``alone``.
    ``expected_s`` is what its compile took in an earlier state of the kernel; 0 if that is unknown. ``lowered`` is what
    its function was translated into, where a backend does that apart, and until it is compiled.
    """

    trial: int
    config: Config
    unit: requests.UnitRef
    life: Life = msgspec.field(default_factory=Life)
    compile_s: float = 0.0
    lane_s: float = 0.0
    open_s: float = 0.0
    disturbed: int = 0
    killed: int = 0
    given_back: bool = False
    doubted: bool = False
    cores: int | None = None
    declares_cores: bool = False
    spans: dict[str, tuple[str, float]] = msgspec.field(default_factory=dict)
    known: Trial | None = None
    alone: bool = False
    expected_s: float = 0.0
    lowered: bytes | None = None

    @property
    def known_us(self) -> float | None:
        """The latency of a config that was measured already, and lacks another figure alone."""
        return None if self.known is None else self.known.latency_us

    def worked(self, kind: Literal["compile", "lane"], place: str, began: float) -> None:
        """Note that the attempt was in a slot (``compile``) or a ``lane``, and since when (Unix s)."""
        self.spans[kind] = place, round(began, 3)

    def doubt(self, *, is_doubtful: bool) -> bool:
        """Move the attempt back, once, after a failure in a worker that may have been damaged; return whether."""
        if not is_doubtful or self.doubted:
            return False
        self.doubted = True
        self.life.tell(Event.DOUBTED)
        return True

    @classmethod
    def again(cls, trial: Trial, unit: requests.UnitRef) -> Attempt:
        """Return a measured trial as one under way again, as a finalist."""
        attempt = cls(trial.id, trial.config, unit, compile_s=trial.compile_s, lane_s=trial.lane_s)
        attempt.life = Life(Outcome.MEASURED)
        attempt.life.tell(Event.CHOSEN)
        return attempt

    def excuse_kill(self, error: Exception) -> bool:
        """Move the attempt back after an excused kill from outside; return whether ``error`` is one.

        A few kills say nothing about the config; one whose workers are killed each time is believed to be the reason.
        """
        if isinstance(error, NodeLost):
            # Nothing of that is the config's doing, however often it happens.
            self.life.tell(Event.KILLED)
            return True
        if not is_outside_kill(error) or self.killed == KILLS_EXCUSED:
            return False
        self.killed += 1
        self.life.tell(Event.KILLED)
        return True

    def result(
        self,
        event: Event,
        message: str = "",
        *,
        latency_us: float | None = None,
        spread_us: float | None = None,
        detail: TrialDetail = NO_DETAIL,
        output: Output | None = None,
    ) -> TrialResult:
        """Make the last move, and return the result that it leads to."""
        self.life.tell(event)
        outcome = self.life.outcome
        assert outcome is not None
        failed = outcome is not Outcome.MEASURED
        detail = replace(
            detail,
            build=self.unit.build or None,
            open_s=round(self.open_s, 3) if self.open_s else None,
            spans=tuple((kind, *span) for kind, span in self.spans.items()) or None,
            story=tuple(map(str, self.life.story)) if failed or self.killed or self.disturbed or self.doubted else None,
            stdout=(output.stdout or None) if failed and output is not None else None,
            stderr=(output.stderr or None) if failed and output is not None else None,
        )
        return TrialResult(
            outcome,
            latency_us,
            spread_us,
            self.compile_s,
            self.lane_s,
            message,
            self.unit.key or None,
            detail.to_json(),
        )

    def failure(
        self,
        error: WorkerDied | DeadlineExpired | RequestFailed,
        *,
        expired: Event,
        refused: Event,
        detail: TrialDetail = NO_DETAIL,
    ) -> TrialResult:
        """Make the last move that a failed request means, and return its result.

        ``expired`` is the move where a deadline passed, ``refused`` where the worker answered that it cannot.
        """
        event, detail = refused, replace(detail, phase=error.phase)
        if isinstance(error, WorkerDied):
            event, detail = Event.DIED, replace(detail, signal=error.signal)
        elif isinstance(error, DeadlineExpired):
            event, detail = expired, replace(detail, after_s=error.deadline_s)
        return self.result(event, error.message, detail=detail, output=error.output)

    def unbuilt(self, proposal: replies.Proposal) -> TrialResult:
        """Make the last move of a config that the kernel function gives no Build for, and return its result."""
        event = Event.CANNOT_RUN if proposal.outcome is Outcome.UNSUPPORTED else Event.REFUSED
        return self.result(event, proposal.message, detail=TrialDetail(phase=Phase.BUILD))


class Compiled(msgspec.Struct, frozen=True):
    """An attempt that has its sealed artifact.

    ``facts`` are the backend's, ``content`` identifies its measurement; empty where other code decides it, too.
    """

    attempt: Attempt
    facts: Mapping[str, Any]
    content: str

    def detail(self, detail: TrialDetail = NO_DETAIL) -> TrialDetail:
        """Return a detail with what compiling found."""
        return replace(detail, facts=self.facts or None, content=self.content or None)


class Ended(msgspec.Struct, frozen=True):
    """An attempt that has its outcome."""

    attempt: Attempt
    result: TrialResult
