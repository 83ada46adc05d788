"""The bridge's end of the socket: calls come in their order to a service that is being imported."""

import asyncio
import threading
from typing import Any, ClassVar

import pytest

from ktuned.bridge.call_server import CallServer
from ktuned.bridge.messages import Call, encode_call
from ktuned.bridge.service import Send, Service
from ktuned.ipc import replies
from tests.bridge.services.ktuned_echo import Note

pytestmark = pytest.mark.anyio


class Notes(Service):
    """Keeps texts in the order in which they come."""

    calls: ClassVar = (Note,)

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def carry_out(self, call: Call[Any, Any], send: Send) -> replies.Empty:
        """Keep a text."""
        assert isinstance(call, Note)
        self.texts.append(call.text)
        return replies.Empty()


@pytest.mark.parametrize("steps", range(6))
async def test_a_post_overtakes_none_that_waits_for_the_import(steps: int) -> None:
    """It may come so many steps of the loop after the import's end."""
    may_end, notes = threading.Event(), Notes()

    def load(name: str) -> Service:
        assert may_end.wait(30)
        return notes

    server = CallServer(load)
    for text in ("one", "two"):
        server.data_received(encode_call(Note(text)))
    await asyncio.sleep(0)
    (loading,) = server._services.values()
    may_end.set()
    async with asyncio.timeout(30):
        while not loading.done():  # noqa: ASYNC110 - the loop's steps are what is tested
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        server.data_received(encode_call(Note("three")))
        while len(notes.texts) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert notes.texts == ["one", "two", "three"]
    await server.close()
