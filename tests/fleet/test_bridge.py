"""The bridge's process: calls side by side, kills, restarts, and nothing left of it."""

import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from ktuned.bridge import CallFailed
from ktuned.fleet import Bridge, BridgeDown, BridgeSlow
from ktuned.fleet.health import Health
from ktuned.fleet.local_executor import LocalExecutor
from ktuned.ipc import frames
from tests.bridge.services.ktuned_echo import Cancelled, Do, Note, Said, Say, Wait
from tests.fleet.playing import DEADLINE_S, base_env

pytestmark = pytest.mark.anyio

SERVICES = str(Path(__file__).parents[1] / "bridge" / "services")

RunBridge = Callable[..., AbstractAsyncContextManager[Bridge]]


@pytest.fixture
def run_bridge(tmp_path: Path) -> RunBridge:
    """Return a function that runs a bridge, beside an executor that adopts orphans."""

    @asynccontextmanager
    async def run(*, python: str = sys.executable, **options: Any) -> AsyncIterator[Bridge]:
        known_children: set[int] = set()
        environment = base_env() | {"PYTHONPATH": SERVICES}
        executor = LocalExecutor(
            scratch=tmp_path / "tmp",
            cache=tmp_path / "cache",
            artifacts=tmp_path / "artifacts",
            base_env=environment,
            known_children=known_children,
        )
        bridge = Bridge(
            python=python,
            directory=tmp_path,
            base_env=environment,
            mark=executor.mark,
            known_children=known_children,
            **options,
        )
        with anyio.fail_after(2 * DEADLINE_S):
            async with executor.run_workers(), bridge.accept_calls():
                yield bridge

    return run


async def test_nothing_runs_before_the_first_call(run_bridge: RunBridge) -> None:
    """A daemon without a cluster has no bridge's process; the first call starts it."""
    async with run_bridge() as bridge:
        assert bridge.pid is None
        assert await bridge.call_service(Say("hello", data=b"\0\xff"), DEADLINE_S) == Said("hello", b"\0\xff")
        assert bridge.pid is not None


async def test_posts_are_carried_out_in_order_without_answers(run_bridge: RunBridge) -> None:
    """Posts are carried out in order; one that fails harms nothing, and none leaves a call under way."""
    async with run_bridge() as bridge:
        for text in ("one", "", "two"):
            await bridge.post_call(Note(text), DEADLINE_S)
        assert await bridge.call_service(Do("notes"), DEADLINE_S) == Said("one two")


async def test_calls_run_side_by_side(run_bridge: RunBridge) -> None:
    """A call that waits holds up no other; items come in order, before their reply."""
    async with run_bridge() as bridge, anyio.create_task_group() as tasks:
        waiting = anyio.Event()

        async def wait() -> None:
            await bridge.call_service(Wait(), math.inf, on_item=lambda item: waiting.set())

        tasks.start_soon(wait)
        await waiting.wait()
        items: list[Said] = []
        async with anyio.create_task_group() as others:
            for number in range(20):
                others.start_soon(bridge.call_service, Say(str(number)), DEADLINE_S)
        assert await bridge.call_service(Say("x", 5000), DEADLINE_S, on_item=items.append) == Said("x")
        assert items == [Said("x")] * 5000
        tasks.cancel_scope.cancel()


async def test_a_call_that_is_given_up_is_cancelled_there(run_bridge: RunBridge) -> None:
    """A caller that goes away, and a deadline that passes, end the call in the bridge; the bridge lives on."""
    async with run_bridge() as bridge:
        await bridge.call_service(Say("up"), DEADLINE_S)
        pid = bridge.pid
        with anyio.move_on_after(0.05):
            await bridge.call_service(Wait(), math.inf)
        with pytest.raises(BridgeSlow, match=r"echo\.wait timed out after 0\.05 s"):
            await bridge.call_service(Wait(), 0.05)
        assert await bridge.call_service(Cancelled(), DEADLINE_S) == Said("2")
        assert bridge.pid == pid


async def test_a_service_says_why_it_cannot(run_bridge: RunBridge) -> None:
    """Refusals keep their code and hint; any other error is one line; neither ends the bridge."""
    async with run_bridge() as bridge:
        with pytest.raises(CallFailed, match="it refuses") as refused:
            await bridge.call_service(Do("refuse"), DEADLINE_S)
        assert (refused.value.code, refused.value.hint) == ("echo_refused", "ask another")
        with pytest.raises(CallFailed, match="RuntimeError: no luck"):
            await bridge.call_service(Do("raise"), DEADLINE_S)
        with pytest.raises(frames.FrameError):
            await bridge.call_service(Say("large", data=bytes(frames.MAX_FRAME_BYTES)), DEADLINE_S)
        assert await bridge.call_service(Say("well"), DEADLINE_S) == Said("well")


async def test_an_unknown_service_names_the_remedy(run_bridge: RunBridge) -> None:
    """A service that is not installed under the bridge's interpreter, or cannot be imported, is said so."""

    class Elsewhere(Say, frozen=True):
        operation = "elsewhere.join"
        __orig_bases__ = Say.__orig_bases__  # type: ignore[attr-defined]

    class Broken(Say, frozen=True):
        operation = "broken.do"
        __orig_bases__ = Say.__orig_bases__  # type: ignore[attr-defined]

    async with run_bridge() as bridge:
        with pytest.raises(CallFailed, match="cannot import the bridge's service 'broken'"):
            await bridge.call_service(Broken("?"), DEADLINE_S)
        with pytest.raises(CallFailed) as missing:
            await bridge.call_service(Elsewhere("?"), DEADLINE_S)
        assert missing.value.code == "no_service"


async def test_a_kill_fails_the_calls_and_the_next_one_starts_it_again(run_bridge: RunBridge) -> None:
    """After a SIGKILL from anyone every call fails with a reason, there is a notice, and it comes back by itself."""
    async with run_bridge(health=Health(first_pause_s=0.2)) as bridge:
        await bridge.call_service(Say("up"), DEADLINE_S)
        pid = bridge.pid
        assert pid is not None
        with pytest.raises(BridgeDown, match="SIGKILL"):
            await bridge.call_service(Wait(), math.inf, on_item=lambda item: os.kill(pid, signal.SIGKILL))
        assert bridge.pause_s > 0
        assert "ktuned-bridge ended: it was killed by SIGKILL" in bridge.notices[0]
        with pytest.raises(BridgeDown, match="it is started again in"):
            await bridge.call_service(Say("too early"), DEADLINE_S)
        await anyio.sleep(bridge.pause_s)
        assert await bridge.call_service(Say("again"), DEADLINE_S) == Said("again")
        assert bridge.pid not in (None, pid)
        assert bridge.notices == []


async def test_an_exit_is_reported_with_its_last_words(run_bridge: RunBridge) -> None:
    """A library that ends the process, as Ray does when its cluster goes, ends nothing but the bridge."""
    async with run_bridge() as bridge:
        with pytest.raises(BridgeDown, match="it exited with code 3: the last words"):
            await bridge.call_service(Do("exit"), DEADLINE_S)


async def test_a_bridge_that_hangs_is_killed(run_bridge: RunBridge) -> None:
    """One that gives no sign of life for long is killed, and its calls fail."""
    async with run_bridge(beat_s=0.05, silence_s=0.5) as bridge:
        with pytest.raises(BridgeDown, match="it gave no sign of life"):
            await bridge.call_service(Do("block"), DEADLINE_S)


async def test_an_interpreter_that_cannot_be_started_is_named(run_bridge: RunBridge) -> None:
    """A wrong `python` says so, in a line with its remedy."""
    async with run_bridge(python="/nowhere/python") as bridge:
        with pytest.raises(BridgeDown, match="/nowhere/python cannot be started: No such file") as error:
            await bridge.call_service(Say("?"), DEADLINE_S)
        assert "ktuned" in error.value.hint
    async with run_bridge(python="/bin/false") as bridge:
        with pytest.raises(BridgeDown, match="exited with code 1"):
            await bridge.call_service(Say("?"), DEADLINE_S)


async def test_nothing_outlives_the_bridge(run_bridge: RunBridge) -> None:
    """What a service has started and detached is gone when the daemon ends."""
    async with run_bridge() as bridge:
        child = psutil.Process(int((await bridge.call_service(Do("child"), DEADLINE_S)).text))
        process = psutil.Process(bridge.pid)
    assert not process.is_running()
    psutil.wait_procs([child], timeout=DEADLINE_S)
    assert not child.is_running()
