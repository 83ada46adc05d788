"""A phase's deadline: reported when it is over, not before, and with few timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import anyio
import pytest
import uvloop

from ktuned.fleet.phases import MIN_INTERVAL_S, DeadlineTimer

PATIENCE_S = 30.0


class FakeTimer:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self._when = when
        self.call = call
        self.is_cancelled = False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """An event loop whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(when, call))
        return self.timers[-1]

    def list_pending(self) -> list[FakeTimer]:
        return [timer for timer in self.timers if not timer.is_cancelled]

    def turn_to(self, now: float) -> None:
        """Move the clock, and fire the timers that are due on the way."""
        while due := [timer for timer in self.list_pending() if timer.when() <= now]:
            first = min(due, key=FakeTimer.when)
            self.now = first.when()
            self.timers.remove(first)
            first.call()
        self.now = now


class WatchedRequest:
    """A worker whose phases the daemon does not see; every phase has at least two seconds."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.woken_at: list[float] = []
        self.looks = 0
        self.ends_at = 0.0
        self.timer = DeadlineTimer(cast(asyncio.AbstractEventLoop, self.loop), self._wake, self._look)

    def begin_request(self, deadline_s: float) -> None:
        """Begin a request whose first phase has this deadline."""
        self.enter_phase(deadline_s)
        self.timer.watch_request(2.0)

    def enter_phase(self, deadline_s: float) -> None:
        """Enter a phase without telling the daemon."""
        self.ends_at = self.loop.now + deadline_s

    def _look(self) -> float:
        self.looks += 1
        return self.ends_at

    def _wake(self) -> None:
        self.woken_at.append(self.loop.now - 100.0)


@pytest.fixture
def watched_request() -> WatchedRequest:
    """A request on a clock that only the test moves."""
    return WatchedRequest()


@pytest.mark.parametrize("deadline_s", [2.0, 2.5, 60.0])
def test_a_phase_expires_at_its_deadline(watched_request: WatchedRequest, deadline_s: float) -> None:
    """It is not over before, and reported once."""
    watched_request.begin_request(deadline_s)
    watched_request.loop.turn_to(100.0 + deadline_s - 0.1)
    assert not watched_request.timer.is_over
    watched_request.loop.turn_to(200.0)
    assert watched_request.timer.is_over
    assert watched_request.woken_at == [deadline_s]


@pytest.mark.parametrize("entered_at", [0.5, 1.0, 1.75, 2.0, 7.25])
@pytest.mark.parametrize(("first", "second"), [(2.0, 60.0), (60.0, 2.0), (60.0, 3.5), (2.0, 2.0)])
def test_a_phase_entered_unseen_has_its_own_deadline(
    watched_request: WatchedRequest, first: float, second: float, entered_at: float
) -> None:
    """The first phase's timer does not cut a longer phase short; a shorter phase ends exactly in time."""
    if entered_at >= first:
        entered_at = first / 2
    watched_request.begin_request(first)
    watched_request.loop.turn_to(100.0 + entered_at)
    watched_request.enter_phase(second)
    watched_request.loop.turn_to(300.0)
    assert watched_request.woken_at == [entered_at + second]


def test_an_ended_request_never_expires(watched_request: WatchedRequest) -> None:
    """Nothing is checked, and a later request is watched again."""
    watched_request.begin_request(2.0)
    watched_request.timer.end_watch()
    watched_request.loop.turn_to(150.0)
    assert not watched_request.timer.is_over
    assert watched_request.looks == 0
    watched_request.begin_request(3.0)
    watched_request.loop.turn_to(200.0)
    assert watched_request.woken_at == [53.0]


def test_a_new_request_forgets_that_the_last_one_expired(watched_request: WatchedRequest) -> None:
    watched_request.begin_request(2.0)
    watched_request.loop.turn_to(110.0)
    watched_request.begin_request(2.0)
    assert not watched_request.timer.is_over


def test_a_long_phase_is_looked_at_seldom(watched_request: WatchedRequest) -> None:
    """It is checked as often as the shortest deadline requires."""
    watched_request.begin_request(60.0)
    watched_request.loop.turn_to(300.0)
    assert watched_request.looks <= 31


def test_a_thousand_short_requests_share_a_timer(watched_request: WatchedRequest) -> None:
    """Requests of some milliseconds need no timer each, and none is checked."""
    for step in range(1000):
        watched_request.loop.turn_to(100.0 + step / 1000)
        watched_request.begin_request(2.0 if step % 2 else 60.0)
        watched_request.timer.end_watch()
    assert len(watched_request.loop.timers) <= 2
    assert watched_request.looks == 0


def test_closing_leaves_no_timer(watched_request: WatchedRequest) -> None:
    """A dead worker's last deadline must not keep it in memory."""
    watched_request.begin_request(60.0)
    watched_request.timer.close()
    assert not watched_request.loop.list_pending()


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """A function that makes the daemon's event loop, or its fallback."""
    make_loop: Callable[[], asyncio.AbstractEventLoop] = request.param
    make_loop().close()  # libuv's first loop opens a pipe that stays
    return make_loop


@pytest.mark.parametrize("before_s", [None, 0.001])
def test_a_loop_that_rounds_ends_every_phase(
    new_loop: Callable[[], asyncio.AbstractEventLoop], before_s: float | None
) -> None:
    """A deadline passes even if the loop counts whole milliseconds and runs immediate calls at once."""

    async def expire_all() -> None:
        for part in range(20):
            over = asyncio.Event()
            loop = asyncio.get_running_loop()
            deadline_s = MIN_INTERVAL_S + 0.0011 + part * 0.0001
            ends_at = loop.time() + deadline_s
            timer = DeadlineTimer(loop, over.set, lambda: ends_at)  # noqa: B023 - awaited below
            if before_s is not None:
                timer.watch_request(before_s)
            timer.watch_request(deadline_s)
            with anyio.fail_after(PATIENCE_S):
                await over.wait()
            assert timer.is_over
            timer.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(expire_all())
