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
from tests.serve.noise import LastEvent, NoiseEvent, count_lagging

pytestmark = pytest.mark.anyio

LIMITS = Limits(connections=8, pending=4, request_bytes=10_000, response_bytes=4_000_000, write_buffer_bytes=64 * 1024)


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run every test on the daemon's loop and on its fallback."""
    request.param().close()  # libuv's first loop opens a pipe that stays
    return "asyncio", {"loop_factory": functools.partial(leaks.make_tracking_loop, request.param)}


class RawClient:
    """A client of raw bytes, which reads only when a test says so."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.setblocking(False)
        self.socket.connect(path)
        self._decoder = Decoder()
        self._messages: list[Message] = []

    async def send_bytes(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive_messages(self) -> Message:
        while not self._messages:
            data = await asyncio.get_running_loop().sock_recv(self.socket, 2**16)
            assert data, "the server closed the connection"
            self._messages = self._decoder.feed(data)
        return self._messages.pop(0)

    async def send_request(self, method: str, request_id: int = 1, **params: Any) -> Any:
        await self.send_bytes(wire.encode_request(request_id, method, params))
        response = await self.receive_messages()
        assert isinstance(response, Response)
        assert response.id == request_id
        assert response.error is None
        return response.result

    async def is_closed(self) -> bool:
        """Wait until the server closes the connection; drop what it still sends."""
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(self.socket, 2**20):
                pass
        return True


class RunningServer:
    """A server in this process, whose methods tests control."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.events = Events(epoch=5)
        self.released = anyio.Event()
        self.calls: list[str] = []
        methods = {
            "echo": self.echo_params,
            "big": self.answer_big,
            "missing": self.raise_not_found,
            "boom": self.raise_error,
            "object": self.answer_unpackable,
            "hold": self.hold_request,
            "hold_and_boom": self.hold_and_raise,
            "subscribe": self.add_subscription,
        }
        handlers = [Handler[Any, Any](Method[Any, Any](name, dict, dict), answer) for name, answer in methods.items()]
        hold = Method[Any, Any]("hold_for_peer", dict, dict)
        handlers.append(Handler[Any, Any](hold, self.hold_request, ends_with_peer=True))
        self.server = Server(handlers, LIMITS)
        self.peers: list[RawClient] = []

    def find_peer(self) -> RawClient:
        self.peers.append(RawClient(self.path))
        return self.peers[-1]

    def echo_params(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        self.calls.append("echo")
        return params

    def answer_big(self, params: dict[str, Any], peer: Peer) -> str:
        self.calls.append("big")
        return "x" * int(params["size"])

    def raise_not_found(self, params: dict[str, Any], peer: Peer) -> None:
        raise NotFound("nothing here", hint="look elsewhere")

    def raise_error(self, params: dict[str, Any], peer: Peer) -> None:
        raise RuntimeError("boom")

    def answer_unpackable(self, params: dict[str, Any], peer: Peer) -> Any:
        return object()

    async def hold_request(self, params: dict[str, Any], peer: Peer) -> dict[str, Any]:
        self.calls.append("hold")
        await self.released.wait()
        self.calls.append("held")
        return params

    async def hold_and_raise(self, params: dict[str, Any], peer: Peer) -> None:
        await self.released.wait()
        raise RuntimeError("boom")

    def add_subscription(self, params: dict[str, Any], peer: Peer) -> StreamPosition:
        return self.events.add_subscription(peer, msgspec.convert(params, SubscribeParams))

    async def wait_until_traffic(self, **statistics: int) -> None:
        """Run the loop until the server reports these figures."""
        with anyio.fail_after(60):
            figures = self.server.describe_traffic
            while not statistics.items() <= asdict(figures()).items():  # noqa: ASYNC110 - figures have no event
                await asyncio.sleep(0)


@pytest.fixture
def bound_socket(tmp_path: Path) -> Iterator[socket.socket]:
    """Return a bound socket."""
    with bind_socket(str(tmp_path / "run" / "k.sock")) as bound:
        yield bound


@pytest.fixture
async def server(bound_socket: socket.socket) -> AsyncIterator[RunningServer]:
    """Run a server, and cancel it at the end."""
    running = RunningServer(bound_socket.getsockname())
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.server.serve_until_cancelled, bound_socket)
        try:
            yield running
        finally:
            for peer in running.peers:
                peer.socket.close()
            tasks.cancel_scope.cancel()


async def test_requests_are_answered(server: RunningServer) -> None:
    assert await server.find_peer().send_request("echo", 77, a=1, b={"c": [None]}) == {"a": 1, "b": {"c": [None]}}


async def test_requests_may_arrive_in_any_pieces(server: RunningServer) -> None:
    """Answers come in order."""
    peer = server.find_peer()
    requests = [wire.encode_request(number, "echo", {"n": number}) for number in range(3)]
    for byte in b"".join(requests):
        await peer.send_bytes(bytes([byte]))
        await asyncio.sleep(0)
    assert [await peer.receive_messages() for _ in requests] == [
        Response(number, None, {"n": number}) for number in range(3)
    ]
    await peer.send_bytes(b"".join(requests))
    assert [await peer.receive_messages() for _ in requests] == [
        Response(number, None, {"n": number}) for number in range(3)
    ]


async def test_a_waiting_request_delays_no_other(server: RunningServer) -> None:
    """Other requests of the same connection are answered."""
    peer = server.find_peer()
    await peer.send_bytes(wire.encode_request(1, "hold", {"held": True}))
    assert await peer.send_request("echo", 2, a=1) == {"a": 1}
    server.released.set()
    assert await peer.receive_messages() == Response(1, None, {"held": True})


async def test_notifications_are_executed_and_not_answered(server: RunningServer) -> None:
    peer = server.find_peer()
    for method in ("echo", "boom", "hold", "nonsense"):
        await peer.send_bytes(wire.encode_notification(method, {}))
    server.released.set()
    assert await peer.send_request("echo", 9, a=1) == {"a": 1}
    await server.wait_until_traffic(pending=0)
    assert sorted(server.calls) == ["echo", "echo", "held", "hold"]


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
async def test_a_failure_is_an_error_answer(server: RunningServer, method: str, code: str, message: str) -> None:
    """The connection stays open."""
    peer = server.find_peer()
    server.released.set()
    await peer.send_bytes(wire.encode_request(1, method, {"size": 5_000_000}))
    response = await peer.receive_messages()
    assert isinstance(response, Response)
    assert response.error is not None
    assert set(response.error) == {"code", "message", "hint"}
    assert response.error["code"] == code
    assert response.error["message"].startswith(message)
    assert await peer.send_request("echo") == {}


async def test_positional_params_are_an_error_answer(server: RunningServer) -> None:
    peer = server.find_peer()
    await peer.send_bytes(msgpack.packb([0, 1, "echo", ["gemm", 5]]))
    response = await peer.receive_messages()
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
async def test_breaking_a_limit_closes_the_connection(server: RunningServer, offence: bytes) -> None:
    """Other connections are not affected."""
    bystander, offender = server.find_peer(), server.find_peer()
    await bystander.send_bytes(wire.encode_request(1, "hold", {}))
    with contextlib.suppress(ConnectionError):
        await offender.send_bytes(offence)
    assert await offender.is_closed()
    assert await bystander.send_request("echo", 2) == {}
    server.released.set()
    assert await bystander.receive_messages() == Response(1, None, {})
    await server.wait_until_traffic(connections=1, pending=0, refused=1)


async def test_pending_requests_up_to_the_limit_are_accepted(server: RunningServer) -> None:
    """Answered requests do not count."""
    peer = server.find_peer()
    for _ in range(3):
        for number in range(LIMITS.pending):
            await peer.send_bytes(wire.encode_request(number, "hold", {}))
        await server.wait_until_traffic(pending=LIMITS.pending)
        server.released.set()
        assert {
            message.id for _ in range(LIMITS.pending) if isinstance(message := await peer.receive_messages(), Response)
        } == set(range(LIMITS.pending))
        server.released = anyio.Event()


async def test_a_connection_beyond_the_limit_is_closed(server: RunningServer) -> None:
    """A closed connection makes room."""
    peers = [server.find_peer() for _ in range(LIMITS.connections)]
    for peer in peers:
        assert await peer.send_request("echo") == {}
    assert await server.find_peer().is_closed()
    assert await peers[0].send_request("echo") == {}
    peers[1].socket.close()
    await server.wait_until_traffic(connections=LIMITS.connections - 1)
    assert await server.find_peer().send_request("echo") == {}


async def test_a_request_runs_to_its_end_if_its_peer_leaves(server: RunningServer) -> None:
    """Its connection counts until then."""
    peer = server.find_peer()
    await peer.send_bytes(wire.encode_request(1, "hold", {}))
    await server.wait_until_traffic(pending=1)
    peer.socket.close()
    assert await server.find_peer().send_request("echo") == {}
    await server.wait_until_traffic(connections=2)
    server.released.set()
    await server.wait_until_traffic(connections=1, pending=0)
    assert server.calls == ["hold", "echo", "held"]


async def test_a_request_may_end_with_its_peer(server: RunningServer) -> None:
    peer = server.find_peer()
    await peer.send_bytes(wire.encode_request(1, "hold_for_peer", {}))
    await server.wait_until_traffic(pending=1)
    peer.socket.close()
    await server.wait_until_traffic(connections=0, pending=0)
    assert server.calls == ["hold"]


async def test_a_peer_that_does_not_read_gets_no_more_answers(server: RunningServer) -> None:
    """Others are served, and all answers come once it reads."""
    slow, quick = server.find_peer(), server.find_peer()
    for number in range(50):
        await slow.send_bytes(wire.encode_request(number, "big", {"size": 100_000}))
    await server.wait_until_traffic(connections=2)
    assert await quick.send_request("echo") == {}
    count = server.calls.count("big")
    assert await quick.send_request("echo") == {}
    assert 0 < server.calls.count("big") == count < 20
    for number in range(50):
        response = await slow.receive_messages()
        assert isinstance(response, Response)
        assert response.id == number


async def test_a_slow_subscriber_takes_no_memory_and_slows_nobody(server: RunningServer) -> None:
    """When it reads again, it gets a gap and later events."""
    slow, quick = server.find_peer(), server.find_peer()
    assert await slow.send_request("subscribe") == {"epoch": 5, "seq": 0}
    assert await quick.send_request("subscribe", types=["last"]) == {"epoch": 5, "seq": 0}
    for _ in range(10_000):
        server.events.publish_event(NoiseEvent(text="x" * 1000))
    assert count_lagging(server.events) == 1
    server.events.publish_event(LastEvent())
    message = await quick.receive_messages()
    assert isinstance(message, Notification)
    assert message.params is not None
    assert message.params["type"] == "last"
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != "gap":
        message = await slow.receive_messages()
        assert isinstance(message, Notification)
        assert message.params is not None
        events.append(message.params)
    assert [event["seq"] for event in events[:-1]] == list(range(1, len(events)))
    assert len(events) < 2000
    assert (events[-1]["epoch"], events[-1]["seq"]) == (5, 10_001)
    server.events.publish_event(NoiseEvent())
    message = await slow.receive_messages()
    assert isinstance(message, Notification)
    assert message.params is not None
    assert message.params["seq"] == 10_002


async def test_a_replay_follows_the_answer(server: RunningServer) -> None:
    """The order is: the answer to ``subscribe``, all missed events, new events."""
    for _ in range(2000):
        server.events.publish_event(NoiseEvent(text="x" * 500))
    peer = server.find_peer()
    assert await peer.send_request("subscribe", since=[5, 10]) == {"epoch": 5, "seq": 2000}
    for seq in range(11, 2001):
        message = await peer.receive_messages()
        assert isinstance(message, Notification)
        assert message.params is not None
        assert message.params["seq"] == seq


async def test_a_closed_connection_ends_its_subscription(server: RunningServer) -> None:
    peer = server.find_peer()
    await peer.send_request("subscribe")
    assert len(server.events._subscriptions) == 1
    peer.socket.close()
    await server.wait_until_traffic(connections=0)
    assert not server.events._subscriptions


async def test_a_stopping_server_delivers_its_answers(bound_socket: socket.socket) -> None:
    """It closes every connection."""
    running = RunningServer(bound_socket.getsockname())
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.server.serve_until_cancelled, bound_socket)
        peer, waiting = running.find_peer(), running.find_peer()
        await waiting.send_bytes(wire.encode_request(1, "hold", {}))
        await peer.send_bytes(wire.encode_request(1, "big", {"size": 3_000_000}))
        await running.wait_until_traffic(pending=1, answered=1)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            response = await peer.receive_messages()
            assert isinstance(response, Response)
            assert len(response.result) == 3_000_000
            assert await peer.is_closed()
            assert await waiting.is_closed()
    peer.socket.close()
    waiting.socket.close()
    assert running.server.describe_traffic().connections == 0


def reap_child(child: int) -> None:
    os.waitpid(child, 0)
