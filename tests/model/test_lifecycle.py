"""The table of a trial's legal moves: every place with every event."""

import itertools

import pytest

from ktuned.model.errors import IllegalMove
from ktuned.model.lifecycle import MOVES, TRIED_AGAIN, Event, Life, Place, State
from ktuned.model.values import RETRIED_BY_NEXT_JOB, Outcome

PLACES: list[Place] = [*State, *Outcome]
STOPS = {Event.CANCELLED, Event.DAEMON_DIED}


def stories() -> dict[Place, list[Event]]:
    """Return for each place that can be reached one shortest way to it."""
    found: dict[Place, list[Event]] = {State.ASKED: []}
    waiting: list[Place] = [State.ASKED]
    while waiting:
        place = waiting.pop(0)
        for event, then in MOVES.get(place, {}).items():
            if then not in found:
                found[then] = [*found[place], event]
                waiting.append(then)
    return found


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_move_is_made_as_the_table_says_or_not_at_all(place: Place) -> None:
    """A legal event moves and is remembered; an illegal one changes nothing and reports place, event and story."""
    before = [Event.COMPILE_STARTED, Event.COMPILE_DONE]
    for event in Event:
        life = Life(place)
        life.story = list(before)
        if event in MOVES.get(place, {}):
            assert life.tell(event) is life.place is MOVES[place][event]
            assert life.story == [*before, event]
            continue
        with pytest.raises(IllegalMove) as caught:
            life.tell(event)
        assert (life.place, life.story) == (place, before)
        assert caught.value.message == (
            f"a trial that is {place} does not admit {event} (its story: compile_started → compile_done)"
        )


def test_a_trial_without_a_story_says_so() -> None:
    """The message reads well before anything has happened, too."""
    with pytest.raises(IllegalMove, match=r"asked does not admit timed \(its story: no events\)"):
        Life().tell(Event.TIMED)


def test_every_outcome_says_when_it_is_tried_again() -> None:
    """What says nothing of a config is tried by the next job; what is quarantined says how that is lifted."""
    assert set(TRIED_AGAIN) == set(Outcome)
    assert {outcome for outcome, words in TRIED_AGAIN.items() if "next job" in words} == RETRIED_BY_NEXT_JOB
    assert {outcome for outcome, words in TRIED_AGAIN.items() if "forget" in words} == {Outcome.HUNG, Outcome.CRASHED}


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_can_be_reached(outcome: Outcome) -> None:
    """Each outcome of the contract is where some story ends, and a life that lives it has that outcome."""
    life = Life()
    for event in stories()[outcome]:
        assert life.outcome is None
        life.tell(event)
    assert life.outcome is outcome


def test_nothing_is_out_of_reach() -> None:
    """No state and no outcome stands in the table for nothing."""
    assert set(stories()) == set(PLACES)


def test_every_event_is_of_use() -> None:
    """Each event is legal somewhere, ``known`` excepted: what the store knows never becomes a trial."""
    assert {event for moves in MOVES.values() for event in moves} == set(Event)


def test_a_trial_under_way_can_always_be_stopped() -> None:
    """Cancelling and the daemon's death are legal in every state, and end it."""
    for state, event in itertools.product(State, STOPS):
        assert isinstance(MOVES[state][event], Outcome)


def test_an_outcome_is_final() -> None:
    """A trial ends in exactly one outcome; only what was measured may be chosen to be measured again."""
    assert {place for place in MOVES if isinstance(place, Outcome)} == {Outcome.MEASURED}
    assert MOVES[Outcome.MEASURED] == {Event.CHOSEN: State.REFINING}


@pytest.mark.parametrize("event", [Event.DISTURBED, *sorted(STOPS)], ids=str)
def test_a_disturbed_finalist_keeps_its_figure(event: Event) -> None:
    """What was measured once stays measured when the second measuring was only stopped or disturbed."""
    assert MOVES[State.REFINING][event] is Outcome.MEASURED


def test_a_disturbed_trial_comes_round_again() -> None:
    """A contended trial is measured again without a compile, as often as the lane asks, until it is reported enough."""
    life = Life()
    for event in (Event.ARTIFACT_FOUND, *[Event.LANE_TAKEN, Event.DISTURBED] * 3, Event.LANE_TAKEN):
        life.tell(event)
    assert life.tell(Event.DISTURBED_AGAIN) is Outcome.CONTENDED


def test_a_damaged_artifact_is_made_anew() -> None:
    """A trial whose artifact turns out damaged on the lane is compiled once more and can then be measured."""
    life = Life()
    for event in (
        Event.ARTIFACT_FOUND,
        Event.LANE_TAKEN,
        Event.ARTIFACT_DAMAGED,
        Event.COMPILE_STARTED,
        Event.COMPILE_DONE,
        Event.LANE_TAKEN,
    ):
        life.tell(event)
    assert life.tell(Event.TIMED) is Outcome.MEASURED


def test_an_artifact_that_is_removed_is_made_anew() -> None:
    """While it waits for its next try on a lane."""
    life = Life()
    for event in (Event.ARTIFACT_FOUND, Event.LANE_TAKEN, Event.DISTURBED, Event.ARTIFACT_DAMAGED):
        assert life.is_compiled is (event in (Event.LANE_TAKEN, Event.ARTIFACT_DAMAGED))
        life.tell(event)
    assert life.tell(Event.COMPILE_STARTED) is State.COMPILING


def test_a_killed_trial_comes_round_again() -> None:
    """A trial whose worker someone killed, compiling or measuring, goes back to where it can be tried once more."""
    life = Life()
    for event in (Event.COMPILE_STARTED, Event.KILLED, Event.COMPILE_STARTED, Event.COMPILE_DONE):
        life.tell(event)
    for event in (Event.LANE_TAKEN, Event.KILLED, Event.LANE_TAKEN):
        life.tell(event)
    assert life.tell(Event.TIMED) is Outcome.MEASURED
