"""The machine of one key: every sequence of events, for every policy, and whole calls of a key at random.

What the machine says is checked against the rules on the module's page after each event.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import product
from typing import TypeVar, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktuned.dropin.keyed_call import KeyedCall
from ktuned.dropin.launch_machine import (
    Answer,
    Answered,
    Ask,
    Called,
    Event,
    Follow,
    Followed,
    Instruction,
    Launch,
    LaunchMachine,
    LeaveAlone,
    Load,
    Loaded,
    Mode,
    Policy,
    Recorded,
    Standing,
    Unfit,
    Upgrade,
    Wait,
)
from ktuned.dropin.recorded_call import RecordedCall
from ktuned.dropin.winners_file import WinnersFile

T = TypeVar("T")

CONFIGS = ("first", "second")
STRANGER = "a config that the pruning has taken away"


def test_exact_numerics_take_over_without_a_daemon() -> None:
    """The framework's own tuning may choose a config with other bits."""
    assert Policy(numerics="exact").takes_over
    with pytest.raises(ValueError, match="numerics='same'"):
        Policy(numerics="same")


POLICIES = [
    *(Policy(*choices) for choices in product(get_args(Mode), get_args(Upgrade), (False, True))),
    *(Policy(*choices, numerics="exact") for choices in product(get_args(Mode), get_args(Upgrade))),
]

ANSWERS = (
    None,
    Answer(),
    Answer(is_open=True),
    Answer(message="all configs failed"),
    Answer("second"),
    Answer("second", is_open=True),
    Answer("second", is_final=True, artifact="/artifact"),
    Answer("first", is_final=True),
    Answer("second", is_final=True, is_open=True),
    Answer(STRANGER, is_final=True),
)

LATER = tuple(answer for answer in ANSWERS if answer is not None)

CALL, CAPTURE = Called(), Called(is_capturing=True)

EVENTS: tuple[Event, ...] = (
    CALL,
    CAPTURE,
    *(Answered(answer) for answer in ANSWERS),
    Recorded(),
    Recorded("its argument is a table of pointers"),
    *(Followed(answer) for answer in LATER),
    *(Loaded(config) for config in (*CONFIGS, STRANGER)),
    *(Unfit(config) for config in CONFIGS),
)
"""All that can happen, sensible or not: a host may be late, or answer twice."""


class Observed:
    """A machine, and the rules that must hold of all that it says."""

    def __init__(self, policy: Policy) -> None:
        self.machine = LaunchMachine(policy, CONFIGS)
        self.policy = policy
        self.waits = 0
        self.changes = 0
        self.was_left = False
        self.has_winner = False

    @property
    def state(self) -> tuple[object, ...]:
        """All that what comes next depends on."""
        return *vars(self.machine).values(), *(value for name, value in vars(self).items() if name != "machine")

    def copy(self) -> "Observed":
        """Return another one in the same state."""
        made = copy(self)
        made.machine = copy(self.machine)
        return made

    def handle(self, event: Event) -> list[Instruction]:
        """Give it an event, and check what it says."""
        before = self.machine.standing, self.machine.config
        said = self.machine.handle(event)
        self._check(event, before, said)
        return said

    def _check(self, event: Event, before: tuple[Standing, str], said: Sequence[Instruction]) -> None:
        standing, config = before
        if isinstance(event, Answered) and (answer := event.answer) is not None:
            self.has_winner |= answer.is_final and not answer.is_open and answer.config in CONFIGS
        for instruction in said:
            match instruction:
                case Launch() | Load():
                    assert instruction.config in CONFIGS, "a config outside of the list"
                case Wait():
                    self.waits += 1
        assert self.waits <= (1 if self.policy.mode == "wait" else 0)
        if event == CAPTURE:
            assert all(isinstance(one, Launch) and one.once for one in said)
            assert (self.machine.standing, self.machine.config) == before, "decided while a graph is captured"
        else:
            assert not any(isinstance(one, Launch) and one.once for one in said)
        if standing is not Standing.NEW and any(isinstance(one, Load) for one in said):
            assert self.machine.is_followed, "a later winner is loaded that nobody wants"
        if standing is Standing.NEW and self.machine.standing in (Standing.FIRST, Standing.KNOWN):
            # A winner that is unfit here is the winner all the same: it is not tuned again.
            is_left = any(isinstance(one, LeaveAlone) for one in said)
            assert self.machine._is_recorded or self.has_winner or is_left, "nobody is asked to tune it"
        self._check_change(standing, config, said)
        if self.was_left:
            assert not said
            assert self.machine.standing is Standing.FRAMEWORK
        self.was_left = self.machine.standing is Standing.FRAMEWORK
        is_said = any(isinstance(one, LeaveAlone) for one in said)
        if self.policy.is_exact:
            assert not self.was_left, "the framework may launch a config with other bits"
            assert not is_said or said[1:] == [Launch(CONFIGS[0])]
        else:
            assert is_said == (self.was_left and standing is not Standing.FRAMEWORK)
        is_decided = self.machine.standing in (Standing.FIRST, Standing.KNOWN, Standing.WINNER)
        assert is_decided == (self.machine.config in CONFIGS and not self.was_left)
        if self.machine.is_settled:
            assert not self.machine.is_followed
        if self.policy.upgrade == "never":
            assert not self.machine.is_followed
            assert not any(isinstance(one, Follow) for one in said)

    def _check_change(self, standing: Standing, config: str, said: Sequence[Instruction]) -> None:
        """Check how often what calls launch was exchanged, and that every exchange is told."""
        told = [one.config for one in said if isinstance(one, Launch) and not one.once]
        assert len(told) <= 1
        assert not told or told == [self.machine.config]
        if standing is not Standing.NEW and self.machine.config != config:
            assert told, "changed without a launch"
            # More than two are as two.
            self.changes = min(self.changes + 1, 2)
        allowed = {"never": 0, "once": 1}.get(self.policy.upgrade)
        assert allowed is None or self.changes <= allowed


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_rules_hold_in_every_sequence(policy: Policy) -> None:
    """Of any length: each state that can be reached is left by each event, until no state is new."""
    begin = Observed(policy)
    known, new = {begin.state}, [begin]
    while new:
        from_here = new.pop()
        for event in EVENTS:
            observed = from_here.copy()
            observed.handle(event)
            if observed.state not in known:
                known.add(observed.state)
                new.append(observed)
    reached = {standing for standing in Standing if any(standing in state for state in known)}
    assert {*Standing} - reached == ({Standing.FRAMEWORK} if policy.is_exact else set())


class World(KeyedCall):
    """A key whose answers a test draws, and that checks when it is asked for what."""

    framework = "Triton"

    def __init__(self, policy: Policy, answers: Sequence[Answer | None], fits: Sequence[bool], fault: str) -> None:
        self.machine = LaunchMachine(policy, CONFIGS)
        self.is_capturing = False
        self.said: list[str] = []
        self.launched: list[str] = []
        self._name = "a key"
        self._answers = iter(answers)
        self._fits = iter(fits)
        self._fault = fault

    def call(self, *, is_capturing: bool = False) -> str | None:
        """Make a call; return the config that it launches, or ``None`` for the framework's."""
        self.is_capturing = is_capturing
        once = len(self.launched)
        if self.machine.standing is Standing.NEW:
            self.handle(Called(is_capturing))
        if self.machine.standing is Standing.FRAMEWORK:
            return None
        if is_capturing and len(self.launched) > once:
            return self.launched.pop()
        return self.launched[-1]

    def hear(self, answer: Answer) -> None:
        """Report a later answer, as long as one is wanted."""
        if self.machine.is_followed:
            self.handle(Followed(answer))

    def ask_daemon(self) -> Answer | None:
        """Return the next answer."""
        return self._note("ask", next(self._answers, None))

    def record_call(self) -> str:
        """Record, or say why not."""
        return self._note("record", self._fault)

    def await_tuning(self) -> Answer | None:
        """Return the next answer, with no tuning open."""
        return self._note("wait", next(self._answers, None))

    def follow_key(self) -> None:
        """Follow."""
        self._note("follow", None)

    def pack_call(self) -> tuple[RecordedCall, Mapping[str, bytes]]:
        """No call is packed, because none is recorded."""
        raise NotImplementedError

    def load_config(self, config: str, answer: Answer | None) -> bool:
        """Load a config, or not."""
        return self._note("load", next(self._fits, True))

    def launch_config(self, config: str, *, once: bool) -> None:
        """Note what is launched from now on."""
        assert once == self.is_capturing
        self.launched.append(config)

    def _note(self, what: str, result: T) -> T:
        assert not self.is_capturing, f"{what} while a graph is captured"
        self.said.append(what)
        return result


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.lists(st.sampled_from(ANSWERS), min_size=2, max_size=2),
    st.lists(st.booleans(), max_size=6),
    st.sampled_from(["", "it has hooks"]),
    st.lists(st.sampled_from([*LATER, "call", "capture"]), max_size=12),
)
def test_a_call_always_has_something_to_launch(
    policy: Policy, answers: list[Answer | None], fits: list[bool], fault: str, later: list[Answer | str]
) -> None:
    """A config of the list, or the framework's own tuning; it is asked, recorded and waited for once at most."""
    world = World(policy, answers, fits, fault)
    for happening in ["capture", "call", *later]:
        if isinstance(happening, Answer):
            world.is_capturing = False
            world.hear(happening)
        else:
            launched = world.call(is_capturing=happening == "capture")
            assert (launched is None) == (world.machine.standing is Standing.FRAMEWORK)
            assert launched in (None, *CONFIGS)
    for what in ("ask", "record", "wait"):
        assert world.said.count(what) <= 1


@pytest.mark.parametrize(
    ("policy", "answers", "fits", "launched"),
    [
        (Policy(), [Answer("second", is_final=True)], [], "second"),
        (Policy(), [Answer()], [], "first"),
        (Policy(), [Answer("second")], [], "second"),
        (Policy(), [Answer("second")], [False], "first"),
        (Policy(), [Answer(STRANGER, is_final=True)], [], "first"),
        (Policy(), [Answer()], [False, True], "second"),
        (Policy(), [Answer()], [False, False], None),
        (Policy(), [None], [], None),
        (Policy(takes_over=True), [None], [], "first"),
        (Policy("wait"), [Answer(), Answer("second", is_final=True)], [], "second"),
        (Policy("wait"), [Answer("second", is_final=True, is_open=True), Answer("first", is_final=True)], [], "first"),
        (Policy("wait"), [Answer(), Answer(message="failed")], [], "first"),
        (Policy("wait"), [Answer(), None], [], None),
        (Policy("wait", takes_over=True), [Answer(), None], [], "first"),
    ],
)
def test_the_first_call_launches_what_its_answer_allows(
    policy: Policy, answers: list[Answer | None], fits: list[bool], launched: str | None
) -> None:
    """The best that is known and can be launched here; ``None`` is the framework's own tuning."""
    assert World(policy, answers, fits, "").call() == launched


class TestWinnersFile:
    """With the winners of a file, nothing is asked, recorded or followed."""

    @pytest.mark.parametrize(
        ("fixed", "fits", "launched"),
        [
            ("second", [], "second"),
            (STRANGER, [], STRANGER),
            (STRANGER, [False], "first"),
            (None, [], "first"),
            (None, [False], "second"),
            ("second", [False, False], None),
        ],
    )
    def test_the_first_call_decides(self, fixed: str | None, fits: list[bool], launched: str | None) -> None:
        """The file's config, or the first that can be launched; later answers are not wanted."""
        world = World(Policy("wait", "always", winners=WinnersFile("w", [])), [], fits, "")
        world.machine.fixed = None if fixed is None else Answer(fixed, is_final=True)
        assert world.call() == launched
        assert {*world.said} == {"load"}
        assert world.machine.is_settled
        assert (world.machine.standing is Standing.WINNER) == (launched == fixed)
        world.hear(Answer("first", is_final=True))
        assert world.call() == launched

    def test_a_captured_graph_has_the_files_config(self) -> None:
        """It keeps what it has captured."""
        world = World(Policy(winners=WinnersFile("w", [])), [], [], "")
        world.machine.fixed = Answer("second", is_final=True)
        assert world.call(is_capturing=True) == "second"
        assert world.machine.standing is Standing.NEW


def test_a_winner_that_cannot_be_loaded_changes_nothing() -> None:
    """What runs goes on running."""
    world = World(Policy(), [Answer()], [True, False], "")
    assert world.call() == "first"
    world.hear(Answer("second", is_final=True))
    assert (world.call(), world.machine.is_settled) == ("first", True)


def test_an_answer_is_handed_over() -> None:
    """With the config that it is of, and with no other."""
    machine = LaunchMachine(Policy(), CONFIGS)
    machine.handle(CALL)
    answer = Answer("second", True, artifact="/a")
    assert machine.handle(Answered(answer)) == [Load("second", answer)]
    assert machine.handle(Unfit("second")) == [Load("first")]


def test_an_unknown_policy_is_refused() -> None:
    """With what there is to choose."""
    with pytest.raises(ValueError, match="mode='now': give one of 'background', 'wait'"):
        Policy("now")
    with pytest.raises(ValueError, match="upgrade='twice': give one of 'once', 'never', 'always'"):
        Policy(upgrade="twice")


def test_the_first_call_of_a_key_asks_the_daemon() -> None:
    """And nothing else."""
    assert LaunchMachine(Policy(), CONFIGS).handle(CALL) == [Ask()]
