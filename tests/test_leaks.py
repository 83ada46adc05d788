"""The leak checks find leaks, and blame no other process or task."""

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


def start_python(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_leaked_process_is_found_and_killed() -> None:
    before = leaks.Snapshot.take()
    with start_python(WAITS_FOR_STDIN) as child:
        (line, *_) = [text for text in before.find_leaks(GRACE_S) if text.startswith("process")]
        assert str(child.pid) in line
    assert not psutil.pid_exists(child.pid)


def test_a_detached_grandchild_is_found() -> None:
    """A process that left its session, and whose parent died, belongs to this run."""
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


def test_a_child_of_an_older_process_is_no_leak() -> None:
    """For example a worker that a module's daemon starts during a test."""
    script = (
        "import subprocess, sys; print('ready', flush=True); sys.stdin.readline();"
        f"child = subprocess.Popen([sys.executable, '-c', {WAITS_FOR_STDIN!r}], stdin=sys.stdin,"
        " stdout=subprocess.PIPE); child.stdout.readline(); print('started', flush=True); child.wait()"
    )
    with start_python(script) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        daemon.stdout.readline()
        before = leaks.Snapshot.take()
        daemon.stdin.write("\n")
        daemon.stdin.flush()
        daemon.stdout.readline()
        assert before.find_leaks(GRACE_S) == []


def test_a_thread_is_found() -> None:
    before = leaks.Snapshot.take()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="left-behind")
    thread.start()
    try:
        assert before.find_leaks(GRACE_S) == ["thread left-behind"]
    finally:
        ended.set()
        thread.join()


def test_an_open_descriptor_is_found_with_its_number() -> None:
    before = leaks.Snapshot.take()
    ends = os.pipe()
    found = before.find_leaks(GRACE_S)
    for end in ends:
        os.close(end)
    assert [text.split()[2] for text in found] == sorted(str(end) for end in ends)
    assert before.find_leaks(GRACE_S) == []


def run_checked(test: Callable[[], Coroutine[None, None, None]], grace_s: float = leaks.GRACE_S) -> None:
    with asyncio.Runner(loop_factory=leaks.make_tracking_loop) as runner:
        runner.run(leaks.fail_on_leaked_tasks(test, grace_s)())


def test_a_task_is_found() -> None:
    """The task was started by the test or by one of its tasks."""

    async def forever() -> None:
        await asyncio.Event().wait()

    async def starts_forever() -> None:
        running.append(asyncio.create_task(forever()))

    async def test() -> None:
        await asyncio.create_task(starts_forever())

    running: list[asyncio.Task[None]] = []
    with pytest.raises(leaks.LeakedTasks, match="forever"):
        run_checked(test, GRACE_S)


def test_a_task_that_ends_within_the_grace_is_no_leak() -> None:
    async def soon() -> None:
        await asyncio.sleep(0)

    async def test() -> None:
        running.append(asyncio.create_task(soon()))

    running: list[asyncio.Task[None]] = []
    run_checked(test)
    assert running[0].done()


@pytest.fixture
async def start_background_task() -> AsyncIterator[Callable[[], None]]:
    """Return a function that makes a task of this fixture start another task."""
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
async def test_tasks_of_a_fixture_are_no_leak(start_background_task: Callable[[], None]) -> None:
    """Even if they start during a test."""
    start_background_task()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
