"""Conformance suite of executors: what the fleet relies on, wherever workers run.

An executor that passes :func:`check_executor` exchanges requests, watches deadlines, reports deaths and kills whole
trees of processes like the executor of this machine. Await it in a test of your own, while your executor runs.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio

from ktuned.fleet import DeadlineExpired, Environment, Executor, RequestFailed, Worker, WorkerDied
from ktuned.ipc import replies, requests
from ktuned.model import Phase, Role, WorkerError
from ktuned.testing.rules import NotConforming, require_rule

PATIENCE_S = 30.0
"""Longer than anything here takes on a busy machine."""

BRIEF_S = 0.3
"""A deadline that the checks let pass."""

_CHILDREN = """\
import os, subprocess
sleeper = ["sleep", "1000"]
children = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)]
print(os.getpid(), *(child.pid for child in children), flush=True)
"""
"""Kernel file that starts a child in the worker's group, and one that leaves the group."""

_HANG = "import signal\nwhile True:\n    signal.pause()\n"


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine is alive; a zombie is not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def check_executor(
    executor: Executor, environment: Environment, *, lives: Callable[[int], bool] = is_alive
) -> None:
    """Check that a running executor follows all rules that the fleet relies on.

    Args:
        executor: The executor, inside its :meth:`~ktuned.fleet.Executor.run_workers`.
        environment: Names a project's directory on this machine; it is empty, and kernel files are written to it.
        lives: Returns whether a process is alive on the machine that runs the workers.

    Raises:
        NotConforming: it breaks one of them.
    """
    suite = _Suite(executor, environment, lives)
    checks: Sequence[Callable[[], Awaitable[None]]] = (
        suite.check_answer_order,
        suite.check_files_are_current,
        suite.check_refusal_keeps_worker,
        suite.check_deadline_kills_tree,
        suite.check_exit_report,
        suite.check_signal_report,
        suite.check_kill_reason,
        suite.check_cancellation_kills,
        suite.check_kill_is_complete,
        suite.check_workers_are_independent,
    )
    for check in checks:
        with anyio.fail_after(2 * PATIENCE_S):
            await check()
        await suite.end_all_workers()


class _Suite:
    def __init__(self, executor: Executor, environment: Environment, lives: Callable[[int], bool]) -> None:
        self._executor = executor
        self._environment = environment
        self._lives = lives
        self._numbers = itertools.count()
        self._deadlines = dict.fromkeys(map(str, Phase), PATIENCE_S)

    async def _start_worker(self, role: Role = Role.INSPECT) -> Worker:
        worker = await self._executor.start_worker(role, self._environment, limit_bytes=4 << 30, deadline_s=PATIENCE_S)
        require_rule(worker.is_alive, "a new worker is not alive")
        require_rule(worker in list(self._executor.workers), "a new worker is not among the executor's workers")
        return worker

    def _write_kernel_files(self, *bodies: str) -> requests.Inspect:
        """Write kernel files, and return the request that imports them one by one."""
        names = []
        for body in bodies:
            names.append(f"tune_{next(self._numbers)}.py")
            Path(self._environment.cwd, names[-1]).write_text(textwrap.dedent(body))
        return requests.Inspect(self._environment.project, tuple(names))

    async def end_all_workers(self) -> None:
        """Kill every worker, and wait until all have ended."""
        for worker in list(self._executor.workers):
            worker.kill()
            await worker.gone.wait()

    async def check_answer_order(self) -> None:
        """Items come in order, before the reply. The output of the worker's code is returned with the reply."""
        worker = await self._start_worker()
        request = self._write_kernel_files("print('one', flush=True)", "print('two', flush=True)")
        items: list[replies.InspectedFile] = []
        computed: list[str] = []
        _, output = await worker.send_request(
            request, self._deadlines, on_item=items.append, on_computed=lambda: computed.append("computed")
        )
        require_rule(not computed, "the end of computing was reported, which an inspection never reports")
        require_rule(tuple(item.file for item in items) == request.files, "items are missing, or in another order")
        require_rule(output.stdout == "one\ntwo\n", f"the output was returned as {output.stdout!r}")
        require_rule(worker.requests == 1, "requests are not counted")

    async def check_files_are_current(self) -> None:
        """A request sees its project's files as they were when it was sent; removed files are gone."""
        worker = await self._start_worker()
        beside = Path(self._environment.cwd, "beside.txt")
        for text in ("first", "second"):
            beside.write_text(text)
            request = self._write_kernel_files(
                "import pathlib\nprint(pathlib.Path(__file__).with_name('beside.txt').read_text())"
            )
            _, output = await worker.send_request(request, self._deadlines)
            require_rule(output.stdout.strip() == text, f"a file that holds {text!r} was read as {output.stdout!r}")
        beside.unlink()
        request = self._write_kernel_files(
            "import pathlib\nprint(pathlib.Path(__file__).with_name('beside.txt').exists())"
        )
        _, output = await worker.send_request(request, self._deadlines)
        require_rule(output.stdout.strip() == "False", "a removed file is still there")

    async def check_refusal_keeps_worker(self) -> None:
        """A request that cannot be carried out is answered with an error, and the worker takes the next request."""
        worker = await self._start_worker()
        refused = requests.Admits(requests.KernelRef("nowhere", "tune_x.py", "x", "fake", (), {}), {}, ())
        try:
            await worker.send_request(refused, self._deadlines)
        except RequestFailed as error:
            require_rule(bool(error.message), "the error of a refused request has no message")
        else:
            raise NotConforming("a request for an unknown project succeeded")
        await worker.send_request(self._write_kernel_files("x = 1"), self._deadlines)

    async def check_deadline_kills_tree(self) -> None:
        """A missed deadline ends the worker and every process that it started."""
        worker = await self._start_worker()
        try:
            await worker.send_request(
                self._write_kernel_files(_CHILDREN + _HANG), {**self._deadlines, Phase.INSPECT: 2.0}
            )
        except DeadlineExpired as error:
            require_rule(error.phase is Phase.INSPECT, f"the deadline of {error.phase} passed")
            pids = [int(pid) for pid in error.output.stdout.split()]
        else:
            raise NotConforming("a deadline passed, and the worker was not killed")
        require_rule(len(pids) == 3, f"the output of a hung worker is incomplete: {pids}")
        await self._check_gone(worker, pids)

    async def check_exit_report(self) -> None:
        """An exit is reported with its status and the last line of output, and the worker is gone."""
        worker = await self._start_worker()
        error = await self._await_death(worker, "import os\nos.write(2, b'last words\\n')\nos._exit(3)")
        require_rule(error.returncode == 3, f"an exit with 3 was reported as {error.returncode}")
        require_rule("last words" in error.message, f"the last line of output is missing: {error.message}")
        require_rule(not error.is_outside_kill, "an exit was taken for a kill from outside")
        await self._check_gone(worker, [])

    async def check_signal_report(self) -> None:
        """A signal is reported by its name. A SIGKILL that ktuned did not send counts as a kill from outside."""
        for name, is_outside in (("SIGSEGV", False), ("SIGKILL", True)):
            worker = await self._start_worker()
            error = await self._await_death(
                worker, f"import os, signal\nos.kill(os.getpid(), signal.{name})\nsignal.pause()"
            )
            require_rule(error.signal == name, f"a death by {name} was reported as {error.signal}")
            require_rule(error.is_outside_kill is is_outside, f"{name}: is_outside_kill must be {is_outside}")

    async def check_kill_reason(self) -> None:
        """If a worker is killed with a reason, its request fails with that reason."""
        worker = await self._start_worker()
        deaths: list[WorkerDied] = []
        async with anyio.create_task_group() as tasks:

            async def hang() -> None:
                deaths.append(await self._await_death(worker, _HANG))

            tasks.start_soon(hang)
            # Long enough for the request to be under way when the worker is killed.
            await anyio.sleep(BRIEF_S)
            worker.kill("out of patience")
        require_rule("out of patience" in deaths[0].message, f"the reason is missing: {deaths[0].message}")
        require_rule(not deaths[0].is_outside_kill, "a kill with a reason was taken for a kill from outside")
        await self._check_gone(worker, [])

    async def check_cancellation_kills(self) -> None:
        """If a request's caller is cancelled, the worker is killed, because its state is unknown."""
        worker = await self._start_worker()
        with anyio.move_on_after(BRIEF_S):
            await worker.send_request(self._write_kernel_files(_HANG), self._deadlines)
        await self._check_gone(worker, [worker.pid])

    async def check_kill_is_complete(self) -> None:
        """Killing an idle worker also ends every process that it has started."""
        worker = await self._start_worker()
        _, output = await worker.send_request(self._write_kernel_files(_CHILDREN), self._deadlines)
        pids = [int(pid) for pid in output.stdout.split()]
        require_rule(all(map(self._lives, pids)), "children of a live worker have ended")
        worker.kill()
        await self._check_gone(worker, pids)
        try:
            await worker.send_request(self._write_kernel_files("x = 1"), self._deadlines)
        except WorkerError:
            return
        raise NotConforming("a killed worker answered a request")

    async def check_workers_are_independent(self) -> None:
        """Workers run side by side, and the death of one disturbs no other."""
        first, second = await self._start_worker(), await self._start_worker()
        async with anyio.create_task_group() as tasks:

            async def die() -> None:
                await self._await_death(first, "import os\nos._exit(1)")

            tasks.start_soon(die)
            for _ in range(3):
                await second.send_request(self._write_kernel_files("x = 1"), self._deadlines)
        require_rule(second.is_alive and first.pid != second.pid, "the death of a worker ended another one")

    async def _await_death(self, worker: Worker, body: str) -> WorkerDied:
        try:
            await worker.send_request(self._write_kernel_files(body), self._deadlines)
        except WorkerDied as error:
            return error
        raise NotConforming("a worker's death was not reported")

    async def _check_gone(self, worker: Worker, pids: Sequence[int]) -> None:
        await worker.gone.wait()
        require_rule(not worker.is_alive, "a worker is alive after `gone` was set")
        with anyio.move_on_after(PATIENCE_S):
            while any(map(self._lives, pids)):  # noqa: ASYNC110 - no event reports the end of orphans
                await anyio.sleep(0.02)
        survivors = [pid for pid in pids if self._lives(pid)]
        require_rule(not survivors, f"processes outlive their worker: {survivors}")
        require_rule(
            worker not in list(self._executor.workers), "a worker that has ended is among the executor's workers"
        )
