"""The worker's end of its pipe: what is written when, which decides how often the daemon is woken."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

import msgspec
import pytest

from ktuned.ipc import Journal, frames, replies
from ktuned.model import Fault
from ktuned.model.keys import Phase
from ktuned.worker.reply import Reply, TimedPhases


@dataclass
class Pipe:
    """A reply's pipe and journal, as the daemon sees them."""

    reply: Reply
    journal: Journal
    read_fd: int

    def arrived(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived since."""
        try:
            data = os.read(self.read_fd, 1 << 20)
        except BlockingIOError:
            return []
        return [*map(msgspec.msgpack.decode, frames.Decoder().feed(data))]

    def held(self) -> list[dict[str, Any]]:
        """Return what the journal has of what was not sent."""
        return [*map(msgspec.msgpack.decode, frames.Decoder().feed(self.journal.read_progress()[1].frames))]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Return a reply at the beginning of a request."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    journal = Journal.create()
    journal.begin_request(1, Phase.LOAD)
    worker = Journal(os.dup(journal.descriptor))
    reply = Reply(write_fd, worker)
    reply.begin_request(Phase.LOAD)
    yield Pipe(reply, journal, read_fd)
    for descriptor in (read_fd, write_fd):
        os.close(descriptor)
    journal.close()
    worker.close()


def number(value: int) -> replies.Ready:
    """Return an item that can be recognised."""
    return replies.Ready(value)


def items(messages: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of the items among messages."""
    return [message["item"]["pid"] for message in messages if "item" in message]


def test_a_phase_is_no_message(pipe: Pipe) -> None:
    """It is in the journal."""
    pipe.reply.begin_phase(Phase.CHECK)
    assert pipe.arrived() == []
    assert pipe.journal.read_progress()[0][-1].phase is Phase.CHECK


def test_held_items_come_with_the_reply_at_once(pipe: Pipe) -> None:
    """In their order; the journal has them until then."""
    for value in range(3):
        pipe.reply.send_item(number(value), hold_s=60.0)
    assert pipe.arrived() == []
    assert items(pipe.held()) == [0, 1, 2]
    pipe.reply.send_answer(replies.Done(number(3)))
    arrived = pipe.arrived()
    assert items(arrived) == [0, 1, 2]
    assert arrived[-1] == {"done": {"pid": 3}}
    assert pipe.held() == []


def test_an_item_that_is_due_takes_the_held_ones_along(pipe: Pipe) -> None:
    """What is sent is not in the journal any more, and what is held next has its number."""
    pipe.reply.send_item(number(0), hold_s=60.0)
    pipe.reply.send_item(number(1), hold_s=0.0)
    assert items(pipe.arrived()) == [0, 1]
    pipe.reply.send_item(number(2), hold_s=60.0)
    assert pipe.journal.read_progress()[1].first == 2
    assert items(pipe.held()) == [2]


def test_large_items_are_not_held(pipe: Pipe) -> None:
    """The journal is bounded."""
    for _ in range(15):
        pipe.reply.send_item(Fault("x" * 2000, ""), hold_s=60.0)
    assert pipe.arrived() == []
    for _ in range(10):
        pipe.reply.send_item(Fault("x" * 2000, ""), hold_s=60.0)
    assert len(pipe.arrived()) > 15


def test_an_item_begins_its_phase_again(pipe: Pipe) -> None:
    """The next one has the whole deadline."""
    pipe.reply.begin_phase(Phase.COMPILE)
    (*_, before) = pipe.journal.read_progress()[0]
    pipe.reply.send_item(number(0), hold_s=60.0)
    (*_, after) = pipe.journal.read_progress()[0]
    assert after.phase is Phase.COMPILE
    assert after.at > before.at


def test_a_new_request_has_no_items_of_the_last(pipe: Pipe) -> None:
    """One that failed has left what it held to its failure's message."""
    pipe.reply.send_item(number(0), hold_s=60.0)
    pipe.reply.send_answer(replies.Failed(replies.Failure("raised", "no")))
    assert items(pipe.arrived()) == [0]
    pipe.journal.begin_request(2, Phase.LOAD)
    pipe.reply.begin_request(Phase.LOAD)
    pipe.reply.send_item(number(5), hold_s=60.0)
    assert pipe.journal.read_progress()[1].first == 0


def test_phases_are_timed_as_they_pass(pipe: Pipe) -> None:
    """Each is passed on; the seconds of one that came again are added up, and no time is in two phases or in none."""
    began = monotonic()
    phases = TimedPhases(pipe.reply, Phase.LOAD)
    for phase in (Phase.CHECK, Phase.TIMING, Phase.CHECK):
        phases.begin_phase(phase)
    spent = phases.sum_phase_seconds()
    assert list(spent) == ["load", "check", "timing"]
    assert 0 < sum(spent.values()) <= monotonic() - began + 1e-5


def test_held_items_are_sent_before_the_end_of_computing(pipe: Pipe) -> None:
    """The daemon learns of it at once; and the journal counts no item more than there are."""
    pipe.reply.send_item(number(1), hold_s=60.0)
    pipe.reply.announce_end_of_computing()
    assert pipe.arrived() == [{"item": {"pid": 1}}, {"computed": True}]
    pipe.reply.send_item(number(2), hold_s=60.0)
    assert (pipe.arrived(), pipe.held()) == ([], [{"item": {"pid": 2}}])
    assert pipe.journal.read_progress()[1].first == 1
