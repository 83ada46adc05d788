import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgpack
import msgspec
import pytest
import uvloop
from msgspec.structs import asdict

from ktuned.model.errors import NotFound
from ktuned.protocol import Method, StreamPosition, SubscribeParams
from ktuned.serve.events import Events
from ktuned.serve.listener import bind_socket
from ktuned.serve.method import Handler, Peer
from ktuned.serve.server import Limits, Server
from ktuned_client import wire
from ktuned_client.wire import Decoder, Message, Notification, Response
from tests import leaks
from tests.serve.noise import Last, Noise, count_lagging

pytestmark = pytest.mark.anyio

LIMITS = Limits(connections=8, pending=4, request_bytes=10_000, response_bytes=4_000_000, write_buffer_bytes=64 * 1024)


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Serve on the daemon's loop, and on that which it falls back to."""
    request.param().close()  # libuv's first loop opens a pipe that stays
    return "asyncio", {"loop_factory": functools.partial(leaks.make_tracking_loop, request.param)}


class RawClient:
    """A raw client, which reads only when reported to."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.setblocking(False)
        self.socket.connect(path)
        self._decoder = Decoder()
        self._messages: list[Message] = []

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive(self) -> Message:
        while not self._messages:
            data = await asyncio.get_running_loop().sock_recv(self.socket, 2**16)
            assert data, "the server closed the connection"
            self._messages = self._decoder.feed(data)
        return self._messages.pop(0)

    async def ask(self, method: str, request_id: int = 1, **params: Any) -> Any:
        await self.send(wire.encode_request(request_id, method, params))
        response = await self.receive()
        assert isinstance(response, Response)
        assert response.id == request_id
        assert response.error is None
        return response.result

    async def is_closed(self) -> bool:
        """Wait until the server closes the connection; what it still sent is thrown away."""
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(self.socket, 2**20):
                pass
        return True


class Running:
    """A server in this process, with methods that tests can steer."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.events = Events(epoch=5)
        self.released = anyio.Event()
        self.calls: list[str] = []
        methods = {
            "echo": self.echo,
            "big": self.big,
            "missing": self.missing,
            "boom": self.boom,
            "object": self.object,
            "hold": self.hold,
            "hold_and_boom": self.hold_and_boom,
            "subscribe": self.subscribe,
        }
        handlers = [Handler[Any, Any](Method[Any, Any](name, dict, dict), answer) for name, answer in methods.items()]
        self.server = Server(handlers, LIMITS)
        self.peers: list[RawClient] = []

    def peer(self) -> RawClient:
        self.peers.append(RawClient(self.path))
        return self.peers[-1]

    def echo(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        self.calls.append("echo")
        return params

    def big(self, params: dict[str, Any], peer: Peer) -> str:
        self.calls.append("big")
        return "x" * int(params["size"])

    def missing(self, params: dict[str, Any], peer: Peer) -> None:
        raise NotFound("nothing here", hint="look elsewhere")

    def boom(self, params: dict[str, Any], peer: Peer) -> None:
        raise RuntimeError("boom")

    def object(self, params: dict[str, Any], peer: Peer) -> Any:
        return object()

    async def hold(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        self.calls.append("hold")
        await self.released.wait()
        self.calls.append("held")
        return params

    async def hold_and_boom(self, params: dict[str, Any], peer: Peer) -> None:
        await self.released.wait()
        raise RuntimeError("boom")

    def subscribe(self, params: dict[str, Any], peer: Peer) -> StreamPosition:
        return self.events.add_subscription(peer, msgspec.convert(params, SubscribeParams))

    async def until(self, **statistics: int) -> None:
        """Let the loop run until the server's figures are these."""
        with anyio.fail_after(60):
            figures = self.server.describe_traffic
            while not statistics.items() <= asdict(figures()).items():  # noqa: ASYNC110 - figures have no event
                await asyncio.sleep(0)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    """Return a bound socket."""
    with bind_socket(str(tmp_path / "run" / "k.sock")) as bound:
        yield bound


@pytest.fixture
async def running(listening: socket.socket) -> AsyncIterator[Running]:
    """Run a server, and cancel it at the end."""
    running = Running(listening.getsockname())
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.server.serve_until_cancelled, listening)
        try:
            yield running
        finally:
            for peer in running.peers:
                peer.socket.close()
            tasks.cancel_scope.cancel()


async def test_requests_are_answered(running: Running) -> None:
    """A result comes back under its request's id."""
    assert await running.peer().ask("echo", 77, a=1, b={"c": [None]}) == {"a": 1, "b": {"c": [None]}}


async def test_requests_may_come_in_any_pieces(running: Running) -> None:
    """Byte by byte or many at once, each request gets its answer, in order."""
    peer = running.peer()
    requests = [wire.encode_request(number, "echo", {"n": number}) for number in range(3)]
    for byte in b"".join(requests):
        await peer.send(bytes([byte]))
        await asyncio.sleep(0)
    assert [await peer.receive() for _ in requests] == [Response(number, None, {"n": number}) for number in range(3)]
    await peer.send(b"".join(requests))
    assert [await peer.receive() for _ in requests] == [Response(number, None, {"n": number}) for number in range(3)]


async def test_a_waiting_method_delays_nobody(running: Running) -> None:
    """While one request waits, others of the same connection are answered."""
    peer = running.peer()
    await peer.send(wire.encode_request(1, "hold", {"held": True}))
    assert await peer.ask("echo", 2, a=1) == {"a": 1}
    running.released.set()
    assert await peer.receive() == Response(1, None, {"held": True})


async def test_notifications_are_carried_out_and_not_answered(running: Running) -> None:
    """A call without an id is a call, whatever becomes of it."""
    peer = running.peer()
    for method in ("echo", "boom", "hold", "nonsense"):
        await peer.send(wire.encode_notification(method, {}))
    running.released.set()
    assert await peer.ask("echo", 9, a=1) == {"a": 1}
    await running.until(pending=0)
    assert sorted(running.calls) == ["echo", "echo", "held", "hold"]


@pytest.mark.parametrize(
    ("method", "code", "message"),
    [
        ("missing", "not_found", "nothing here"),
        ("boom", "internal", "boom failed inside the daemon: RuntimeError: boom"),
        ("hold_and_boom", "internal", "hold_and_boom failed inside the daemon: RuntimeError: boom"),
        ("object", "internal", "object failed inside the daemon: TypeError"),
        ("nonsense", "unknown_method", "there is no method 'nonsense'"),
        ("big", "too_large", "the answer to big has 5000"),
    ],
)
async def test_failures_are_answered(running: Running, method: str, code: str, message: str) -> None:
    """Every failure is a map of code, message and hint, and the connection lives on."""
    peer = running.peer()
    running.released.set()
    await peer.send(wire.encode_request(1, method, {"size": 5_000_000}))
    response = await peer.receive()
    assert isinstance(response, Response)
    assert response.error is not None
    assert set(response.error) == {"code", "message", "hint"}
    assert response.error["code"] == code
    assert response.error["message"].startswith(message)
    assert await peer.ask("echo") == {}


async def test_params_that_are_not_one_map_are_answered(running: Running) -> None:
    """A stock client that passes positional arguments gets a sentence."""
    peer = running.peer()
    await peer.send(msgpack.packb([0, 1, "echo", ["gemm", 5]]))
    response = await peer.receive()
    assert isinstance(response, Response)
    assert response.error is not None
    assert response.error["code"] == "usage"


@pytest.mark.parametrize(
    "offence",
    [
        b"\xc1",
        b"\x91" * 10_000,
        b"\x94\x00\x01\xa1m\x91\x81\xa1a\xdb\x40\x00\x00\x00" + b"x" * 11_000,
        b"\x94\x00\x01\xa1m\xdd\xff\xff\xff\xff",
        wire.encode_request(1, "echo", {"a": "x" * 10_001}),
        wire.encode_response(1, None, None),
        b"GET / HTTP/1.1\r\n\r\n",
        b"".join(wire.encode_request(number, "hold", {}) for number in range(LIMITS.pending + 1)),
    ],
    ids=["reserved", "nested", "1 GiB", "4 Gi items", "too long", "a response", "HTTP", "too many pending"],
)
async def test_a_broken_limit_costs_the_offender_its_connection(running: Running, offence: bytes) -> None:
    """The offender is closed; a bystander does not notice, and the server forgets the offender."""
    bystander, offender = running.peer(), running.peer()
    await bystander.send(wire.encode_request(1, "hold", {}))
    with contextlib.suppress(ConnectionError):
        await offender.send(offence)
    assert await offender.is_closed()
    assert await bystander.ask("echo", 2) == {}
    running.released.set()
    assert await bystander.receive() == Response(1, None, {})
    await running.until(connections=1, pending=0, refused=1)


async def test_as_many_may_wait_as_the_limit_says(running: Running) -> None:
    """The limit itself is allowed, and what was answered counts no more."""
    peer = running.peer()
    for _ in range(3):
        for number in range(LIMITS.pending):
            await peer.send(wire.encode_request(number, "hold", {}))
        await running.until(pending=LIMITS.pending)
        running.released.set()
        assert {
            message.id for _ in range(LIMITS.pending) if isinstance(message := await peer.receive(), Response)
        } == set(range(LIMITS.pending))
        running.released = anyio.Event()


async def test_one_connection_too_many_is_closed(running: Running) -> None:
    """Who comes when the house is full is sent away; who leaves makes room."""
    peers = [running.peer() for _ in range(LIMITS.connections)]
    for peer in peers:
        assert await peer.ask("echo") == {}
    assert await running.peer().is_closed()
    assert await peers[0].ask("echo") == {}
    peers[1].socket.close()
    await running.until(connections=LIMITS.connections - 1)
    assert await running.peer().ask("echo") == {}


async def test_what_a_gone_peer_asked_for_is_carried_out(running: Running) -> None:
    """A request that was read runs to its end, and its connection counts until then."""
    peer = running.peer()
    await peer.send(wire.encode_request(1, "hold", {}))
    await running.until(pending=1)
    peer.socket.close()
    assert await running.peer().ask("echo") == {}
    await running.until(connections=2)
    running.released.set()
    await running.until(connections=1, pending=0)
    assert running.calls == ["hold", "echo", "held"]


async def test_who_does_not_read_is_not_read(running: Running) -> None:
    """Answers to a peer that does not read stop being made, others are served, and all come once it reads."""
    slow, quick = running.peer(), running.peer()
    for number in range(50):
        await slow.send(wire.encode_request(number, "big", {"size": 100_000}))
    await running.until(connections=2)
    assert await quick.ask("echo") == {}
    made = running.calls.count("big")
    assert await quick.ask("echo") == {}
    assert 0 < running.calls.count("big") == made < 20
    for number in range(50):
        response = await slow.receive()
        assert isinstance(response, Response)
        assert response.id == number


async def test_a_slow_subscriber_gets_fresh_and_slows_nobody(running: Running) -> None:
    """One that stops reading costs no memory; when it reads again, it learns of the gap and goes on."""
    slow, quick = running.peer(), running.peer()
    assert await slow.ask("subscribe") == {"epoch": 5, "seq": 0}
    assert await quick.ask("subscribe", types=["last"]) == {"epoch": 5, "seq": 0}
    for _ in range(10_000):
        running.events.publish_event(Noise(text="x" * 1000))
    assert count_lagging(running.events) == 1
    running.events.publish_event(Last())
    message = await quick.receive()
    assert isinstance(message, Notification)
    assert message.params is not None
    assert message.params["type"] == "last"
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["type"] != "gap":
        message = await slow.receive()
        assert isinstance(message, Notification)
        assert message.params is not None
        seen.append(message.params)
    assert [event["seq"] for event in seen[:-1]] == list(range(1, len(seen)))
    assert len(seen) < 2000
    assert (seen[-1]["epoch"], seen[-1]["seq"]) == (5, 10_001)
    running.events.publish_event(Noise())
    message = await slow.receive()
    assert isinstance(message, Notification)
    assert message.params is not None
    assert message.params["seq"] == 10_002


async def test_a_replay_follows_the_answer(running: Running) -> None:
    """The response to `subscribe` comes first, then what was missed, all of it, then what happens."""
    for _ in range(2000):
        running.events.publish_event(Noise(text="x" * 500))
    peer = running.peer()
    assert await peer.ask("subscribe", since=[5, 10]) == {"epoch": 5, "seq": 2000}
    for seq in range(11, 2001):
        message = await peer.receive()
        assert isinstance(message, Notification)
        assert message.params is not None
        assert message.params["seq"] == seq


async def test_a_closed_peer_is_unsubscribed(running: Running) -> None:
    """A connection takes its subscription with it."""
    peer = running.peer()
    await peer.ask("subscribe")
    assert len(running.events._subscriptions) == 1
    peer.socket.close()
    await running.until(connections=0)
    assert not running.events._subscriptions


async def test_stopping_delivers_what_was_answered(listening: socket.socket) -> None:
    """A server that is cancelled right after an answer still delivers it, and closes every connection."""
    running = Running(listening.getsockname())
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.server.serve_until_cancelled, listening)
        peer, waiting = running.peer(), running.peer()
        await waiting.send(wire.encode_request(1, "hold", {}))
        await peer.send(wire.encode_request(1, "big", {"size": 3_000_000}))
        await running.until(pending=1, answered=1)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            response = await peer.receive()
            assert isinstance(response, Response)
            assert len(response.result) == 3_000_000
            assert await peer.is_closed()
            assert await waiting.is_closed()
    peer.socket.close()
    waiting.socket.close()
    assert running.server.describe_traffic().connections == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
async def test_another_user_is_not_served(running: Running) -> None:
    """Even with the directory and the socket thrown open, another uid is closed without an answer."""
    directory = Path(running.path).parent
    directory.chmod(0o755)
    os.chmod(running.path, 0o666)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    child = os.fork()
    if child == 0:
        # The directory is entered before the uid changes, so its parents may stay closed.
        os.chdir(directory)
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect("k.sock")
            theirs.sendall(b"nothing" if stranger.recv(9) == b"" else b"something")
        os._exit(0)
    with ours, theirs:
        assert await asyncio.get_running_loop().sock_recv(ours, 99) == b"nothing"
    _reap(child)
    await running.until(refused=1)
    assert await running.peer().ask("echo") == {}


def _reap(child: int) -> None:
    os.waitpid(child, 0)
