"""The table of a job's legal moves: every place with every event."""

from __future__ import annotations

import pytest

from ktuned.model.errors import IllegalMove
from ktuned.protocol.jobs import JobState
from ktuned.scheduling.job_machine import MOVES, STATES, STOPPING, STORY_LENGTH, JobLife, JobMove, JobPlace

ENDED = {JobPlace.DONE, JobPlace.FAILED, JobPlace.CANCELLED, JobPlace.LEFT}


@pytest.mark.parametrize("place", JobPlace, ids=str)
def test_a_move_is_made_as_the_table_says_or_not_at_all(place: JobPlace) -> None:
    """A legal event moves and is remembered; an illegal one changes nothing and names job, place, event and story."""
    for event in JobMove:
        life = JobLife(7, place)
        life.story.extend([JobMove.STARTED, JobMove.PREEMPTED])
        if event in MOVES.get(place, {}):
            assert life.make_move(event) is life.place is MOVES[place][event]
            assert list(life.story) == [JobMove.STARTED, JobMove.PREEMPTED, event]
            continue
        with pytest.raises(IllegalMove) as caught:
            life.make_move(event)
        assert (life.place, list(life.story)) == (place, [JobMove.STARTED, JobMove.PREEMPTED])
        assert caught.value.message == f"job 7 is {place} and cannot be {event} (so far: started → preempted)"


def test_every_place_can_be_reached_and_every_event_is_of_use() -> None:
    """Nothing stands in the table for nothing."""
    reached = {JobPlace.WAITING}
    while more := {then for place in reached for then in MOVES.get(place, {}).values()} - reached:
        reached |= more
    assert reached == set(JobPlace) == set(STATES)
    assert {event for moves in MOVES.values() for event in moves} == set(JobMove)


def test_an_end_is_final() -> None:
    """What has ended takes no event; whatever has not can be cancelled."""
    assert set(JobPlace) - set(MOVES) == ENDED
    assert all(JobMove.CANCELLED in moves for moves in MOVES.values())


def test_a_job_with_a_pipeline_is_running_to_clients() -> None:
    """Until its pipeline has ended; a job that the daemon leaves is one of the next daemon's."""
    assert {place for place in JobPlace if STATES[place] is JobState.RUNNING} == {
        JobPlace.RUNNING,
        JobPlace.LEFT,
        *STOPPING,
    }


def test_a_story_is_bounded() -> None:
    """A job that is preempted again and again keeps its last moves."""
    life = JobLife(1)
    for _ in range(STORY_LENGTH):
        for event in (JobMove.STARTED, JobMove.PREEMPTED, JobMove.STOPPED):
            life.make_move(event)
    assert len(life.story) == STORY_LENGTH
    assert life.story[-1] is JobMove.STOPPED


def test_a_job_without_a_story_says_so() -> None:
    """The message reads well before anything has happened, too."""
    with pytest.raises(IllegalMove, match=r"job 3 is waiting and cannot be succeeded \(so far: nothing\)"):
        JobLife(3).make_move(JobMove.SUCCEEDED)
