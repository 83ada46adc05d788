"""The table of a trial's legal moves: every place with every event."""

import itertools

import pytest

from ktuned.cli.trials import TRIED_AGAIN
from ktuned.ipc.requests import UnitRef
from ktuned.model.errors import IllegalMove
from ktuned.model.values import RETRIED_BY_NEXT_JOB, Outcome
from ktuned.tuning.trial_machine import EXCUSES, MOVES, Attempt, Place, TrialEvent, TrialState

PLACES: list[Place] = [*TrialState, *Outcome]
STOPS = {TrialEvent.CANCELLED, TrialEvent.DAEMON_DIED}


def make_trial_at(place: Place = TrialState.ASKED) -> Attempt:
    """Return a trial at a place, without a story."""
    return Attempt(1, {}, UnitRef("key", {}), place)


def find_shortest_stories() -> dict[Place, list[TrialEvent]]:
    """Return a shortest story to each place that can be reached."""
    stories: dict[Place, list[TrialEvent]] = {TrialState.ASKED: []}
    waiting: list[Place] = [TrialState.ASKED]
    while waiting:
        place = waiting.pop(0)
        for event, next_place in MOVES.get(place, {}).items():
            if next_place not in stories:
                stories[next_place] = [*stories[place], event]
                waiting.append(next_place)
    return stories


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_move_is_made_as_the_table_says_or_not_at_all(place: Place) -> None:
    """A legal event moves and is recorded; an illegal one changes nothing and names place, event and story."""
    story = [TrialEvent.COMPILE_STARTED, TrialEvent.COMPILE_DONE]
    for event in TrialEvent:
        attempt = make_trial_at(place)
        attempt.story = list(story)
        if event in MOVES.get(place, {}):
            attempt.make_move(event)
            assert attempt.state is MOVES[place][event]
            assert attempt.story == [*story, event]
            continue
        with pytest.raises(IllegalMove) as caught:
            attempt.make_move(event)
        assert (attempt.state, attempt.story) == (place, story)
        assert caught.value.message == (
            f"a trial that is {place} does not admit {event} (its story: compile_started → compile_done)"
        )


def test_an_illegal_first_move_says_that_there_were_no_events() -> None:
    with pytest.raises(IllegalMove, match=r"asked does not admit timed \(its story: no events\)"):
        make_trial_at().make_move(TrialEvent.TIMED)


def test_every_outcome_says_when_it_is_tried_again() -> None:
    """The next job retries outcomes that say nothing about a config; quarantined outcomes say how to lift that."""
    assert set(TRIED_AGAIN) == set(Outcome)
    assert {outcome for outcome, words in TRIED_AGAIN.items() if "next job" in words} == RETRIED_BY_NEXT_JOB
    assert {outcome for outcome, words in TRIED_AGAIN.items() if "forget" in words} == {Outcome.HUNG, Outcome.CRASHED}


def test_every_state_can_be_reached() -> None:
    """The table has no unused state or outcome."""
    assert set(find_shortest_stories()) == set(PLACES)


def test_every_event_is_in_the_table() -> None:
    assert {event for moves in MOVES.values() for event in moves} == set(TrialEvent)


def test_a_trial_under_way_can_always_be_stopped() -> None:
    """Cancelling and the daemon's death end a trial in every state."""
    for state, event in itertools.product(TrialState, STOPS):
        assert isinstance(MOVES[state][event], Outcome)


def test_an_outcome_is_final() -> None:
    """Only a measured trial may be chosen to be measured again."""
    assert {place for place in MOVES if isinstance(place, Outcome)} == {Outcome.MEASURED}
    assert MOVES[Outcome.MEASURED] == {TrialEvent.CHOSEN: TrialState.FINALIST}


@pytest.mark.parametrize("state", [TrialState.FINALIST, TrialState.REFINING])
def test_a_finalist_that_is_stopped_keeps_its_figure(state: TrialState) -> None:
    """Stopping the second measurement does not invalidate the first."""
    assert {MOVES[state][event] for event in STOPS} == {Outcome.MEASURED}


@pytest.mark.parametrize("event", EXCUSES)
def test_an_excuse_is_counted_by_the_story(event: TrialEvent) -> None:
    attempt = make_trial_at()
    for _ in range(EXCUSES[event]):
        assert attempt.has_excuse(event)
        attempt.story.append(event)
    assert not attempt.has_excuse(event)
