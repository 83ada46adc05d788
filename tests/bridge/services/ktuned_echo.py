"""A service of the bridge for its tests: echoes, streams, hangs and dies as it is asked to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from typing import Any, ClassVar, Never

import msgspec

from ktuned.bridge import Call, CallFailed, Send, Service
from ktuned.ipc import replies


class Said(msgspec.Struct, frozen=True):
    """What was said."""

    text: str
    data: bytes = b""


class Say(Call[Said, Said], frozen=True):
    """Send ``text`` back, after so many items of it."""

    operation: ClassVar = "echo.say"

    text: str
    items: int = 0
    data: bytes = b""


class Wait(Call[Said, Said], frozen=True):
    """Send an item, then wait until no one waits for the call any more."""

    operation: ClassVar = "echo.wait"


class Cancelled(Call[Said, Never], frozen=True):
    """Ask how many of :class:`Wait` were cancelled."""

    operation: ClassVar = "echo.cancelled"


class Do(Call[Said, Never], frozen=True):
    """``block`` the loop, ``exit``, ``raise``, ``refuse``, start a ``child`` that detaches, or return the ``notes``."""

    operation: ClassVar = "echo.do"

    what: str


class Note(Call[replies.Empty, Never], frozen=True):
    """Keep a text; refuse an empty one."""

    operation: ClassVar = "echo.note"

    text: str


class Echo(Service):
    """Does what it is asked to."""

    calls: ClassVar = (Say, Wait, Cancelled, Do, Note)

    def __init__(self) -> None:
        self._cancelled = 0
        self._notes: list[str] = []

    async def carry_out(self, call: Call[Any, Any], send: Send) -> msgspec.Struct:
        """Carry a call out."""
        match call:
            case Say():
                for _ in range(call.items):
                    await send(Said(call.text))
                return Said(call.text, call.data)
            case Wait():
                await send(Said("waiting"))
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    self._cancelled += 1
                    raise
            case Cancelled():
                return Said(str(self._cancelled))
            case Note() if call.text:
                self._notes.append(call.text)
                return replies.Empty()
            case Note():
                raise CallFailed("echo_empty", "there is nothing to note")
            case Do("notes"):
                return Said(" ".join(self._notes))
            case Do():
                return self._do(call.what)
        raise AssertionError(call)

    def _do(self, what: str) -> Said:
        match what:
            case "block":
                while True:
                    signal.pause()
            case "exit":
                os.write(2, b"the last words\n")
                os._exit(3)
            case "raise":
                raise RuntimeError("no luck")
            case "refuse":
                raise CallFailed("echo_refused", "it refuses", hint="ask another")
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        return Said(str(child.pid))
