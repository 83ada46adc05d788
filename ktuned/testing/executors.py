"""Conformance suite of executors: what the fleet counts on, wherever workers run.

An executor that passes :func:`check_executor` exchanges requests, watches deadlines, reports deaths and kills whole
trees of processes as this machine's does. Await it in a test of yours, with an executor that runs.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

from ktuned.fleet import DeadlineExpired, Environment, Executor, RequestFailed, Worker, WorkerDied
from ktuned.ipc import replies, requests
from ktuned.model import Phase, Role, WorkerError

PATIENCE_S = 30.0
"""Longer than anything here takes on a busy machine."""

BRIEF_S = 0.3
"""A deadline that is meant to pass."""

_CHILDREN = """\
import os, subprocess
sleeper = ["sleep", "1000"]
children = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)]
print(os.getpid(), *(child.pid for child in children), flush=True)
"""
"""Starts a child in the worker's group, and one that left it."""

_HANG = "import signal\nwhile True:\n    signal.pause()\n"


class NotConforming(AssertionError):
    """An executor does not do what the fleet counts on; the message says what."""


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine lives; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def check_executor(
    executor: Executor, environment: Environment, *, lives: Callable[[int], bool] = is_alive
) -> None:
    """Check that an executor that runs does all that is expected of one.

    ``environment`` names a project's directory on this machine, which is empty and may be written to; ``lives`` says
    whether a process lives where the workers run.

    Raises:
        NotConforming: it does not.
    """
    suite = _Suite(executor, environment, lives)
    checks: Sequence[Callable[[], Awaitable[None]]] = (
        suite.answers_come_in_order,
        suite.files_are_as_they_are_now,
        suite.a_refusal_leaves_the_worker,
        suite.a_deadline_kills_the_tree,
        suite.a_death_is_reported,
        suite.a_signal_is_reported,
        suite.a_stop_has_its_reason,
        suite.a_given_up_exchange_kills,
        suite.a_kill_is_complete,
        suite.workers_are_apart,
    )
    for check in checks:
        with anyio.fail_after(2 * PATIENCE_S):
            await check()
        await suite.end_all()


class _Suite:
    def __init__(self, executor: Executor, environment: Environment, lives: Callable[[int], bool]) -> None:
        self._executor = executor
        self._environment = environment
        self._lives = lives
        self._numbers = itertools.count()
        self._deadlines = dict.fromkeys(map(str, Phase), PATIENCE_S)

    async def _worker(self, role: Role = Role.INSPECT) -> Worker:
        worker = await self._executor.start_worker(role, self._environment, limit_bytes=4 << 30, deadline_s=PATIENCE_S)
        _require(worker.is_alive, "a worker that was started is not alive")
        _require(worker in list(self._executor.workers), "a worker that was started is not among the executor's")
        return worker

    def _write(self, *bodies: str) -> requests.Inspect:
        """Write kernel files, and return the request that imports them one by one."""
        names = []
        for body in bodies:
            names.append(f"tune_{next(self._numbers)}.py")
            Path(self._environment.cwd, names[-1]).write_text(textwrap.dedent(body))
        return requests.Inspect(self._environment.project, tuple(names))

    async def end_all(self) -> None:
        """Kill every worker, and wait for their ends."""
        for worker in list(self._executor.workers):
            worker.kill()
            await worker.gone.wait()

    async def answers_come_in_order(self) -> None:
        """Items come in order, before the reply; what was printed is returned."""
        worker = await self._worker()
        request = self._write("print('one', flush=True)", "print('two', flush=True)")
        items: list[replies.InspectedFile] = []
        computed: list[str] = []
        _, output = await worker.send_request(
            request, self._deadlines, on_item=items.append, on_computed=lambda: computed.append("computed")
        )
        _require(not computed, "it is said that computing is over, which an inspection does not say")
        _require(tuple(item.file for item in items) == request.files, "items are missing, or in another order")
        _require(output.stdout == "one\ntwo\n", f"what was printed came as {output.stdout!r}")
        _require(worker.requests == 1, "requests are not counted")

    async def files_are_as_they_are_now(self) -> None:
        """A request sees the files of its project as they are when it is sent, also removed ones."""
        worker = await self._worker()
        beside = Path(self._environment.cwd, "beside.txt")
        for text in ("first", "second"):
            beside.write_text(text)
            request = self._write("import pathlib\nprint(pathlib.Path(__file__).with_name('beside.txt').read_text())")
            _, output = await worker.send_request(request, self._deadlines)
            _require(output.stdout.strip() == text, f"a file that holds {text!r} was read as {output.stdout!r}")
        beside.unlink()
        request = self._write("import pathlib\nprint(pathlib.Path(__file__).with_name('beside.txt').exists())")
        _, output = await worker.send_request(request, self._deadlines)
        _require(output.stdout.strip() == "False", "a removed file is still there")

    async def a_refusal_leaves_the_worker(self) -> None:
        """A request that cannot be carried out is answered so, and the worker takes the next one."""
        worker = await self._worker()
        refused = requests.Admits(requests.KernelRef("nowhere", "tune_x.py", "x", "fake", (), {}), {}, ())
        try:
            await worker.send_request(refused, self._deadlines)
        except RequestFailed as error:
            _require(bool(error.message), "a refusal says nothing")
        else:
            raise NotConforming("a project that there is not was found")
        await worker.send_request(self._write("x = 1"), self._deadlines)

    async def a_deadline_kills_the_tree(self) -> None:
        """A phase that takes too long ends the worker and all that it started."""
        worker = await self._worker()
        try:
            await worker.send_request(self._write(_CHILDREN + _HANG), {**self._deadlines, Phase.INSPECT: 2.0})
        except DeadlineExpired as error:
            _require(error.phase is Phase.INSPECT, f"the deadline of {error.phase} passed")
            pids = [int(pid) for pid in error.output.stdout.split()]
        else:
            raise NotConforming("a deadline passed, and nothing happened")
        _require(len(pids) == 3, f"what a hung worker printed is lost: {pids}")
        await self._gone(worker, pids)

    async def a_death_is_reported(self) -> None:
        """An exit is reported with its status and the last words; the worker is gone."""
        worker = await self._worker()
        error = await self._dies(worker, "import os\nos.write(2, b'last words\\n')\nos._exit(3)")
        _require(error.returncode == 3, f"a worker that exited with 3 is said to have ended with {error.returncode}")
        _require("last words" in error.message, f"the last words are lost: {error.message}")
        _require(not error.is_outside_kill, "an exit is taken for a kill")
        await self._gone(worker, [])

    async def a_signal_is_reported(self) -> None:
        """A signal is reported by its name; a SIGKILL that ktuned did not send is one from outside."""
        for name, is_outside in (("SIGSEGV", False), ("SIGKILL", True)):
            worker = await self._worker()
            error = await self._dies(worker, f"import os, signal\nos.kill(os.getpid(), signal.{name})\nsignal.pause()")
            _require(error.signal == name, f"a worker that died by {name} is said to have died by {error.signal}")
            _require(error.is_outside_kill is is_outside, f"{name} is taken for the wrong kind of end")

    async def a_stop_has_its_reason(self) -> None:
        """The request of a worker that is stopped for what it does ends with the reason."""
        worker = await self._worker()
        stopped: list[WorkerDied] = []
        async with anyio.create_task_group() as tasks:

            async def hang() -> None:
                stopped.append(await self._dies(worker, _HANG))

            tasks.start_soon(hang)
            # Another request is not taken meanwhile; the worker is busy when it is stopped.
            await anyio.sleep(BRIEF_S)
            worker.kill("out of patience")
        _require("out of patience" in stopped[0].message, f"the reason is lost: {stopped[0].message}")
        _require(not stopped[0].is_outside_kill, "a stop is taken for a kill from outside")
        await self._gone(worker, [])

    async def a_given_up_exchange_kills(self) -> None:
        """A worker whose caller is cancelled is killed: its state cannot be known."""
        worker = await self._worker()
        with anyio.move_on_after(BRIEF_S):
            await worker.send_request(self._write(_HANG), self._deadlines)
        await self._gone(worker, [worker.pid])

    async def a_kill_is_complete(self) -> None:
        """An idle worker that is killed is gone with all that it has left running."""
        worker = await self._worker()
        _, output = await worker.send_request(self._write(_CHILDREN), self._deadlines)
        pids = [int(pid) for pid in output.stdout.split()]
        _require(all(map(self._lives, pids)), "children of a worker that lives have ended")
        worker.kill()
        await self._gone(worker, pids)
        try:
            await worker.send_request(self._write("x = 1"), self._deadlines)
        except WorkerError:
            return
        raise NotConforming("a worker that was killed answers")

    async def workers_are_apart(self) -> None:
        """Workers run side by side; one that hangs or dies disturbs no other."""
        first, second = await self._worker(), await self._worker()
        async with anyio.create_task_group() as tasks:

            async def die() -> None:
                await self._dies(first, "import os\nos._exit(1)")

            tasks.start_soon(die)
            for _ in range(3):
                await second.send_request(self._write("x = 1"), self._deadlines)
        _require(second.is_alive and first.pid != second.pid, "a worker's end took another one with it")

    async def _dies(self, worker: Worker, body: str) -> WorkerDied:
        try:
            await worker.send_request(self._write(body), self._deadlines)
        except WorkerDied as error:
            return error
        raise NotConforming("a worker's end was not reported")

    async def _gone(self, worker: Worker, pids: Sequence[int]) -> None:
        await worker.gone.wait()
        _require(not worker.is_alive, "a worker that is gone is alive")
        with anyio.move_on_after(PATIENCE_S):
            while any(map(self._lives, pids)):  # noqa: ASYNC110 - no event reports the end of orphans
                await anyio.sleep(0.02)
        left = [pid for pid in pids if self._lives(pid)]
        _require(not left, f"processes outlive their worker: {left}")
        _require(worker not in list(self._executor.workers), "a worker that is gone is among the executor's")


def _require(holds: Any, otherwise: str) -> None:
    if not holds:
        raise NotConforming(otherwise)


__all__ = ["NotConforming", "check_executor", "is_alive"]
