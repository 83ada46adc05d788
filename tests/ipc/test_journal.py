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
def journals() -> Iterator[tuple[Journal, Journal]]:
    """The daemon's and the worker's side of a journal whose first request has begun."""
    daemon = Journal.create()
    worker = Journal(os.dup(daemon.descriptor))
    daemon.begin_request(1, Phase.LOAD)
    worker.follow_request()
    yield daemon, worker
    daemon.close()
    worker.close()


def list_phases(journal: Journal) -> list[Phase]:
    """Return the phases that were entered."""
    return [entry.phase for entry in journal.read_progress()[0]]


def test_phases_are_found_in_their_order(journals: tuple[Journal, Journal]) -> None:
    """The first is the daemon's; of many, the latest are kept."""
    daemon, worker = journals
    assert list_phases(daemon) == [Phase.LOAD]
    for phase in (Phase.FIRST_LAUNCH, Phase.CHECK, Phase.TIMING):
        worker.enter_phase(phase)
    assert list_phases(daemon) == [Phase.LOAD, Phase.FIRST_LAUNCH, Phase.CHECK, Phase.TIMING]
    for _ in range(100):
        worker.enter_phase(Phase.CHECK)
        worker.enter_phase(Phase.TIMING)
    assert list_phases(daemon)[-3:] == [Phase.TIMING, Phase.CHECK, Phase.TIMING]


def test_a_new_request_begins_with_an_empty_journal(journals: tuple[Journal, Journal]) -> None:
    """Entries of the last request are void, before and after the worker follows to the new one."""
    daemon, worker = journals
    worker.enter_phase(Phase.TIMING)
    worker.hold_item(b"item")
    daemon.begin_request(2, Phase.COMPILE)
    assert list_phases(daemon) == [Phase.COMPILE]
    assert daemon.read_progress()[1].frames == b""
    worker.enter_phase(Phase.TIMING)
    assert list_phases(daemon) == [Phase.COMPILE]
    worker.follow_request()
    worker.enter_phase(Phase.CHECK)
    assert list_phases(daemon) == [Phase.COMPILE, Phase.CHECK]


def test_held_items_are_there_until_they_are_sent(journals: tuple[Journal, Journal]) -> None:
    """The first item's number is kept, so that an item that did arrive is not counted twice."""
    daemon, worker = journals
    worker.hold_item(b"one")
    worker.hold_item(b"two")
    held = daemon.read_progress()[1]
    assert (held.first, held.frames) == (0, b"onetwo")
    worker.record_sent(2)
    assert daemon.read_progress()[1].frames == b""
    worker.hold_item(b"three")
    held = daemon.read_progress()[1]
    assert (held.first, held.frames) == (2, b"three")


@given(garbage=st.binary(max_size=2000), offset=st.integers(0, 1500), length=st.integers(0, 1500))
def test_nonsense_in_the_journal_reads_as_empty(garbage: bytes, offset: int, length: int) -> None:
    """Any code in the worker may overwrite or truncate the journal; reading it is safe."""
    journal = Journal.create()
    try:
        journal.begin_request(1, Phase.LOAD)
        journal.hold_item(b"item")
        os.pwrite(journal.descriptor, garbage, offset)
        os.ftruncate(journal.descriptor, length)
        entries, held = journal.read_progress()
        assert all(isinstance(entry.phase, Phase) for entry in entries)
        assert len(held.frames) <= 2000
    finally:
        journal.close()
