import asyncio
import functools
import time
from multiprocessing.process import BaseProcess
from typing import Any

import anyio
import pytest
import uvloop

from ktuned_client import AsyncClient, Client, DaemonError, DaemonUnavailable
from tests import leaks
from tests.client import daemon

pytestmark = pytest.mark.anyio

DEFAULT = {"BM": 64}
PATIENT_S = 60.0


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run every test on asyncio and on uvloop."""
    request.param().close()  # libuv's first loop opens a pipe that stays
    return "asyncio", {"loop_factory": functools.partial(leaks.make_tracking_loop, request.param)}


@pytest.mark.usefixtures("server_process")
async def test_tasks_share_one_connection(socket_path: str) -> None:
    """A hundred tasks at once get their own answers over one connection."""
    async with AsyncClient(socket_path, deadline_s=PATIENT_S) as client:
        hits = await asyncio.gather(*(client.lookup("gemm", {"M": number}) for number in range(100)))
        assert [hit.config for hit in hits] == [{"BM": number} for number in range(100)]
        connection = client._transport._shared
        assert (await client.lookup("gemm", {"M": 1})).status == "fresh"
        assert client._transport._shared is connection


@pytest.mark.usefixtures("server_process")
@pytest.mark.parametrize("flavour", ["task", "scope"])
async def test_cancelling_one_request_leaves_the_others(socket_path: str, flavour: str) -> None:
    """The cancelled request's answer is dropped; the other request gets its own."""
    async with AsyncClient(socket_path, deadline_s=PATIENT_S) as client:
        kept = asyncio.create_task(client.call("hold", name="kept"))
        if flavour == "task":
            dropped = asyncio.create_task(client.call("hold", name="dropped"))
            await client.call("publish", count=0)
            dropped.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dropped
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: client.call("hold", name="dropped"))
                await client.call("publish", count=0)
                tasks.cancel_scope.cancel()
        await client.call("release")
        assert await kept == {"name": "kept"}
        assert (await client.lookup("gemm", {"M": 2})).config == {"BM": 2}


@pytest.mark.usefixtures("server_process")
async def test_a_call_past_its_deadline_leaves_the_others(socket_path: str) -> None:
    """A late answer is given to no other call."""
    async with AsyncClient(socket_path, deadline_s=PATIENT_S) as client:
        with pytest.raises(DaemonUnavailable, match=r"within 0\.05 s"):
            await client.call("hold", deadline_s=0.05)
        await client.call("release")
        assert await client.call("hold", name="next") == {"name": "next"}
        with pytest.raises(DaemonError, match="boom"):
            await client.call("boom")


async def test_a_lost_daemon_fails_waiting_requests(socket_path: str) -> None:
    """The client connects to the next daemon."""
    async with AsyncClient(socket_path, deadline_s=PATIENT_S) as client:
        with daemon.run_server(socket_path) as process:
            waiting = asyncio.create_task(client.call("hold"))
            await client.call("publish", count=0)
            process.kill()
            with pytest.raises(DaemonUnavailable, match="lost"):
                await waiting
        with daemon.run_server(socket_path):
            assert await client.call("publish", count=0) is None


@pytest.mark.usefixtures("server_process")
async def test_garbage_from_the_daemon_fails_waiting_requests(socket_path: str) -> None:
    """The next request opens another connection."""
    async with AsyncClient(socket_path, deadline_s=PATIENT_S) as client:
        waiting = asyncio.create_task(client.call("hold"))
        await client.call("publish", count=0)
        for failing in (client.call("garble"), waiting):
            with pytest.raises(DaemonUnavailable, match="not MessagePack"):
                await failing
        assert (await client.lookup("gemm", {})).status == "fresh"


async def test_a_lost_daemon_ends_a_stream_with_an_error(socket_path: str, server_process: BaseProcess) -> None:
    """A closed stream ends without an error."""
    async with AsyncClient(socket_path, deadline_s=PATIENT_S) as client:
        closed = await client.events()
        await closed.aclose()
        assert [event async for event in closed] == []
        stream = await client.events()
        server_process.kill()
        with pytest.raises(DaemonUnavailable, match="lost"):
            await anext(stream)


@pytest.mark.usefixtures("server_process")
async def test_a_refused_subscription_raises(socket_path: str) -> None:
    """The daemon's error is raised, and the connection is closed."""
    async with AsyncClient(socket_path, deadline_s=PATIENT_S) as client:
        with pytest.raises(DaemonError, match="jobs"):
            await client.events(jobs=["1"])  # type: ignore[list-item]


@pytest.mark.usefixtures("server_process")
def test_a_client_works_on_one_loop_after_the_other(socket_path: str) -> None:
    client = AsyncClient(socket_path, deadline_s=PATIENT_S)

    async def look_up() -> str:
        hit = await client.lookup("gemm", {})
        await client.aclose()
        return hit.status

    assert [asyncio.run(look_up()), asyncio.run(look_up())] == ["fresh", "fresh"]


@pytest.mark.usefixtures("server_process")
def test_each_loop_has_one_connection(socket_path: str, anyio_backend: tuple[str, dict[str, Any]]) -> None:
    """A loop that has ended has none."""
    loop_factory = anyio_backend[1]["loop_factory"]
    client = AsyncClient(socket_path, deadline_s=PATIENT_S)

    async def ask(number: int) -> str:
        return (await client.lookup("gemm", {"M": number}, DEFAULT)).status

    loops = [loop_factory(), loop_factory()]
    for number in range(6):
        assert loops[number % 2].run_until_complete(ask(number)) == "fresh"
    with Client(socket_path, deadline_s=PATIENT_S) as other:
        assert other.call("connections") == 3
        loops[0].run_until_complete(client.aclose())
        # The other loop's connection is closed once that loop turns.
        loops[1].run_until_complete(asyncio.sleep(0))
        for loop in loops:
            loop.close()
        give_up = time.monotonic() + PATIENT_S
        while other.call("connections") > 1:
            assert time.monotonic() < give_up
