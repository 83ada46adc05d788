"""The daemon's end when idle, its rates, and the watchdog."""

from __future__ import annotations

import socket
from pathlib import Path

import anyio
import hypothesis
import pytest
from hypothesis import strategies as st

from ktuned.daemon.lifetime import Idleness, Lifetime
from ktuned.daemon.systemd import Notifier
from ktuned.protocol import WorkFigures


def test_the_daemon_ends_after_the_limit_without_activity() -> None:
    idle = Idleness(10.0, now=0.0)
    assert not idle.is_over([], 0, 0.0)
    assert not idle.is_over([], 0, 9.9)
    assert idle.is_over([], 0, 10.0)


@pytest.mark.parametrize("reason", ["clients", "jobs", "watches"])
def test_clients_jobs_and_watches_keep_the_daemon_alive(reason: str) -> None:
    """The time starts again when they are gone."""
    idle = Idleness(10.0, now=0.0)
    idle.is_over([], 0, 0.0)
    assert not idle.is_over([reason], 0, 1e9)
    assert not idle.is_over([], 0, 1e9 + 9)
    assert idle.is_over([], 0, 1e9 + 10)


def test_a_client_between_two_checks_restarts_the_idle_time() -> None:
    idle = Idleness(10.0, now=0.0)
    idle.is_over([], 0, 0.0)
    assert not idle.is_over([], 1, 10.0)
    assert not idle.is_over([], 1, 19.0)
    assert idle.is_over([], 1, 20.0)


@hypothesis.given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.floats(0, 100)), max_size=30))
def test_a_limit_of_zero_never_ends_the_daemon(looks: list[tuple[bool, int, float]]) -> None:
    idle, now = Idleness(0.0, now=0.0), 0.0
    for is_busy, activity, passed in looks:
        now += passed
        assert not idle.is_over(["jobs"] if is_busy else [], activity, now)


@hypothesis.given(
    st.floats(0.1, 50), st.lists(st.tuples(st.booleans(), st.integers(0, 1), st.floats(0, 30)), max_size=30)
)
def test_the_idle_limit_agrees_with_a_model(limit: float, looks: list[tuple[bool, int, float]]) -> None:
    """The model keeps the whole history."""
    idle, now, total = Idleness(limit, now=0.0), 0.0, 0
    last = 0.0
    seen = -1
    for is_busy, more, passed in looks:
        now, total = now + passed, total + more
        if is_busy or total != seen:
            last, seen = now, total
            expected = False
        else:
            expected = now - last >= limit
        assert idle.is_over(["clients"] if is_busy else [], total, now) == expected


def test_rates_reach_back_a_minute() -> None:
    """A rate is the increase over the last minute, and 0 at the start."""
    lookups = 5
    with Notifier() as notifier:
        life = Lifetime(
            notifier,
            idle_exit_s=0.0,
            busy=list,
            totals=lambda: WorkFigures(lookups=lookups),
            describe=str,
            stop=lambda: None,
        )
        assert life.compute_rates(0.0).lookups == 0.0
        for second in range(0, 600, 5):
            lookups = 10 * second
            life.check_end(float(second))
        assert life.compute_rates(595.0).lookups == 10.0
        for second in range(600, 665, 5):
            life.check_end(float(second))
        assert life.compute_rates(660.0).lookups == 0.0


@pytest.mark.anyio
async def test_the_loop_feeds_the_watchdog_and_ends_when_idle(tmp_path: Path) -> None:
    """The watchdog is notified twice within its period."""
    busy = ["clients"]
    stopped = anyio.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        with Notifier(str(tmp_path / "notify"), watchdog_s=0.1) as notifier:
            life = Lifetime(
                notifier,
                idle_exit_s=0.05,
                busy=lambda: list(busy),
                totals=lambda: WorkFigures(requests=1),
                describe=lambda: "at rest",
                stop=stopped.set,
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(life.run_until_cancelled)
                datagrams: list[bytes] = []
                with anyio.fail_after(30):
                    while datagrams.count(b"WATCHDOG=1") < 4:
                        await anyio.wait_readable(manager)
                        datagrams.append(manager.recv(100))
                    assert b"STATUS=at rest" in datagrams
                    assert not stopped.is_set()
                    busy.clear()
                    await stopped.wait()
                tasks.cancel_scope.cancel()
