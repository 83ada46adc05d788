"""The trial machine: events in, instructions out. It decides what happens to each trial. No IO.

*Theory.* A trial is one config, tried once in one context. It is compiled, measured, and perhaps measured again as a
finalist, and it ends exactly once. User code, compilers and devices fail in every way there is, and a worker that dies
does not say whose fault that was. Each failure therefore raises one question: does it say something about the config?
If so, the trial has its outcome, and the config is not tried again before it changes. If not, it must not be held
against the config, which is tried again. This module answers the question, and nothing else in ktuned does.

*Moves.* :data:`MOVES` has every legal move::

    asked ──▶ compiling ──▶ compiled ──▶ measuring ──▶ (an outcome)
      ▲ ◀─retried─┘            ▲ ◀─retried─┘
      │                        │                      measured ──▶ finalist ──▶ refining ──▶ measured, or worse
      └── artifact found ──────┤                                      ▲ ◀─retried─┘
                               └─ known (a twin has its outcome) ──▶ measured, slower, wrong

A move that the table does not have changes nothing and raises :class:`~ktuned.model.errors.IllegalMove`, whose message
tells the trial's story.

*Requests.* A trial is with a worker only as part of a request, which may hold several trials. The worker reports on one
config after the other, and then leaves the request. The machine is told everything that happens:
``CompilerTook`` or ``LaneTook``, ``ConfigCompiled`` or ``ConfigMeasured`` for each config, ``CompilerLeft`` or
``LaneLeft`` with the error, if there is one, and with the trials that have no report. After its answer each trial of
the request either has its end, or is part of an instruction that says where it is tried again.

*Three answers.* Each failure leads, for each trial that it concerns, to exactly one of these:

=========  =========================================================  =================================================
verb       meaning                                                    instruction
=========  =========================================================  =================================================
retry      this try says nothing about the config                     ``Compile``, ``Measure``, ``TryDevice``
end        the trial has its outcome                                  ``End``
end job    the failure concerns the whole job (its file, the disk)    ``EndJob``
=========  =========================================================  =================================================

*Evidence.* A config is blamed only for a failure while it alone was at work:

- On a lane, and in a batch that a compiler works through one by one, the first config without a report was at work. The
  configs behind it had not begun, and are spared.
- A group that a compiler builds as one program proves nothing about its members. It is halved until the config at fault
  is alone. Each failure makes the request smaller, uses up an excuse, or ends a trial, so this always terminates.
- A GPU's worker loads the next config while it times one. If it dies during that load, the loaded config is to blame.
  If it hangs, either may be at fault, because a load waits for the device: both are set apart, and run alone.

*Excuses.* Even the first config without a report may be innocent. Each of these reasons is accepted a limited number of
times in a trial's life (:data:`EXCUSES`); the trial's story counts them.

==============  ====  =============================================================================================
excuse          most  the reason, and why it ends
==============  ====  =============================================================================================
killed          2     a user sent SIGKILL to the worker or to a compiler below it, or the kernel did because memory ran
                      out. Then the trial ends *unproven*: see below
worker damaged  1     the config before it, in the same worker, had written outside its tensors. The second try has a
                      new worker. A missed deadline is never excused this way: checking it would cost a second full
                      deadline
crowded         2     the GPU had no memory left for the launch, which other programs may hold. A config that finds none
                      in every try needs too much
device sick     1     the GPU fails its canary afterwards, and another GPU can take the retry (otherwise the job would
                      never end). If a second GPU fails after it, too, the config is the cause
disturbed       2     other programs used the device, so the figure is not the config's. If the disturbance comes from
                      the application being tuned for, the last try is not checked for disturbance, because that
                      application may run for days
==============  ====  =============================================================================================

*Unproven.* A trial whose last failure says nothing about its config (it was killed, or a compiler or loader reports
that the machine lacked something) ends as ``interrupted``, with the reason. The next job tries the config again. A
config that ends so in :data:`~ktuned.tuning.evidence.MOST_TRIES` jobs is the cause. Failures for want of time, memory
or a mount that allows code are outcomes, which stand until more is granted (:mod:`ktuned.tuning.evidence`).

The excuses are considered in this order: killed, worker damaged, crowded, device sick. The last costs a worker and a
canary.
Failures of the infrastructure (a lost host, a damaged artifact, cores that a config was not known to need) need no
excuse and are not counted: the next try corrects them.

*Finalists* already have a figure. They keep it if a round says nothing about them; a disturbed round is not repeated.
Evidence against a finalist ends its trial with a new outcome, so it can no longer be the winner.

*Why it is not simpler.* Blaming whatever ran when a worker died would quarantine a good config for each ``kill -9``,
each memory-hungry neighbour and each broken GPU, and nobody would notice that the winner is missing. Retrying
everything would try a hanging config for ever, at a deadline each time. Running each config in a request of its own
would make the evidence plain, but costs more than everything else that the daemon does for a trial.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from itertools import takewhile
from typing import Any, Literal, assert_never

import msgspec
from msgspec.structs import replace

from ktuned.fleet import (
    KILLS_EXCUSED,
    DeadlineExpired,
    HostLost,
    Output,
    RequestFailed,
    WorkerDied,
    is_outside_kill,
)
from ktuned.ipc import replies, requests
from ktuned.model import (
    NO_DETAIL,
    Compiled,
    Config,
    FailureFacts,
    FrozenStruct,
    IllegalMove,
    Outcome,
    Phase,
    TrialDetail,
    TrialResult,
)
from ktuned.protocol import Trial
from ktuned.store import DISK_ERRORS
from ktuned.tuning.evidence import MOST_TRIES, lacked_something, was_killed

CONTENDED_TRIES = 3
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
    UNPROVEN = "unproven"
    CANCELLED = "cancelled"
    DAEMON_DIED = "daemon_died"


EXCUSES: Mapping[TrialEvent, int] = {
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
    # It failed for a reason that says nothing about the config.
    TrialEvent.UNPROVEN: Outcome.INTERRUPTED,
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

MOVES: dict[Place, _Moves] = {
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


class Verdict(FrozenStruct):
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
        inputs: The digest of the problem's declared inputs, if the kernel file has made none of them itself.
        content: Identifies its measurement, once a lane has its data. Empty, like ``files``, if other code than the
            artifact's decides what runs.
        read: The digest of the files and variables that the kernel's data depended on when it was measured.
        known: The trial as the store has it, if it was measured before and only lacks a figure.
        tries: In how many earlier jobs it ended without evidence about the config.
        expected_s: The time of its compile in an earlier state of the kernel; 0 if unknown.
        lowered: The translated function, until it is compiled; only for backends that lower.
        compile_s, lane_s, open_s: Seconds for its compile, on a lane, and for opening the lane before it.
        spans: For ``compile`` and ``lane``, the last place where the trial was, and since when (Unix s).
    """

    trial: int
    config: Config
    unit: requests.UnitRef
    state: Place = TrialState.ASKED
    story: list[TrialEvent] = []
    cores: int | None = None
    declares_cores: bool = False
    accused: Verdict | None = None
    facts: Mapping[str, Any] = {}
    files: str = ""
    inputs: str = ""
    content: str = ""
    read: str = ""
    known: Trial | None = None
    tries: int = 0
    expected_s: float = 0.0
    lowered: bytes | None = None
    compile_s: float = 0.0
    lane_s: float = 0.0
    open_s: float = 0.0
    spans: dict[str, tuple[str, float]] = {}

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
        detail, output = verdict.result.detail, verdict.output if is_failed else Output()
        failure = NO_DETAIL.failure
        if is_failed or EXCUSES.keys() & self.story:
            story = tuple(map(str, self.story))
            failure = replace(detail.failure, story=story, stdout=output.stdout, stderr=output.stderr)
        return replace(
            verdict.result,
            outcome=outcome,
            compile_s=self.compile_s,
            lane_s=self.lane_s,
            artifact=self.unit.key or None,
            detail=replace(
                detail,
                compiled=Compiled(self.unit.build, self.facts, self.content, self.inputs),
                profile=replace(
                    detail.profile,
                    read=self.read or detail.profile.read,
                    open_s=round(self.open_s, 3) or 0,
                    spans=tuple((kind, *span) for kind, span in self.spans.items()),
                ),
                failure=failure,
            ),
        )


# Events

Failure = WorkerDied | DeadlineExpired | RequestFailed
"""The ways in which a request fails."""


class NotBuilt(FrozenStruct):
    """The kernel function gave no Build for a config."""

    attempt: Attempt
    proposal: replies.Proposal


class ArtifactFound(FrozenStruct):
    """A trial's artifact exists already."""

    attempt: Attempt


class TwinFound(FrozenStruct):
    """A trial with an outcome has the same machine code, arguments and data: its outcome is reused."""

    attempt: Attempt
    twin: Trial


class CompilerTook(FrozenStruct):
    """A compiler has taken a request with these trials."""

    attempts: Sequence[Attempt]


class ConfigCompiled(FrozenStruct):
    """A compiler is done with a config, which has its artifact unless ``outcome`` says why not."""

    attempt: Attempt
    outcome: Outcome | None = None
    message: str = ""


class CompilerLeft(FrozenStruct):
    """A compiler's request is over; ``attempts`` are its trials without a report."""

    attempts: Sequence[Attempt]
    error: Failure | None = None


class LaneFacts(FrozenStruct):
    """What the machine must know about a lane when it takes a request.

    Attributes:
        is_cpu: The lane measures on a CPU.
        has_stand_in: Another lane of the job works.
        is_doubtful: The previous config may have damaged the worker.
    """

    is_cpu: bool
    has_stand_in: bool = False
    is_doubtful: bool = False


class LaneTook(FrozenStruct):
    """A lane has taken a request with these trials."""

    attempts: Sequence[Attempt]


class ConfigMeasured(FrozenStruct):
    """A lane's worker has measured a config or found out why it cannot; ``output`` is what the config printed."""

    attempt: Attempt
    result: TrialResult
    output: Output
    lane: LaneFacts


class LaneLeft(FrozenStruct):
    """A lane's request is over; ``attempts`` are its trials without a report."""

    attempts: Sequence[Attempt]
    lane: LaneFacts
    error: Failure | None = None


class DeviceTried(FrozenStruct):
    """The device was opened again after a trial had failed on it; ``is_sick`` if that did not work."""

    attempt: Attempt
    is_sick: bool


class ArtifactGone(FrozenStruct):
    """A compiled trial's artifact was removed before a lane took it."""

    attempt: Attempt


class Stopped(FrozenStruct):
    """The job ends before the trial has an outcome."""

    attempt: Attempt


Event = (
    NotBuilt
    | ArtifactFound
    | TwinFound
    | CompilerTook
    | ConfigCompiled
    | CompilerLeft
    | LaneTook
    | ConfigMeasured
    | LaneLeft
    | DeviceTried
    | ArtifactGone
    | Stopped
)

# Instructions


class Compile(FrozenStruct):
    """Compile these trials in one request. If any of their artifacts exist, they are damaged."""

    attempts: Sequence[Attempt]


class Measure(FrozenStruct):
    """Measure these trials on a lane: with ``at_once`` ahead of all trials that wait for it, otherwise behind them."""

    attempts: Sequence[Attempt]
    at_once: bool


class TryDevice(FrozenStruct):
    """Open the lane again, and report whether its device is sick."""

    attempt: Attempt


class End(FrozenStruct):
    """The trial has its outcome: record the result."""

    attempt: Attempt
    result: TrialResult


class EndJob(FrozenStruct):
    """No config of the job can be tried: the error ends the job."""

    error: Failure


Instruction = Compile | Measure | TryDevice | End | EndJob


class LanePlan(FrozenStruct):
    """The next request to a lane.

    Attributes:
        count: The number of waiting trials that it takes.
        cores: The number of cores on which they are timed.
        finds_cores: The first launch must show whether these cores are enough.
    """

    count: int
    cores: int
    finds_cores: bool


_EVENT_OF_OUTCOME: dict[Outcome, TrialEvent] = {
    Outcome.MEASURED: TrialEvent.TIMED,
    Outcome.SLOWER: TrialEvent.STOPPED_EARLY,
    Outcome.MISMATCH: TrialEvent.WRONG,
    Outcome.LAUNCH_ERROR: TrialEvent.RAISED,
    Outcome.UNSUPPORTED: TrialEvent.CANNOT_RUN,
    # A referee outlives the config that it judges.
    Outcome.CRASHED: TrialEvent.DIED,
    Outcome.HUNG: TrialEvent.EXPIRED,
}
"""The event of each outcome that a worker reports; any other outcome is a disturbance."""

EVENT_OF_CARRIED_OUTCOME: dict[Outcome, TrialEvent] = {
    Outcome.MEASURED: TrialEvent.KNOWN,
    Outcome.SLOWER: TrialEvent.KNOWN_SLOWER,
    Outcome.MISMATCH: TrialEvent.KNOWN_WRONG,
}
"""Outcomes that a trial takes over from its twin. Crashes and hangs are not: they may have been the device's fault."""

_MAY_BE_DAMAGE = frozenset({TrialEvent.WRONG, TrialEvent.RAISED, TrialEvent.DIED})
"""Events that a damaged worker may have caused."""

_MAY_BE_DEVICE = frozenset({TrialEvent.RAISED, TrialEvent.DIED, TrialEvent.EXPIRED})
"""Events that a broken GPU may have caused."""


class TrialMachine(msgspec.Struct, eq=False):
    """The rules for one job's trials. The trials' state is in their :class:`~ktuned.tuning.trial_machine.Attempt`.

    Args:
        default: The declared default, which has each request for itself, because it is measured in full.
        suspects: The trials that a worker had in hand when a daemon died. Each has its requests for itself.
        compiles_one_by_one: Whether a compiler takes the configs of a request one after the other, and not as a group.
    """

    default: Config | None = None
    suspects: Collection[int] = ()
    compiles_one_by_one: bool = True
    _instructions: list[Instruction] = []
    """What follows from the event that is being handled."""

    def handle(self, event: Event) -> list[Instruction]:
        """Handle an event; return the instructions that follow from it, in order.

        Raises:
            IllegalMove: The event makes no sense for the present state of a trial; that trial has not moved.
        """
        self._instructions = []
        match event:
            case NotBuilt(attempt, proposal):
                is_refused = proposal.outcome is not Outcome.UNSUPPORTED
                move = TrialEvent.REFUSED if is_refused else TrialEvent.CANNOT_RUN
                self._end_trial(attempt, _make_failure(move, proposal.message, FailureFacts(Phase.BUILD)))
            case ArtifactFound(attempt):
                attempt.make_move(TrialEvent.ARTIFACT_FOUND)
            case TwinFound(attempt, twin):
                self._end_trial(attempt, _carry_over_outcome(twin))
            case CompilerTook(attempts):
                _move_all(attempts, TrialEvent.COMPILE_STARTED)
            case ConfigCompiled():
                self._judge_compiled(event)
            case CompilerLeft(attempts, error):
                _require_state(attempts, TrialState.COMPILING)
                self._leave_compiler(attempts, error)
            case LaneTook(attempts):
                _move_all(attempts, TrialEvent.LANE_TAKEN)
            case ConfigMeasured(attempt):
                _require_state([attempt], TrialState.MEASURING, TrialState.REFINING)
                self._judge_measured(event)
            case LaneLeft(attempts, lane, error):
                _require_state(attempts, TrialState.MEASURING, TrialState.REFINING)
                self._leave_lane(attempts, lane, error)
            case DeviceTried(attempt, is_sick):
                self._judge_accused(attempt, is_sick=is_sick)
            case ArtifactGone(attempt):
                attempt.make_move(TrialEvent.ARTIFACT_DAMAGED)
                self._add(Compile([attempt]))
            case Stopped(attempt):
                self._end_trial(attempt, _make_failure(TrialEvent.CANCELLED, "stopped before it had an outcome"))
            case _:
                assert_never(event)
        return self._instructions

    def _add(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    def _end_trial(self, attempt: Attempt, verdict: Verdict, *, is_unproven: bool = False) -> None:
        """End a trial. If the failure ``is_unproven``, it says nothing about the config, unless each job ends so."""
        if is_unproven and attempt.tries + 1 < MOST_TRIES:
            result = verdict.result.add_facts("failure", tries=attempt.tries + 1)
            verdict = Verdict(TrialEvent.UNPROVEN, result, verdict.output)
        self._add(End(attempt, attempt.end_trial(verdict)))

    # Queries

    def plan_request(self, waiting: Sequence[Attempt], lane: LaneFacts) -> LanePlan:
        """Return how many of the waiting trials a lane's next request takes, in their order.

        The default has a request for itself, and so has a suspect, and a trial that was set apart or disturbed. A
        doubtful lane gets a single trial. On a CPU, trials share a request only if they need the same number of cores.
        """
        first = waiting[0]

        def may_join(attempt: Attempt) -> bool:
            return not self._travels_alone(attempt) and (not lane.is_cpu or _is_timed_as(attempt, first))

        count = 1 if lane.is_doubtful else max(1, sum(1 for _ in takewhile(may_join, waiting)))
        # Even a GPU's lane needs one core, for the host's side of its launches.
        return LanePlan(count, first.cores or 1, finds_cores=lane.is_cpu and not first.declares_cores)

    def is_default(self, attempt: Attempt) -> bool:
        """Return whether a trial tries the declared default."""
        return attempt.config == self.default

    def may_be_disturbed(self, attempt: Attempt, *, has_application: bool) -> bool:
        """Return whether a trial's next try is checked for disturbance; beside an application, the last try is not."""
        return not has_application or attempt.has_excuse(TrialEvent.DISTURBED)

    def _travels_alone(self, attempt: Attempt) -> bool:
        was_apart = TrialEvent.SET_APART in attempt.story or TrialEvent.DISTURBED in attempt.story
        return was_apart or self.is_default(attempt) or attempt.trial in self.suspects

    # Compiling

    def _judge_compiled(self, compiled: ConfigCompiled) -> None:
        if compiled.outcome is None:
            compiled.attempt.make_move(TrialEvent.COMPILE_DONE)
            return
        # The worker lives, but somebody killed the compiler below it.
        is_killed = was_killed(compiled.message)
        if is_killed and compiled.attempt.has_excuse(TrialEvent.KILLED):
            compiled.attempt.make_move(TrialEvent.KILLED)
            self._add(Compile([compiled.attempt]))
            return
        is_refused = compiled.outcome is not Outcome.UNSUPPORTED
        event = TrialEvent.COMPILE_FAILED if is_refused else TrialEvent.CANNOT_RUN
        verdict = _make_failure(event, compiled.message, FailureFacts(Phase.COMPILE))
        self._end_trial(compiled.attempt, verdict, is_unproven=is_killed or lacked_something(compiled.message))

    def _leave_compiler(self, attempts: Sequence[Attempt], error: Failure | None) -> None:
        if error is not None and not isinstance(error, HostLost) and _is_fault_of_job(error):
            self._add(EndJob(error))
        elif not attempts:
            return
        elif error is None:
            message = "the backend reported nothing about this config"
            silent = _make_failure(TrialEvent.COMPILE_FAILED, message, FailureFacts(Phase.COMPILE))
            for attempt in attempts:
                self._end_trial(attempt, silent)
        elif isinstance(error, HostLost):
            _move_all(attempts, TrialEvent.HOST_LOST)
            self._add(Compile(attempts))
        else:
            self._blame_compiled(attempts, error)

    def _blame_compiled(self, attempts: Sequence[Attempt], error: Failure) -> None:
        # In a batch the first config was at work; in a group any may be at fault.
        at_work = attempts[:1] if self.compiles_one_by_one else attempts
        others = attempts[len(at_work) :]
        _move_all(others, TrialEvent.SPARED)
        # Killed from outside: no config is to blame as long as each of them may use this excuse.
        if is_outside_kill(error) and all(attempt.has_excuse(TrialEvent.KILLED) for attempt in at_work):
            _move_all(at_work, TrialEvent.KILLED)
            self._add(Compile(attempts))
            return
        # A group proves nothing about its members: halve it.
        if len(at_work) > 1:
            _move_all(at_work, TrialEvent.SPARED)
            half = len(at_work) // 2
            self._add(Compile(at_work[:half]))
            self._add(Compile(at_work[half:]))
            return
        # A single config: it has its outcome.
        if isinstance(error, DeadlineExpired):
            at_work[0].compile_s += error.deadline_s
        verdict = _convict_config(error, TrialEvent.COMPILE_EXPIRED, TrialEvent.COMPILE_FAILED)
        self._end_trial(at_work[0], verdict, is_unproven=is_outside_kill(error))
        if others:
            self._add(Compile(others))

    # Measuring

    def _judge_measured(self, measured: ConfigMeasured) -> None:
        attempt, result = measured.attempt, measured.result
        is_finalist = attempt.state is TrialState.REFINING
        if is_finalist and result.outcome not in _EVENT_OF_OUTCOME:
            # A disturbed finalist keeps its figure.
            self._end_trial(attempt, _make_failure(TrialEvent.DISTURBED, result.message))
        # Without an outcome the config was not judged: it needs more cores, or its artifact was damaged.
        elif result.outcome is None and result.detail.profile.cores is not None:
            attempt.make_move(TrialEvent.NEEDS_CORES)
            attempt.cores = result.detail.profile.cores
            self._add(Measure([attempt], at_once=True))
        elif result.outcome is None:
            attempt.make_move(TrialEvent.ARTIFACT_DAMAGED)
            self._add(Compile([attempt]))
        elif result.outcome not in _EVENT_OF_OUTCOME and attempt.has_excuse(TrialEvent.DISTURBED):
            self._excuse_trial(attempt, TrialEvent.DISTURBED)
        else:
            known = (
                result if result.detail.profile.cores is not None else result.add_facts("profile", cores=attempt.cores)
            )
            event = _EVENT_OF_OUTCOME.get(result.outcome, TrialEvent.DISTURBED_AGAIN)
            verdict = Verdict(event, known, measured.output)
            is_load = event is TrialEvent.RAISED and result.detail.failure.phase == Phase.LOAD
            if is_load and lacked_something(result.message):
                self._end_trial(attempt, verdict, is_unproven=True)
            else:
                self._judge_verdict(attempt, verdict, measured.lane)

    def _leave_lane(self, attempts: Sequence[Attempt], lane: LaneFacts, error: Failure | None) -> None:
        if error is None:
            # The worker stopped before these configs, because the last one had left it in a doubtful state.
            _move_all(attempts, TrialEvent.SPARED)
            if attempts:
                self._add(Measure(attempts, at_once=True))
            return
        if _is_source_change(error):
            self._add(EndJob(error))
            return
        # A failed request has at least one trial without a report, because the last report ends the request. The first
        # of them was at work, unless the worker was also loading the next one.
        first, others = attempts[0], attempts[1:]
        if error.phase is Phase.LOAD_NEXT and others:
            # A hang may be the fault of either: both run alone from now on. A death is the fault of the loaded config.
            if isinstance(error, DeadlineExpired):
                _move_all(attempts[:2], TrialEvent.SET_APART)
                _move_all(attempts[2:], TrialEvent.SPARED)
                self._add(Measure(others, at_once=True))
                self._add(Measure([first], at_once=False))
                return
            self._excuse_trial(first, TrialEvent.SPARED)
            first, others = others[0], others[1:]
        # The others had not begun. The first is either excused or found guilty.
        _move_all(others, TrialEvent.SPARED)
        if others:
            self._add(Measure(others, at_once=True))
        if isinstance(error, HostLost):
            self._excuse_trial(first, TrialEvent.HOST_LOST)
        elif is_outside_kill(error) and first.has_excuse(TrialEvent.KILLED):
            self._excuse_trial(first, TrialEvent.KILLED)
        elif is_outside_kill(error):
            verdict = _convict_config(error, TrialEvent.EXPIRED, TrialEvent.RAISED)
            self._end_trial(first, verdict, is_unproven=True)
        else:
            self._judge_verdict(first, _convict_config(error, TrialEvent.EXPIRED, TrialEvent.RAISED), lane)

    def _judge_verdict(self, attempt: Attempt, verdict: Verdict, lane: LaneFacts) -> None:
        """End a trial by a verdict, unless the worker or the device may be the reason for it."""
        if lane.is_doubtful and verdict.event in _MAY_BE_DAMAGE and attempt.has_excuse(TrialEvent.WORKER_DAMAGED):
            self._excuse_trial(attempt, TrialEvent.WORKER_DAMAGED)
        elif not lane.is_cpu and _lacked_memory(verdict) and attempt.has_excuse(TrialEvent.CROWDED):
            self._excuse_trial(attempt, TrialEvent.CROWDED)
        elif (
            (not lane.is_cpu and lane.has_stand_in)
            and verdict.event in _MAY_BE_DEVICE
            and attempt.has_excuse(TrialEvent.DEVICE_SICK)
        ):
            attempt.accused = verdict
            self._add(TryDevice(attempt))
        else:
            self._end_trial(attempt, verdict)

    def _judge_accused(self, attempt: Attempt, *, is_sick: bool) -> None:
        verdict, attempt.accused = attempt.accused, None
        if verdict is None:
            raise IllegalMove(f"trial {attempt.trial} stands accused of nothing")
        if is_sick:
            self._excuse_trial(attempt, TrialEvent.DEVICE_SICK)
        else:
            self._end_trial(attempt, verdict)

    def _excuse_trial(self, attempt: Attempt, reason: TrialEvent) -> None:
        """Have a trial measured once more, behind the others."""
        attempt.make_move(reason)
        self._add(Measure([attempt], at_once=False))


def select_ends(instructions: Sequence[Instruction]) -> list[End]:
    """Return the ends of trials among instructions."""
    return [instruction for instruction in instructions if isinstance(instruction, End)]


def _require_state(attempts: Sequence[Attempt], *states: TrialState) -> None:
    """Refuse a report on trials that are not in one of ``states``, because its sender cannot have them.

    Raises:
        IllegalMove: A trial is in another state.
    """
    for attempt in attempts:
        if attempt.state not in states:
            raise IllegalMove(f"trial {attempt.trial} is {attempt.state}, and cannot be reported on from there")


def _move_all(attempts: Sequence[Attempt], event: TrialEvent) -> None:
    for attempt in attempts:
        attempt.make_move(event)


def _is_timed_as(attempt: Attempt, first: Attempt) -> bool:
    """Return whether two trials are timed on equally many cores, and both or neither of their configs declare them."""
    return (attempt.cores, attempt.declares_cores) == (first.cores, first.declares_cores)


def _lacked_memory(verdict: Verdict) -> bool:
    """Return whether a launch failed because it could not allocate memory, in the words of CUDA and torch."""
    return verdict.event is TrialEvent.RAISED and "out of memory" in verdict.result.message.lower()


def _is_source_change(error: Exception) -> bool:
    """Return whether a worker found the sources changed since they were inspected."""
    return isinstance(error, RequestFailed) and error.code == "source_changed"


def _is_fault_of_job(error: Failure) -> bool:
    """Return whether a compile failed for a reason that all configs share: the sources, the backend, or the disk."""
    cannot_import = error.phase is Phase.LOAD and not is_outside_kill(error)
    cannot_write = isinstance(error, RequestFailed) and error.errno in DISK_ERRORS
    return _is_source_change(error) or cannot_import or cannot_write


def _convict_config(error: Failure, expired: TrialEvent, refused: TrialEvent) -> Verdict:
    """Return the verdict on the config that was at work when a request failed."""
    event, facts = refused, FailureFacts(error.phase)
    if isinstance(error, WorkerDied):
        event, facts = TrialEvent.DIED, FailureFacts(facts.phase, error.signal or "")
    elif isinstance(error, DeadlineExpired):
        event, facts = expired, FailureFacts(facts.phase, after_s=error.deadline_s)
    return replace(_make_failure(event, error.message, facts), output=error.output)


def _make_failure(event: TrialEvent, message: str, facts: FailureFacts = NO_DETAIL.failure) -> Verdict:
    return Verdict(event, TrialResult(None, message=message, detail=TrialDetail(facts)))


def _carry_over_outcome(twin: Trial) -> Verdict:
    assert twin.outcome is not None
    message = "" if twin.outcome is Outcome.MEASURED else twin.message
    carried = replace(twin.result, message=message).add_facts(
        "timing", carried_from=twin.detail.timing.carried_from or twin.id
    )
    return Verdict(EVENT_OF_CARRIED_OUTCOME[twin.outcome], carried)
