"""The journal of a worker's request: phases and held items, as the daemon finds them at any moment."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.ipc import Journal
from ktuned.model.keys import Phase


@pytest.fixture
def sides() -> Iterator[tuple[Journal, Journal]]:
    """Return the daemon's and the worker's side of a journal, with its first request begun."""
    daemon = Journal.create()
    worker = Journal(os.dup(daemon.descriptor))
    daemon.begin_request(1, Phase.LOAD)
    worker.follow_request()
    yield daemon, worker
    daemon.close()
    worker.close()


def phases(journal: Journal) -> list[Phase]:
    """Return the phases that were entered."""
    return [entered.phase for entered in journal.read_progress()[0]]


def test_phases_are_found_in_their_order(sides: tuple[Journal, Journal]) -> None:
    """From the one that the daemon begins with; of many the latest are there."""
    daemon, worker = sides
    assert phases(daemon) == [Phase.LOAD]
    for phase in (Phase.FIRST_LAUNCH, Phase.CHECK, Phase.TIMING):
        worker.enter_phase(phase)
    assert phases(daemon) == [Phase.LOAD, Phase.FIRST_LAUNCH, Phase.CHECK, Phase.TIMING]
    for _ in range(100):
        worker.enter_phase(Phase.CHECK)
        worker.enter_phase(Phase.TIMING)
    assert phases(daemon)[-3:] == [Phase.TIMING, Phase.CHECK, Phase.TIMING]


def test_a_new_request_begins_with_an_empty_journal(sides: tuple[Journal, Journal]) -> None:
    """What was written for the last one is void, before and after the worker has come to the new one."""
    daemon, worker = sides
    worker.enter_phase(Phase.TIMING)
    worker.hold_item(b"item")
    daemon.begin_request(2, Phase.COMPILE)
    assert phases(daemon) == [Phase.COMPILE]
    assert daemon.read_progress()[1].frames == b""
    worker.enter_phase(Phase.TIMING)
    assert phases(daemon) == [Phase.COMPILE]
    worker.follow_request()
    worker.enter_phase(Phase.CHECK)
    assert phases(daemon) == [Phase.COMPILE, Phase.CHECK]


def test_held_items_are_there_until_they_are_sent(sides: tuple[Journal, Journal]) -> None:
    """With the number of the first, so that one that arrived nevertheless is not counted twice."""
    daemon, worker = sides
    worker.hold_item(b"one")
    worker.hold_item(b"two")
    held = daemon.read_progress()[1]
    assert (held.first, held.frames) == (0, b"onetwo")
    worker.record_sent(2)
    assert daemon.read_progress()[1].frames == b""
    worker.hold_item(b"three")
    held = daemon.read_progress()[1]
    assert (held.first, held.frames) == (2, b"three")


@given(noise=st.binary(max_size=2000), at=st.integers(0, 1500), end=st.integers(0, 1500))
def test_nonsense_in_the_journal_reads_as_empty(noise: bytes, at: int, end: int) -> None:
    """Whatever code in the worker writes there, or cuts off, reading it is safe."""
    journal = Journal.create()
    try:
        journal.begin_request(1, Phase.LOAD)
        journal.hold_item(b"item")
        os.pwrite(journal.descriptor, noise, at)
        os.ftruncate(journal.descriptor, end)
        entered, held = journal.read_progress()
        assert all(isinstance(one.phase, Phase) for one in entered)
        assert len(held.frames) <= 2000
    finally:
        journal.close()
