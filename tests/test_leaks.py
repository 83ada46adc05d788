"""The leak checks find what they are for, and blame no one else."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine

import psutil
import pytest

from tests import leaks

GRACE_S = 0.2

WAITS_FOR_STDIN = "import sys; print('ready', flush=True); sys.stdin.read()"


def _start(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_is_found_and_killed() -> None:
    """A child that outlives its test is named and does not live on."""
    before = leaks.Snapshot.take()
    with _start(WAITS_FOR_STDIN) as child:
        (line, *_) = [text for text in before.find_leaks(GRACE_S) if text.startswith("process")]
        assert str(child.pid) in line
    assert not psutil.pid_exists(child.pid)


def test_a_detached_grandchild_is_found() -> None:
    """A process that left its session and whose parent died is still this run's."""
    before = leaks.Snapshot.take()
    script = (
        "import os, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {WAITS_FOR_STDIN!r}], stdin=int(sys.argv[1]),"
        " stdout=subprocess.PIPE, start_new_session=True);"
        "child.stdout.readline(); print(child.pid, flush=True); os._exit(0)"
    )
    # The grandchild reads from a pipe whose other end is held here, so it cannot end on its own.
    read_end, write_end = os.pipe()
    try:
        output = subprocess.run(
            [sys.executable, "-c", script, str(read_end)], pass_fds=[read_end], stdout=subprocess.PIPE, check=True
        )
        found = [text for text in before.find_leaks(GRACE_S) if text.startswith("process")]
    finally:
        os.close(read_end)
        os.close(write_end)
    assert [text.split()[1] for text in found] == [f"{int(output.stdout)}:"]


def test_what_an_older_process_started_is_not_the_tests() -> None:
    """A worker that a module's daemon starts while a test runs is the daemon's to end."""
    script = (
        "import subprocess, sys; print('ready', flush=True); sys.stdin.readline();"
        f"child = subprocess.Popen([sys.executable, '-c', {WAITS_FOR_STDIN!r}], stdin=sys.stdin,"
        " stdout=subprocess.PIPE); child.stdout.readline(); print('started', flush=True); child.wait()"
    )
    with _start(script) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        daemon.stdout.readline()
        before = leaks.Snapshot.take()
        daemon.stdin.write("\n")
        daemon.stdin.flush()
        daemon.stdout.readline()
        assert before.find_leaks(GRACE_S) == []


def test_a_thread_is_found() -> None:
    """A thread that does not end is named."""
    before = leaks.Snapshot.take()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="left-behind")
    thread.start()
    try:
        assert before.find_leaks(GRACE_S) == ["thread left-behind"]
    finally:
        ended.set()
        thread.join()


def test_a_descriptor_is_found() -> None:
    """An open pipe is named with its number; a closed one is not."""
    before = leaks.Snapshot.take()
    ends = os.pipe()
    found = before.find_leaks(GRACE_S)
    for end in ends:
        os.close(end)
    assert [text.split()[2] for text in found] == sorted(str(end) for end in ends)
    assert before.find_leaks(GRACE_S) == []


def _run(test: Callable[[], Coroutine[None, None, None]], grace_s: float = leaks.GRACE_S) -> None:
    with asyncio.Runner(loop_factory=leaks.make_tracking_loop) as runner:
        runner.run(leaks.fail_on_leaked_tasks(test, grace_s)())


def test_a_task_is_found() -> None:
    """A task that a test, or a task of it, started and did not await is named."""

    async def forever() -> None:
        await asyncio.Event().wait()

    async def starts_forever() -> None:
        running.append(asyncio.create_task(forever()))

    async def test() -> None:
        await asyncio.create_task(starts_forever())

    running: list[asyncio.Task[None]] = []
    with pytest.raises(leaks.LeakedTasks, match="forever"):
        _run(test, GRACE_S)


def test_a_task_that_is_ending_is_no_leak() -> None:
    """A task that ends within the grace is awaited, not reported."""

    async def soon() -> None:
        await asyncio.sleep(0)

    async def test() -> None:
        running.append(asyncio.create_task(soon()))

    running: list[asyncio.Task[None]] = []
    _run(test)
    assert running[0].done()


@pytest.fixture
async def background() -> AsyncIterator[Callable[[], None]]:
    """A fixture's task that starts another task whenever a test asks for it."""
    asked = asyncio.Event()
    handlers = []

    async def serve() -> None:
        await asked.wait()
        handlers.append(asyncio.create_task(asyncio.Event().wait()))
        await handlers[0]

    server = asyncio.create_task(serve())
    yield asked.set
    for task in (server, *handlers):
        task.cancel()
    await asyncio.wait([server, *handlers])


@pytest.mark.anyio
async def test_a_fixtures_tasks_are_its_own(background: Callable[[], None]) -> None:
    """Tasks that a fixture's task starts during a test are not the test's."""
    background()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
