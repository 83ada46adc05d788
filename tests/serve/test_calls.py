"""Questions of applications about their functions' keys."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from ktuned.model import CallKey
from ktuned.protocol import CallsParams, KeyAnswer, Status
from ktuned.serve import CallMethods
from ktuned.serve.method import Peer


class FakePeer(Peer):
    """A connection."""

    is_writable = True

    def send(self, data: bytes) -> None:
        """Send nothing."""


class FakeAdoptions:
    """Notes who waits for a key."""

    def __init__(self) -> None:
        self.waiters: set[Hashable] = set()

    def find_answer(self, key: CallKey, *, waiter: Hashable | None) -> KeyAnswer:
        """Note the waiter."""
        self.waiters.add(waiter)
        return KeyAnswer(Status.UNKNOWN)

    def add_process(self, pid: int) -> None:
        """Note nothing."""


def test_a_program_that_waits_is_counted_once() -> None:
    """It asks many times, over several connections; a program without a process id counts by its connection."""
    fake = FakeAdoptions()
    methods = CallMethods(cast(Any, fake), cast(Any, fake))
    key = CallKey("f", {}, None)
    for _ in range(3):
        methods.handle_calls(CallsParams([key], waits=True, beside=7), FakePeer())
        methods.handle_calls(CallsParams([key], waits=True, beside=8), FakePeer())
    assert fake.waiters == {7, 8}
    peer = FakePeer()
    methods.handle_calls(CallsParams([key], waits=True), peer)
    methods.handle_calls(CallsParams([key]), peer)
    assert fake.waiters == {7, 8, peer, None}
