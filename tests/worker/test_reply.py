"""The worker's end of its pipe: when messages are written, and so how often the daemon wakes up."""

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
class ReplyPipe:
    """A reply's pipe and journal, as the daemon sees them."""

    reply: Reply
    journal: Journal
    read_fd: int

    def read_messages(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived since the last call."""
        try:
            data = os.read(self.read_fd, 1 << 20)
        except BlockingIOError:
            return []
        return [*map(msgspec.msgpack.decode, frames.Decoder().feed(data))]

    def read_held_items(self) -> list[dict[str, Any]]:
        """Return the items that the journal holds because they were not sent yet."""
        return [*map(msgspec.msgpack.decode, frames.Decoder().feed(self.journal.read_progress()[1].frames))]


@pytest.fixture
def pipe() -> Iterator[ReplyPipe]:
    """A reply at the beginning of a request."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    journal = Journal.create()
    journal.begin_request(1, Phase.LOAD)
    worker = Journal(os.dup(journal.descriptor))
    reply = Reply(write_fd, worker)
    reply.begin_request(Phase.LOAD)
    yield ReplyPipe(reply, journal, read_fd)
    for descriptor in (read_fd, write_fd):
        os.close(descriptor)
    journal.close()
    worker.close()


def make_numbered_item(value: int) -> replies.Ready:
    return replies.Ready(value)


def read_item_numbers(messages: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of the items among messages."""
    return [message["item"]["pid"] for message in messages if "item" in message]


def test_a_phase_is_no_message(pipe: ReplyPipe) -> None:
    """A phase is only written to the journal."""
    pipe.reply.begin_phase(Phase.CHECK)
    assert pipe.read_messages() == []
    assert pipe.journal.read_progress()[0][-1].phase is Phase.CHECK


def test_held_items_come_with_the_reply_at_once(pipe: ReplyPipe) -> None:
    """They keep their order, and the journal holds them until then."""
    for value in range(3):
        pipe.reply.send_item(make_numbered_item(value), hold_s=60.0)
    assert pipe.read_messages() == []
    assert read_item_numbers(pipe.read_held_items()) == [0, 1, 2]
    pipe.reply.send_answer(replies.Done(make_numbered_item(3)))
    arrived = pipe.read_messages()
    assert read_item_numbers(arrived) == [0, 1, 2]
    assert arrived[-1] == {"done": {"pid": 3}}
    assert pipe.read_held_items() == []


def test_an_item_that_is_due_takes_the_held_ones_along(pipe: ReplyPipe) -> None:
    """Sent items leave the journal; the numbering of held items continues."""
    pipe.reply.send_item(make_numbered_item(0), hold_s=60.0)
    pipe.reply.send_item(make_numbered_item(1), hold_s=0.0)
    assert read_item_numbers(pipe.read_messages()) == [0, 1]
    pipe.reply.send_item(make_numbered_item(2), hold_s=60.0)
    assert pipe.journal.read_progress()[1].first == 2
    assert read_item_numbers(pipe.read_held_items()) == [2]


def test_large_items_are_not_held(pipe: ReplyPipe) -> None:
    """The journal is bounded."""
    for _ in range(15):
        pipe.reply.send_item(Fault("x" * 2000, ""), hold_s=60.0)
    assert pipe.read_messages() == []
    for _ in range(10):
        pipe.reply.send_item(Fault("x" * 2000, ""), hold_s=60.0)
    assert len(pipe.read_messages()) > 15


def test_an_item_begins_its_phase_again(pipe: ReplyPipe) -> None:
    """So the next item has the phase's whole deadline."""
    pipe.reply.begin_phase(Phase.COMPILE)
    (*_, before) = pipe.journal.read_progress()[0]
    pipe.reply.send_item(make_numbered_item(0), hold_s=60.0)
    (*_, after) = pipe.journal.read_progress()[0]
    assert after.phase is Phase.COMPILE
    assert after.at > before.at


def test_a_new_request_has_no_items_of_the_last(pipe: ReplyPipe) -> None:
    """A failed request sends its held items with its failure."""
    pipe.reply.send_item(make_numbered_item(0), hold_s=60.0)
    pipe.reply.send_answer(replies.Failed(replies.Failure("raised", "no")))
    assert read_item_numbers(pipe.read_messages()) == [0]
    pipe.journal.begin_request(2, Phase.LOAD)
    pipe.reply.begin_request(Phase.LOAD)
    pipe.reply.send_item(make_numbered_item(5), hold_s=60.0)
    assert pipe.journal.read_progress()[1].first == 0


def test_phases_are_timed_as_they_pass(pipe: ReplyPipe) -> None:
    """The seconds of a repeated phase are added up, and every moment belongs to exactly one phase."""
    start = monotonic()
    phases = TimedPhases(pipe.reply, Phase.LOAD)
    for phase in (Phase.CHECK, Phase.TIMING, Phase.CHECK):
        phases.begin_phase(phase)
    spent = phases.sum_phase_seconds()
    assert list(spent) == ["load", "check", "timing"]
    assert 0 < sum(spent.values()) <= monotonic() - start + 1e-5


def test_held_items_are_sent_before_the_end_of_computing(pipe: ReplyPipe) -> None:
    """The daemon learns of the end at once, and the journal's count of items stays right."""
    pipe.reply.send_item(make_numbered_item(1), hold_s=60.0)
    pipe.reply.announce_end_of_computing()
    assert pipe.read_messages() == [{"item": {"pid": 1}}, {"computed": True}]
    pipe.reply.send_item(make_numbered_item(2), hold_s=60.0)
    assert (pipe.read_messages(), pipe.read_held_items()) == ([], [{"item": {"pid": 2}}])
    assert pipe.journal.read_progress()[1].first == 1
