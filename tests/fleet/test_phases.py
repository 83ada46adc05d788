"""The phases that a daemon follows, as written to the worker's journal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import cast

import pytest

from ktuned.fleet.phases import Phases
from ktuned.ipc import Journal
from ktuned.model.keys import Phase
from tests.fleet.test_deadline_timer import FakeLoop

DEADLINES: dict[str, float] = {Phase.LOAD: 60.0, Phase.FIRST_LAUNCH: 2.0, Phase.CHECK: 30.0}


class FollowedRequest:
    """A worker's phases, on a clock that the test moves."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.over_at: list[float] = []
        self._daemon = Journal.create(clock=self.loop.time)
        self.worker = Journal(os.dup(self._daemon.descriptor), clock=self.loop.time)
        self.phases = Phases(
            cast(asyncio.AbstractEventLoop, self.loop),
            self._daemon,
            on_expired=lambda: self.over_at.append(self.loop.now - 100.0),
            before_look=lambda: None,
            clock=self.loop.time,
        )
        self.phases.begin_request(1, Phase.LOAD, DEADLINES)
        self.worker.follow_request()

    def close(self) -> None:
        """Close both sides."""
        self.phases.close()
        self.worker.close()


@pytest.fixture
def followed_request() -> Iterator[FollowedRequest]:
    """A request that is in its first phase."""
    followed_request = FollowedRequest()
    yield followed_request
    followed_request.close()


def test_each_phase_has_its_own_deadline(followed_request: FollowedRequest) -> None:
    """The phase that hangs is named exactly at its deadline."""
    followed_request.loop.turn_to(155.0)
    followed_request.worker.enter_phase(Phase.FIRST_LAUNCH)
    followed_request.loop.turn_to(156.0)
    followed_request.worker.enter_phase(Phase.CHECK)
    followed_request.loop.turn_to(300.0)
    assert followed_request.over_at == [86.0]
    assert (followed_request.phases.current, followed_request.phases.deadline_s) == (Phase.CHECK, 30.0)


def test_a_pause_counts_for_no_phase(followed_request: FollowedRequest) -> None:
    """The deadline moves by the pause, also while it lasts; the next request has none of it."""
    followed_request.loop.turn_to(150.0)
    followed_request.phases.stop_clock()
    followed_request.loop.turn_to(1000.0)
    followed_request.phases.continue_clock()
    followed_request.loop.turn_to(1009.0)
    assert followed_request.over_at == []
    followed_request.loop.turn_to(2000.0)
    assert followed_request.over_at == [910.0]
    followed_request.phases.begin_request(2, Phase.LOAD, DEADLINES)
    followed_request.loop.turn_to(3000.0)
    assert followed_request.over_at == [910.0, 1960.0]


def test_a_phase_that_begins_again_has_the_whole_deadline(followed_request: FollowedRequest) -> None:
    """Each of several configs does, whatever the earlier ones took."""
    for index in range(10):
        followed_request.loop.turn_to(100.0 + 50.0 * (index + 1))
        followed_request.worker.enter_phase(Phase.LOAD)
    followed_request.loop.turn_to(1000.0)
    assert followed_request.over_at == [560.0]


def test_the_seconds_of_each_phase_are_known(followed_request: FollowedRequest) -> None:
    """The seconds of a repeated phase are added."""
    for seconds, phase in ((1.0, Phase.CHECK), (2.0, Phase.LOAD), (4.0, Phase.CHECK)):
        followed_request.loop.turn_to(followed_request.loop.now + seconds)
        followed_request.worker.enter_phase(phase)
    followed_request.loop.turn_to(followed_request.loop.now + 8.0)
    assert followed_request.phases.read_durations() == {"load": 5.0, "check": 10.0}


@pytest.mark.parametrize("phase", [Phase.TIMING, Phase.LOAD])
@pytest.mark.parametrize("skew_s", [1e9, -1e9])
def test_nonsense_in_a_journal_gives_no_time(phase: Phase, skew_s: float) -> None:
    """Phases without a deadline, from the future or from before the request are ignored."""
    followed_request = FollowedRequest()
    false_journal = Journal(
        os.dup(followed_request.worker.descriptor), clock=lambda: followed_request.loop.now + skew_s
    )
    false_journal.follow_request()
    false_journal.enter_phase(phase)
    if phase is Phase.TIMING:
        followed_request.worker.enter_phase(phase)
    followed_request.loop.turn_to(300.0)
    assert followed_request.over_at == [60.0]
    false_journal.close()
    followed_request.close()


def test_what_was_known_stays_known_after_the_end() -> None:
    """A dead worker's phase is still asked for."""
    followed_request = FollowedRequest()
    followed_request.worker.enter_phase(Phase.CHECK)
    followed_request.close()
    assert followed_request.phases.current is Phase.CHECK
    assert followed_request.phases.read_durations().keys() == {"load", "check"}
