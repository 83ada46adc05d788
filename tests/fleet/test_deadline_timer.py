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


class Timer:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self._when = when
        self.call = call
        self.is_cancelled = False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """A loop whose clock the test turns."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, call))
        return self.timers[-1]

    def pending(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.is_cancelled]

    def turn_to(self, now: float) -> None:
        """Let time pass, and fire what is due on the way."""
        while due := [timer for timer in self.pending() if timer.when() <= now]:
            first = min(due, key=Timer.when)
            self.now = first.when()
            self.timers.remove(first)
            first.call()
        self.now = now


class _Watched:
    """A worker that enters phases unseen; no phase is over in less than two seconds."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.woken_at: list[float] = []
        self.looks = 0
        self.ends_at = 0.0
        self.timer = DeadlineTimer(cast(asyncio.AbstractEventLoop, self.loop), self._wake, self._look)

    def begin(self, deadline_s: float) -> None:
        """Begin a request whose first phase has this deadline."""
        self.enter(deadline_s)
        self.timer.watch_request(2.0)

    def enter(self, deadline_s: float) -> None:
        """Enter a phase, of which the daemon hears nothing."""
        self.ends_at = self.loop.now + deadline_s

    def _look(self) -> float:
        self.looks += 1
        return self.ends_at

    def _wake(self) -> None:
        self.woken_at.append(self.loop.now - 100.0)


@pytest.fixture
def watched() -> _Watched:
    """Return a deadline on a clock that stands still."""
    return _Watched()


@pytest.mark.parametrize("deadline_s", [2.0, 2.5, 60.0])
def test_a_phase_expires_at_its_deadline(watched: _Watched, deadline_s: float) -> None:
    """Not over before, over then, and reported once."""
    watched.begin(deadline_s)
    watched.loop.turn_to(100.0 + deadline_s - 0.1)
    assert not watched.timer.is_over
    watched.loop.turn_to(200.0)
    assert watched.timer.is_over
    assert watched.woken_at == [deadline_s]


@pytest.mark.parametrize("entered_at", [0.5, 1.0, 1.75, 2.0, 7.25])
@pytest.mark.parametrize(("first", "second"), [(2.0, 60.0), (60.0, 2.0), (60.0, 3.5), (2.0, 2.0)])
def test_a_phase_entered_unseen_has_its_own_deadline(
    watched: _Watched, first: float, second: float, entered_at: float
) -> None:
    """A longer one is not cut short by the first one's timer; a shorter one is over to the moment."""
    if entered_at >= first:
        entered_at = first / 2
    watched.begin(first)
    watched.loop.turn_to(100.0 + entered_at)
    watched.enter(second)
    watched.loop.turn_to(300.0)
    assert watched.woken_at == [entered_at + second]


def test_an_ended_request_never_expires(watched: _Watched) -> None:
    """What came in time is not late, nothing is looked at, and a later request is watched again."""
    watched.begin(2.0)
    watched.timer.end_watch()
    watched.loop.turn_to(150.0)
    assert not watched.timer.is_over
    assert watched.looks == 0
    watched.begin(3.0)
    watched.loop.turn_to(200.0)
    assert watched.woken_at == [53.0]


def test_a_new_request_forgets_that_the_last_one_expired(watched: _Watched) -> None:
    """The one is over, the next one is not."""
    watched.begin(2.0)
    watched.loop.turn_to(110.0)
    watched.begin(2.0)
    assert not watched.timer.is_over


def test_a_long_phase_is_looked_at_seldom(watched: _Watched) -> None:
    """As often as the shortest deadline asks for."""
    watched.begin(60.0)
    watched.loop.turn_to(300.0)
    assert watched.looks <= 31


def test_a_thousand_short_requests_share_a_timer(watched: _Watched) -> None:
    """Requests that end in milliseconds do not each cost a timer, and none is looked at."""
    for step in range(1000):
        watched.loop.turn_to(100.0 + step / 1000)
        watched.begin(2.0 if step % 2 else 60.0)
        watched.timer.end_watch()
    assert len(watched.loop.timers) <= 2
    assert watched.looks == 0


def test_closing_leaves_no_timer(watched: _Watched) -> None:
    """A dead worker is not kept in memory by its last deadline."""
    watched.begin(60.0)
    watched.timer.close()
    assert not watched.loop.pending()


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the daemon's loop, or that which it falls back to."""
    made: Callable[[], asyncio.AbstractEventLoop] = request.param
    made().close()  # libuv's first loop opens a pipe that stays
    return made


@pytest.mark.parametrize("before_s", [None, 0.001])
def test_a_loop_that_rounds_ends_every_phase(
    new_loop: Callable[[], asyncio.AbstractEventLoop], before_s: float | None
) -> None:
    """Where time is counted in whole milliseconds, and what is due at once has none, a deadline passes nevertheless."""

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
