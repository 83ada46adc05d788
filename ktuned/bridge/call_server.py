"""The bridge's process: reads calls from the daemon's socket, has services carry them out, sends the answers.

Each call is a task on one event loop. Calls run side by side, and cancelling a call cancels its task. The first call of
a service imports the service in a thread, which takes seconds; meanwhile further calls of this service wait in their
order, but calls of other services do not. An error in a service fails only its call and never ends the process.

The process ends with the daemon: when the socket closes, or by a signal from Linux when the daemon dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import platform
import socket
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast

import msgspec

from ktuned.bridge import messages
from ktuned.bridge.messages import CallFailed, Hello, Versions
from ktuned.bridge.service import Service, load_service
from ktuned.ipc import InvalidMessage, decoding, frames, parent
from ktuned.model import Fault, KtunedError

MAX_CALLS: Final = 4096
"""Calls that may be under way at once: two for each worker of the largest fleet. More would be a bug of the daemon."""

CLOSE_S: Final = 2.0
"""How long services may take to close when the daemon closes the socket; then the process ends."""


class CallServer(asyncio.Protocol):
    """The bridge's end of the socket; :attr:`closed` is done when the daemon has closed its end."""

    def __init__(self, load: Callable[[str], Service] = load_service) -> None:
        self._load = load
        self._decoder = frames.Decoder()
        self._services: dict[str, asyncio.Task[Service]] = {}
        self._service_locks: dict[str, asyncio.Lock] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._post_numbers = itertools.count(-1, -1)
        self._transport: asyncio.Transport
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """End with the daemon."""
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """Hold back items until the daemon has read earlier ones."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Allow items to be sent again."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Start each call that the bytes complete."""
        try:
            for message in self._decoder.feed(data):
                self._start_call(message)
        except (frames.FrameError, InvalidMessage) as error:
            sys.stderr.write(f"ktuned-bridge: {error}\n")
            self._transport.abort()

    def _start_call(self, message: bytes) -> None:
        call = messages.decode_call(message)
        if isinstance(call, messages.CallCancellation):
            task = self._tasks.get(call.number)
            if task is not None:
                task.cancel()
            return
        if len(self._tasks) >= MAX_CALLS:
            raise InvalidMessage(f"more than {MAX_CALLS} calls at once")
        if call.number is None:
            number, work = next(self._post_numbers), self._carry_out_post(call)
        else:
            number, work = call.number, self._answer_call(call, call.number)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _carry_out_post(self, call: messages.ReceivedCall) -> None:
        """Carry out a call that has no answers."""

        async def send(item: msgspec.Struct) -> None:
            raise AssertionError(f"{call.operation} has no items")

        try:
            await self._run_operation(call, send)
        except KtunedError as error:
            sys.stderr.write(f"ktuned-bridge: {call.operation}: {error.message}\n")

    async def _answer_call(self, call: messages.ReceivedCall, number: int) -> None:

        async def send(item: msgspec.Struct) -> None:
            await self._writable.wait()
            self._transport.write(messages.encode_item(number, item))

        try:
            answer = messages.encode_reply(number, await self._run_operation(call, send))
        except KtunedError as error:
            answer = messages.encode_fault(number, Fault(error.code, error.message, error.hint))
        except Exception as error:
            text = " ".join(str(error).split())[:500]
            answer = messages.encode_fault(number, Fault("service", f"{type(error).__name__}: {text}"))
        self._transport.write(answer)

    async def _run_operation(
        self, call: messages.ReceivedCall, send: Callable[[msgspec.Struct], Any]
    ) -> msgspec.Struct:
        if call.operation == Hello.operation:
            return Versions(os.getpid(), platform.python_version(), sys.executable)
        service = await self._get_service(call.operation.partition(".")[0])
        for kind in service.calls:
            if kind.operation == call.operation:
                return await service.carry_out(decoding.decode(call.fields, kind), send)
        raise CallFailed(
            "no_operation",
            f"the bridge under {sys.executable} has no operation {call.operation!r}",
            hint="install one version of ktuned and its plugins everywhere",
        )

    async def _get_service(self, name: str) -> Service:
        """Return a service; its first call imports it, while other services keep answering."""
        # The lock keeps calls in order: a call that comes just as the import ends must not overtake those that wait,
        # or posts would be carried out in a wrong order.
        async with self._service_locks.setdefault(name, asyncio.Lock()):
            loading = self._services.get(name)
            if loading is None or (loading.done() and loading.exception() is not None):
                loading = asyncio.ensure_future(asyncio.to_thread(self._load, name))
                self._services[name] = loading
            # Shielded: if this call is cancelled, the next one still waits for the import.
            return await asyncio.shield(loading)

    async def close(self) -> None:
        """Cancel all calls under way, and close the services."""
        for task in list(self._tasks.values()):
            task.cancel()
        for loading in self._services.values():
            if loading.done() and loading.exception() is None:
                with contextlib.suppress(Exception):
                    await loading.result().close()


async def serve_daemon(descriptor: int) -> None:
    """Serve the socket until the daemon closes it."""
    # The transport closes this socket.
    connection = socket.socket(fileno=descriptor)
    _, server = await asyncio.get_running_loop().create_connection(CallServer, sock=connection)
    await server.closed
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.close(), CLOSE_S)


def main(argv: list[str]) -> NoReturn:
    """Run the bridge; ``argv`` has the socket's descriptor and the daemon's process id."""
    descriptor, daemon_pid = map(int, argv)
    parent.die_with_parent(daemon_pid)
    parent.adopt_descendants()
    os.set_inheritable(descriptor, False)
    asyncio.new_event_loop().run_until_complete(serve_daemon(descriptor))
    # sys.exit would wait for threads of libraries.
    sys.stderr.flush()
    os._exit(0)
