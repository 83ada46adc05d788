"""The phases that a daemon follows, as the worker's journal has them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import cast

import pytest

from ktuned.fleet.phases import Phases
from ktuned.ipc import Journal
from ktuned.model.keys import Phase
from tests.fleet.test_deadline_timer import Loop

DEADLINES: dict[str, float] = {Phase.LOAD: 60.0, Phase.FIRST_LAUNCH: 2.0, Phase.CHECK: 30.0}


class Followed:
    """A worker's phases, on a clock that the test turns."""

    def __init__(self) -> None:
        self.loop = Loop()
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
        """End both sides."""
        self.phases.close()
        self.worker.close()


@pytest.fixture
def followed() -> Iterator[Followed]:
    """Return a request that is in its first phase."""
    made = Followed()
    yield made
    made.close()


def test_each_phase_has_its_own_deadline(followed: Followed) -> None:
    """The one that hangs is the one that is named, at its deadline to the moment."""
    followed.loop.turn_to(155.0)
    followed.worker.enter_phase(Phase.FIRST_LAUNCH)
    followed.loop.turn_to(156.0)
    followed.worker.enter_phase(Phase.CHECK)
    followed.loop.turn_to(300.0)
    assert followed.over_at == [86.0]
    assert (followed.phases.current, followed.phases.deadline_s) == (Phase.CHECK, 30.0)


def test_a_phase_that_begins_again_has_the_whole_deadline(followed: Followed) -> None:
    """Each of several configs does, whatever the ones before it took."""
    for place in range(10):
        followed.loop.turn_to(100.0 + 50.0 * (place + 1))
        followed.worker.enter_phase(Phase.LOAD)
    followed.loop.turn_to(1000.0)
    assert followed.over_at == [560.0]


def test_the_seconds_of_each_phase_are_known(followed: Followed) -> None:
    """Those of one that was entered twice are added."""
    for seconds, phase in ((1.0, Phase.CHECK), (2.0, Phase.LOAD), (4.0, Phase.CHECK)):
        followed.loop.turn_to(followed.loop.now + seconds)
        followed.worker.enter_phase(phase)
    followed.loop.turn_to(followed.loop.now + 8.0)
    assert followed.phases.read_durations() == {"load": 5.0, "check": 10.0}


@pytest.mark.parametrize("phase", [Phase.TIMING, Phase.LOAD])
@pytest.mark.parametrize("skew_s", [1e9, -1e9])
def test_nonsense_in_a_journal_gives_no_time(phase: Phase, skew_s: float) -> None:
    """Phases without a deadline, from the future or from before the request: the one that was known goes on."""
    followed = Followed()
    false = Journal(os.dup(followed.worker.descriptor), clock=lambda: followed.loop.now + skew_s)
    false.follow_request()
    false.enter_phase(phase)
    if phase is Phase.TIMING:
        followed.worker.enter_phase(phase)
    followed.loop.turn_to(300.0)
    assert followed.over_at == [60.0]
    false.close()
    followed.close()


def test_what_was_known_stays_known_after_the_end() -> None:
    """A worker that has died is asked in which phase."""
    followed = Followed()
    followed.worker.enter_phase(Phase.CHECK)
    followed.close()
    assert followed.phases.current is Phase.CHECK
    assert followed.phases.read_durations().keys() == {"load", "check"}
