"""Lifecycle of a trial: every state, every event, every legal move, in one table without IO.

::

    asked ──▶ compiling ──▶ compiled ──▶ measuring ──▶ (an outcome)
      ▲        │               ▲            │
      ├─ killed┘               ├─ contended ┤          measured ──▶ refining ──▶ measured, or worse
      └── artifact found ──────┤   killed ──┤
                               ├─ given back┤
                               ├─ doubted ──┤
                               ├ needs cores┘
                               └─ known (its twin was measured) ──▶ measured

An event that the table does not allow changes nothing and raises :class:`~ktuned.model.errors.IllegalMove`, whose
message contains the trial's history.
"""

from __future__ import annotations

from enum import StrEnum

from ktuned.model.errors import IllegalMove
from ktuned.model.values import Outcome


class State(StrEnum):
    """State of a trial before it has its outcome, and while a finalist is measured again."""

    ASKED = "asked"
    COMPILING = "compiling"
    COMPILED = "compiled"
    MEASURING = "measuring"
    REFINING = "refining"


class Event(StrEnum):
    """Events of a trial."""

    KNOWN = "known"
    REFUSED = "refused"
    ARTIFACT_FOUND = "artifact_found"
    COMPILE_STARTED = "compile_started"
    COMPILE_DONE = "compile_done"
    COMPILE_FAILED = "compile_failed"
    COMPILE_EXPIRED = "compile_expired"
    ARTIFACT_DAMAGED = "artifact_damaged"
    LANE_TAKEN = "lane_taken"
    TIMED = "timed"
    STOPPED_EARLY = "stopped_early"
    WRONG = "wrong"
    RAISED = "raised"
    DIED = "died"
    EXPIRED = "expired"
    DISTURBED = "disturbed"
    DISTURBED_AGAIN = "disturbed_again"
    NEEDS_CORES = "needs_cores"
    CANNOT_RUN = "cannot_run"
    KILLED = "killed"
    GIVEN_BACK = "given_back"
    DOUBTED = "doubted"
    CHOSEN = "chosen"
    CANCELLED = "cancelled"
    DAEMON_DIED = "daemon_died"


Place = State | Outcome

_ON_LANE: dict[Event, Place] = {
    Event.WRONG: Outcome.MISMATCH,
    Event.RAISED: Outcome.LAUNCH_ERROR,
    Event.DIED: Outcome.CRASHED,
    Event.EXPIRED: Outcome.HUNG,
    Event.CANNOT_RUN: Outcome.UNSUPPORTED,
}
_STOPPED: dict[Event, Place] = {
    Event.CANCELLED: Outcome.CANCELLED,
    Event.DAEMON_DIED: Outcome.INTERRUPTED,
}

MOVES: dict[Place, dict[Event, Place]] = {
    State.ASKED: {
        Event.REFUSED: Outcome.COMPILE_ERROR,
        Event.CANNOT_RUN: Outcome.UNSUPPORTED,
        Event.ARTIFACT_FOUND: State.COMPILED,
        Event.COMPILE_STARTED: State.COMPILING,
        **_STOPPED,
    },
    State.COMPILING: {
        Event.COMPILE_DONE: State.COMPILED,
        Event.COMPILE_FAILED: Outcome.COMPILE_ERROR,
        Event.COMPILE_EXPIRED: Outcome.COMPILE_TIMEOUT,
        Event.CANNOT_RUN: Outcome.UNSUPPORTED,
        Event.DIED: Outcome.CRASHED,
        Event.KILLED: State.ASKED,
        **_STOPPED,
    },
    State.COMPILED: {
        Event.LANE_TAKEN: State.MEASURING,
        Event.KNOWN: Outcome.MEASURED,
        Event.ARTIFACT_DAMAGED: State.ASKED,
        **_STOPPED,
    },
    State.MEASURING: {
        Event.TIMED: Outcome.MEASURED,
        Event.STOPPED_EARLY: Outcome.SLOWER,
        Event.DISTURBED: State.COMPILED,
        Event.DISTURBED_AGAIN: Outcome.CONTENDED,
        Event.NEEDS_CORES: State.COMPILED,
        Event.ARTIFACT_DAMAGED: State.ASKED,
        Event.KILLED: State.COMPILED,
        Event.GIVEN_BACK: State.COMPILED,
        Event.DOUBTED: State.COMPILED,
        **_ON_LANE,
        **_STOPPED,
    },
    Outcome.MEASURED: {
        Event.CHOSEN: State.REFINING,
    },
    # A finalist keeps its first latency if its second measurement is only stopped or disturbed.
    State.REFINING: {
        Event.TIMED: Outcome.MEASURED,
        Event.DISTURBED: Outcome.MEASURED,
        Event.CANCELLED: Outcome.MEASURED,
        Event.DAEMON_DIED: Outcome.MEASURED,
        **_ON_LANE,
    },
}

_RESULT_CHANGES = "when its digest, its toolchain or its driver changes"
_BUILD_CHANGES = "when its digest or its toolchain changes"
_QUARANTINED = (
    "not before its digest, its toolchain or its driver changes: it is quarantined (`ktuned forget` lifts that)"
)
_NEXT_JOB = "by the next job: this says nothing about the config"

TRIED_AGAIN: dict[Outcome, str] = {
    Outcome.MEASURED: _RESULT_CHANGES,
    Outcome.SLOWER: _RESULT_CHANGES,
    Outcome.COMPILE_ERROR: _BUILD_CHANGES,
    Outcome.COMPILE_TIMEOUT: f"when the compile deadline is raised, or {_BUILD_CHANGES}",
    Outcome.UNSUPPORTED: "on another device",
    Outcome.MISMATCH: _BUILD_CHANGES,
    Outcome.LAUNCH_ERROR: _RESULT_CHANGES,
    Outcome.CRASHED: _QUARANTINED,
    Outcome.HUNG: _QUARANTINED,
    Outcome.CONTENDED: _NEXT_JOB,
    Outcome.CANCELLED: _NEXT_JOB,
    Outcome.INTERRUPTED: _NEXT_JOB,
}
"""Time of the next try of a config with this outcome, as the end of a sentence."""


class Life:
    """One trial's place in the table, and its events so far."""

    __slots__ = ("place", "story")

    def __init__(self, place: Place = State.ASKED) -> None:
        self.place: Place = place
        self.story: list[Event] = []

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, or ``None`` while the trial is running."""
        return self.place if isinstance(self.place, Outcome) else None

    @property
    def is_compiled(self) -> bool:
        """True while the trial has its artifact, and waits for a lane."""
        return self.place is State.COMPILED

    def tell(self, event: Event) -> Place:
        """Make the move of ``event`` and return the new place.

        Raises:
            IllegalMove: the table has no such move; the trial is unchanged.
        """
        moves = MOVES.get(self.place, {})
        if event not in moves:
            story = " → ".join(self.story) or "no events"
            raise IllegalMove(f"a trial that is {self.place} does not admit {event} (its story: {story})")
        self.story.append(event)
        self.place = moves[event]
        return self.place
