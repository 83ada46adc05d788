"""A trial's life: every state, every event, every legal move in one table, and the trial under way itself. No IO.

::

    asked ──▶ compiling ──▶ compiled ──▶ measuring ──▶ (an outcome)
      ▲ ◀─retried─┘            ▲ ◀─retried─┘
      │                        │                      measured ──▶ finalist ──▶ refining ──▶ measured, or worse
      └── artifact found ──────┤                                      ▲ ◀─retried─┘
                               └─ known (a twin has its outcome) ──▶ measured, slower, wrong

Only :mod:`~ktuned.tuning.trial_machine` moves a trial: it decides which event a report means. An event that the table
does not allow changes nothing and raises :class:`~ktuned.model.errors.IllegalMove`, whose message tells the trial's
story.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from ktuned.fleet import KILLS_EXCUSED, Output
from ktuned.ipc import requests
from ktuned.model import Config, IllegalMove, Outcome, TrialResult
from ktuned.protocol import Trial

CONTENDED_TRIES: Final = 3
"""How often a trial is measured while other programs use the device, before it ends as ``contended``."""


class TrialState(StrEnum):
    """State of a trial without an outcome, or of a finalist that is measured again."""

    ASKED = "asked"
    COMPILING = "compiling"
    COMPILED = "compiled"
    MEASURING = "measuring"
    FINALIST = "finalist"
    REFINING = "refining"


class TrialEvent(StrEnum):
    """Events of a trial. They are stored as its story, so their values must not change."""

    REFUSED = "refused"
    ARTIFACT_FOUND = "artifact_found"
    KNOWN = "known"
    KNOWN_SLOWER = "known_slower"
    KNOWN_WRONG = "known_wrong"
    COMPILE_STARTED = "compile_started"
    COMPILE_DONE = "compile_done"
    COMPILE_FAILED = "compile_failed"
    COMPILE_EXPIRED = "compile_expired"
    LANE_TAKEN = "lane_taken"
    CHOSEN = "chosen"
    TIMED = "timed"
    STOPPED_EARLY = "stopped_early"
    WRONG = "wrong"
    RAISED = "raised"
    DIED = "died"
    EXPIRED = "expired"
    CANNOT_RUN = "cannot_run"
    KILLED = "killed"
    HOST_LOST = "host_lost"
    WORKER_DAMAGED = "worker_damaged"
    DEVICE_SICK = "device_sick"
    CROWDED = "crowded"
    DISTURBED = "disturbed"
    DISTURBED_AGAIN = "disturbed_again"
    SPARED = "spared"
    SET_APART = "set_apart"
    NEEDS_CORES = "needs_cores"
    ARTIFACT_DAMAGED = "artifact_damaged"
    CANCELLED = "cancelled"
    DAEMON_DIED = "daemon_died"


EXCUSES: Final[Mapping[TrialEvent, int]] = {
    TrialEvent.KILLED: KILLS_EXCUSED,
    TrialEvent.CROWDED: KILLS_EXCUSED,
    TrialEvent.DEVICE_SICK: 1,
    TrialEvent.WORKER_DAMAGED: 1,
    TrialEvent.DISTURBED: CONTENDED_TRIES - 1,
}
"""How often in its life a trial is tried again, for each reason that may lie outside its config."""

Place = TrialState | Outcome
_Moves = dict[TrialEvent, Place]

_STOPPED: _Moves = {
    TrialEvent.CANCELLED: Outcome.CANCELLED,
    # The next daemon finds the trial's row without an outcome.
    TrialEvent.DAEMON_DIED: Outcome.INTERRUPTED,
}


def _make_retry_moves(waiting: TrialState, *also: TrialEvent) -> _Moves:
    """Return moves of a trial that goes back to ``waiting``, for another try."""
    return dict.fromkeys((TrialEvent.KILLED, TrialEvent.HOST_LOST, TrialEvent.SPARED, *also), waiting)


_ON_LANE: _Moves = {
    TrialEvent.WRONG: Outcome.MISMATCH,
    TrialEvent.RAISED: Outcome.LAUNCH_ERROR,
    TrialEvent.DIED: Outcome.CRASHED,
    TrialEvent.EXPIRED: Outcome.HUNG,
    TrialEvent.CANNOT_RUN: Outcome.UNSUPPORTED,
}

MOVES: Final[dict[Place, _Moves]] = {
    TrialState.ASKED: {
        TrialEvent.REFUSED: Outcome.COMPILE_ERROR,
        TrialEvent.CANNOT_RUN: Outcome.UNSUPPORTED,
        TrialEvent.ARTIFACT_FOUND: TrialState.COMPILED,
        TrialEvent.COMPILE_STARTED: TrialState.COMPILING,
        **_STOPPED,
    },
    TrialState.COMPILING: {
        TrialEvent.COMPILE_DONE: TrialState.COMPILED,
        TrialEvent.COMPILE_FAILED: Outcome.COMPILE_ERROR,
        TrialEvent.COMPILE_EXPIRED: Outcome.COMPILE_TIMEOUT,
        TrialEvent.CANNOT_RUN: Outcome.UNSUPPORTED,
        TrialEvent.DIED: Outcome.CRASHED,
        **_make_retry_moves(TrialState.ASKED),
        **_STOPPED,
    },
    TrialState.COMPILED: {
        TrialEvent.LANE_TAKEN: TrialState.MEASURING,
        TrialEvent.KNOWN: Outcome.MEASURED,
        TrialEvent.KNOWN_SLOWER: Outcome.SLOWER,
        TrialEvent.KNOWN_WRONG: Outcome.MISMATCH,
        TrialEvent.ARTIFACT_DAMAGED: TrialState.ASKED,
        **_STOPPED,
    },
    TrialState.MEASURING: {
        TrialEvent.TIMED: Outcome.MEASURED,
        TrialEvent.STOPPED_EARLY: Outcome.SLOWER,
        TrialEvent.DISTURBED_AGAIN: Outcome.CONTENDED,
        TrialEvent.ARTIFACT_DAMAGED: TrialState.ASKED,
        **_make_retry_moves(
            TrialState.COMPILED,
            TrialEvent.WORKER_DAMAGED,
            TrialEvent.CROWDED,
            TrialEvent.DEVICE_SICK,
            TrialEvent.DISTURBED,
            TrialEvent.SET_APART,
            TrialEvent.NEEDS_CORES,
        ),
        **_ON_LANE,
        **_STOPPED,
    },
    Outcome.MEASURED: {TrialEvent.CHOSEN: TrialState.FINALIST},
    # A finalist whose next measurement is stopped or disturbed keeps its first figure.
    TrialState.FINALIST: {
        TrialEvent.LANE_TAKEN: TrialState.REFINING,
        **dict.fromkeys(_STOPPED, Outcome.MEASURED),
    },
    TrialState.REFINING: {
        TrialEvent.TIMED: Outcome.MEASURED,
        TrialEvent.DISTURBED: Outcome.MEASURED,
        **_make_retry_moves(TrialState.FINALIST, TrialEvent.WORKER_DAMAGED, TrialEvent.CROWDED, TrialEvent.DEVICE_SICK),
        **_ON_LANE,
        **dict.fromkeys(_STOPPED, Outcome.MEASURED),
    },
}


class Verdict(msgspec.Struct, frozen=True):
    """A trial's end, before it is recorded.

    Attributes:
        event: The event that leads to the outcome.
        result: The result, as far as it is known from a worker or a twin.
        output: The output that the config printed.
    """

    event: TrialEvent
    result: TrialResult = TrialResult(None)
    output: Output = Output()


class Attempt(msgspec.Struct, eq=False):
    """One trial under way: its config and Build, its state, its story and its costs.

    Only the machine moves it and sets ``accused``. The stages record its costs, except the deadline of an expired
    compile, which the machine adds; either may set ``cores``.

    Attributes:
        trial: The trial's id.
        config: The config that it tries.
        unit: Its Build and the key of its artifact; no key if the kernel function gave no Build.
        state: Its state, or its outcome.
        story: Its events so far.
        cores: The number of cores that the config uses on a CPU, once it is known.
        declares_cores: Whether the kernel file declares ``cores``. Otherwise the first launch shows them.
        accused: The verdict that the trial gets unless its device turns out to be sick.
        facts: The backend's facts about the artifact.
        files: The digest of its machine code.
        content: Identifies its measurement, once a lane has its data. Empty, like ``files``, if other code than the
            artifact's decides what runs.
        read: The digest of the files and variables that the kernel's data depended on when it was measured.
        known: The trial as the store has it, if it was measured before and only lacks a figure.
        expected_s: The time of its compile in an earlier state of the kernel; 0 if unknown.
        lowered: The translated function, until it is compiled; only for backends that lower.
        compile_s, lane_s, open_s: Seconds for its compile, on a lane, and for opening the lane before it.
        spans: For ``compile`` and ``lane``, the last place where the trial was, and since when (Unix s).
    """

    trial: int
    config: Config
    unit: requests.UnitRef
    state: Place = TrialState.ASKED
    story: list[TrialEvent] = msgspec.field(default_factory=list)
    cores: int | None = None
    declares_cores: bool = False
    accused: Verdict | None = None
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    files: str = ""
    content: str = ""
    read: str = ""
    known: Trial | None = None
    expected_s: float = 0.0
    lowered: bytes | None = None
    compile_s: float = 0.0
    lane_s: float = 0.0
    open_s: float = 0.0
    spans: dict[str, tuple[str, float]] = msgspec.field(default_factory=dict)

    @classmethod
    def from_finalist(cls, trial: Trial, unit: requests.UnitRef) -> Attempt:
        """Return the attempt that measures a finalist again."""
        attempt = cls(trial.id, trial.config, unit, Outcome.MEASURED, compile_s=trial.compile_s, lane_s=trial.lane_s)
        attempt.make_move(TrialEvent.CHOSEN)
        return attempt

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, or ``None`` while the trial is under way."""
        return self.state if isinstance(self.state, Outcome) else None

    @property
    def is_compiled(self) -> bool:
        """True while the trial has its artifact and waits for a lane."""
        return self.state is TrialState.COMPILED

    @property
    def known_us(self) -> float | None:
        """The latency, if the config was measured before and only lacks another figure."""
        return None if self.known is None else self.known.latency_us

    def record_place(self, kind: Literal["compile", "lane"], place: str, began: float) -> None:
        """Record the slot (``compile``) or the ``lane`` in which the trial was, and since when (Unix s)."""
        self.spans[kind] = place, round(began, 3)

    def has_excuse(self, event: TrialEvent) -> bool:
        """Return whether the trial may be excused once more for this reason."""
        return self.story.count(event) < EXCUSES[event]

    def make_move(self, event: TrialEvent) -> None:
        """Make the move of ``event``.

        Raises:
            IllegalMove: The table has no such move; the trial is unchanged.
        """
        moves = MOVES.get(self.state, {})
        if event not in moves:
            story = " → ".join(self.story) or "no events"
            raise IllegalMove(f"a trial that is {self.state} does not admit {event} (its story: {story})")
        self.story.append(event)
        self.state = moves[event]

    def end_trial(self, verdict: Verdict) -> TrialResult:
        """Make the move to an outcome; return the verdict's result with this outcome and the attempt's facts and costs.

        Raises:
            IllegalMove: As :meth:`make_move`.
        """
        self.make_move(verdict.event)
        outcome = self.outcome
        assert outcome is not None, f"{verdict.event} ends no trial"
        is_failed = outcome is not Outcome.MEASURED
        return replace(
            verdict.result,
            outcome=outcome,
            compile_s=self.compile_s,
            lane_s=self.lane_s,
            artifact=self.unit.key or None,
        ).add_details(
            build=self.unit.build or None,
            facts=self.facts or None,
            content=self.content or None,
            read=self.read or verdict.result.detail.read,
            open_s=round(self.open_s, 3) if self.open_s else None,
            spans=tuple((kind, *span) for kind, span in self.spans.items()) or None,
            story=tuple(map(str, self.story)) if is_failed or EXCUSES.keys() & self.story else None,
            stdout=(verdict.output.stdout or None) if is_failed else None,
            stderr=(verdict.output.stderr or None) if is_failed else None,
        )
